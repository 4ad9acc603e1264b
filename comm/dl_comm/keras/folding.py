"""How the variables of a metric come together over the ranks: by what its class says, or by what its code does."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from types import CodeType, FunctionType
from typing import Any

import keras

KERAS = ("keras", "tensorflow", "tf_keras")  # the packages of Keras's own classes
WORDS = ("sum", "max", "min")
# What a class of the script's own defines beside what changes its state batch by batch.
_ASIDE = ("__new__", "build", "get_config", "from_config", "result", "reset_state", "reset_states", "call", "__repr__")
# What reads or changes a state otherwise than through a metric of Keras's.
_STATE = {"append", "extend", "insert", "update", "add", "pop", "clear", "setdefault", "setattr", "result"}
_STATE |= {"reset_state", "reset_states", "total", "count", "variables", "weights", "set_weights", "exec", "eval"}


def folds(metric: Any) -> list[tuple[Any, str]] | None:
    """Return the variables of a metric, and whether each becomes the "sum", "max" or "min" over the ranks.

    Those of Keras's own classes are sums: totals and counts, confusions at thresholds, matrices. So are those of a
    class of the script's own that changes them through metrics of Keras's alone. Another class says it by an attribute,
    ``fold_over_ranks``: one word, or a dict from a variable's name to its word. None: it does not, and nobody knows.
    """
    told = getattr(metric, "fold_over_ranks", None)
    if told is None:
        kind: Any = type(metric)
        known = is_kerass(metric) or (isinstance(metric, keras.metrics.Metric) and _through_kerass(kind))
        return [(variable, "sum") for variable in metric.variables] if known else None
    found = [(v, told if isinstance(told, str) else told.get(plain_name(v))) for v in metric.variables]
    for variable, word in found:
        if word not in WORDS:
            raise ValueError(
                f"{type(metric).__name__}.fold_over_ranks says {word!r} of {plain_name(variable)!r}; it is "
                f"{', '.join(map(repr, WORDS))}, or a dict that has one of them for each variable"
            )
    return found


def plain_name(variable: Any) -> str:
    """Return the name that ``add_weight`` was given."""
    return str(variable.name).rpartition("/")[2].partition(":")[0]


def is_kerass(metric: Any) -> bool:
    """Tell whether all that a metric keeps is of Keras's own classes, and so a sum."""
    return isinstance(metric, keras.metrics.Metric) and _of_keras(type(metric))


def parts_of(metrics: Iterable[Any]) -> list[Any]:
    """Return the metrics, with those that others hold, as CompileMetrics does, in their place."""
    found: list[Any] = []
    for metric in metrics:
        held = getattr(metric, "metrics", None)
        found += parts_of(held) if isinstance(held, (list, tuple)) and held else [metric]
    return found


def _of_keras(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in KERAS


@cache
def _through_kerass(kind: type) -> bool:
    """Tell whether a class of the script's own has no variable of its own, and assigns none."""
    functions = dict(own_functions(kind))
    begun = [name for function in [functions.pop("__init__", None)] if function for name in names_in(function)]
    if any(name in ("add_weight", "add_variable", "Variable", "variable") for name in begun):
        return False
    return all(not _keeps(function) for name, function in functions.items() if name not in _ASIDE)


def own_functions(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield what classes of the script's own define, from a base to what derives from it; of Keras's none."""
    for one in reversed([base for base in kind.__mro__ if base is not object and not _of_keras(base)]):
        for name, held in vars(one).items():
            held = inspect.unwrap(held.__func__ if isinstance(held, (staticmethod, classmethod)) else held)
            held = held.fget if isinstance(held, property) else held
            if isinstance(held, FunctionType) or (callable(held) and not isinstance(held, type)):
                yield name, held


def _keeps(function: Any) -> bool:
    """Tell whether a function may keep a state by itself; of what has no code, as other decorators make, it may."""
    codes = list(codes_of(function))
    stored = ("STORE_ATTR", "STORE_SUBSCR", "DELETE_ATTR", "STORE_GLOBAL", "STORE_DEREF")
    return (
        not codes
        or any(name in _STATE or name.startswith(("assign", "scatter")) for code in codes for name in code.co_names)
        or any(each.opname in stored for code in codes for each in dis.get_instructions(code))
    )


def names_in(function: Any) -> set[str]:
    """Return the names of attributes and globals in a function, and in those that stand in it."""
    return {name for code in codes_of(function) for name in code.co_names}


def codes_of(function: Callable[..., Any]) -> Iterator[CodeType]:
    """Yield the code of a function, and of those that stand in it."""
    todo = [getattr(function, "__code__", None)]
    while todo:
        code = todo.pop()
        if code is not None:
            yield code
            todo += [held for held in code.co_consts if isinstance(held, CodeType)]
