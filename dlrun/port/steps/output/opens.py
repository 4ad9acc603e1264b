"""The modes in which a script opens its files."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from dlrun.port.edits import Doubt
from dlrun.port.facts import ScriptFacts
from dlrun.port.facts.models.kinds_tensorflow import plain
from dlrun.port.program.scopes import Path
from dlrun.port.program.script import argument, calls_method, walk

_OPENERS = (
    "builtins.open",
    "io.open",
    "gzip.open",
    "bz2.open",
    "lzma.open",
    "codecs.open",
    "h5py.File",
    "netCDF4.Dataset",
    "zipfile.ZipFile",
    "tarfile.open",
)
_WRITING_MODES = re.compile(r"^[rbt]*[wax][+bt]*(:\w*)?$")


def to_write(facts: ScriptFacts, call: cst.Call, name: str) -> bool:
    """Tell whether ``call``, of what is called ``name``, opens a file to write into it."""
    if plain(name) in ("tensorflow.io.TFRecordWriter", "tensorflow.python_io.TFRecordWriter"):
        return True
    modes = _modes(facts, call, name)
    return bool(modes) and all(map(_WRITING_MODES.search, modes))


def may_write(facts: ScriptFacts, call: cst.Call, name: str) -> bool:
    """Tell whether ``call`` opens a file to read or to write, as it is told elsewhere, or where that is not known."""
    modes, known = _modes(facts, call, name), name in _OPENERS  # others may open no file
    told = any(_WRITING_MODES.search(mode) if mode else known for mode in modes)
    return told and not to_write(facts, call, name)


def doubt(facts: ScriptFacts, call: cst.Call) -> Doubt:
    """Return what is told of ``call``, which may write."""
    dl = facts.alias
    return Doubt(
        call,
        "the mode comes from elsewhere: where it is one to write in, every rank writes into this file",
        "medium",
        f"open it with {dl}.rank0(open)(...) to write, with open(...) to read",
        name="several-writers",
    )


def written_by(facts: ScriptFacts, call: cst.Call) -> list[cst.Call] | None:
    """Return the calls that give a function a mode to write in, of which all that it does is to open the file.

    None of any other function, and where a mode is not known.
    """
    function, mode = facts.script.function_of(call), argument(call, "mode", 1)
    if not isinstance(function, cst.FunctionDef) or not isinstance(mode, cst.Name):
        return None
    opened = [n for n in walk(function.body) if isinstance(n, cst.Call)]
    returned = (isinstance(facts.script.parents[n], cst.Return) for n in opened)
    if not all(returned) or any(facts.script.name_of(n.func) not in _OPENERS for n in opened):
        return None
    found: list[cst.Call] = []
    for caller in facts.flow.callers(function):
        given = facts.flow.argument(caller, function, mode.value)
        texts = list(_texts(facts, given)) if given is not None else []
        told = {bool(_WRITING_MODES.search(text)) for text in texts}
        if "" in texts or len(told) > 1:
            return None
        found += [caller] if True in told else []
    return found if call is opened[0] else []


def _modes(facts: ScriptFacts, call: cst.Call, name: str) -> list[str]:
    """Return the modes in which ``call`` may open a file, "" for one that is not known; none of what opens no file."""
    of_path = calls_method(call, "open") and name[:1] in ("", ".")
    if not of_path and name not in _OPENERS:
        return []
    place = 0 if of_path else 1
    mode = argument(call, "mode", place)
    if mode is not None:
        return list(_texts(facts, mode))
    starred = next((at for at, arg in enumerate(call.args) if arg.star == "*"), place + 1)
    return list(_texts(facts, call.args[starred].value, (place - starred,))) if starred <= place else []


def _texts(facts: ScriptFacts, node: cst.BaseExpression, part: Path = ()) -> Iterator[str]:
    """Yield the texts that ``node``, or a part of it, may be: ``"a" if resumed else "w"``, also by a parameter."""
    for found in (*(origin.node for origin in facts.flow.origins(node, part)), *_defaults(facts, node)):
        if not (isinstance(found, cst.Name) and found.value == "None"):  # mode or "w"
            yield str(found.evaluated_value) if isinstance(found, cst.SimpleString) else ""


def _defaults(facts: ScriptFacts, node: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """Yield what parameters are that ``node`` comes from, where some calls of their functions do not give them."""
    for name in facts.flow.through(node):
        for bound in facts.script.bindings_of(name) if isinstance(name, cst.Name) else ():
            function = facts.script.function_of(name)
            if bound.how == "param" and bound.value is not None and isinstance(function, cst.FunctionDef):
                callers = facts.flow.callers(function)
                if any(facts.flow.argument(call, function, bound.name) is None for call in callers):
                    yield bound.value
