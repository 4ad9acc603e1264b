"""Objects of the script's own classes that a loss is computed with: what they are, and the data that they keep."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import libcst as cst

from dlrun.port.program.flow import Flow

_SAMPLES = ("__getitem__", "__iter__", "__array__")  # what an object has that is one of samples itself


def is_object(flow: Flow, name: cst.Name) -> bool:
    """Tell whether ``name`` is an object of a class of the script that is no array or list of samples itself."""
    classes = flow.classes(name)
    samples = any(flow.method(cls, method) is not None for cls in classes for method in _SAMPLES)
    return bool(classes) and not samples and all(map(flow.is_plain, classes))


def keeping(flow: Flow, uses: Iterable[cst.Name], is_plain: Callable[[cst.Attribute], bool]) -> Iterator[cst.Name]:
    """Yield those of the ``uses`` of objects where one is asked for data that it keeps: ``data`` of ``data.x``."""
    for use in uses:
        asked = flow.script.parents[use]
        called = flow.script.parents.get(asked)
        if not isinstance(asked, cst.Attribute) or (isinstance(called, cst.Call) and called.func is asked):
            continue
        if flow.origins(asked) and not is_plain(asked):
            yield use
