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
_STORED = ("STORE_ATTR", "STORE_SUBSCR", "DELETE_ATTR", "STORE_GLOBAL", "STORE_DEREF")
_LOADS = ("LOAD_ATTR", "LOAD_METHOD")
_BETWEEN = ("CACHE", "PUSH_NULL", "EXTENDED_ARG", "NOP")
_STATE |= {"reset_state", "reset_states", "total", "count", "variables", "weights", "set_weights", "exec", "eval"}


def folds(metric: Any) -> list[tuple[Any, str]] | None:
    """Return the variables of a metric, and whether each becomes the "sum", "max" or "min" over the ranks.

    Those of Keras's own classes are sums: totals and counts, confusions at thresholds, matrices. So are those of a
    class of the script's own that changes them through metrics of Keras's alone, or by ``assign_add()`` alone, of what
    they do not hold themselves, from zero on. Another class says it by an attribute,
    ``fold_over_ranks``: one word, or a dict from a variable's name to its word. None: it does not, and nobody knows.
    """
    told = getattr(metric, "fold_over_ranks", None)
    if told is None:
        kind: Any = type(metric)
        own = isinstance(metric, keras.metrics.Metric)
        known = is_kerass(metric) or (own and (_through_kerass(kind) or _only_adds(kind, _attributes(metric))))
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


def _attributes(metric: Any) -> frozenset[str]:
    """Return the names of the attributes that are the metric's variables; none if some of these have no name."""
    found = {id(held): name for name, held in vars(metric).items() if any(held is v for v in metric.variables)}
    return frozenset(found.values()) if len(found) == len(metric.variables) else frozenset()


@cache
def _only_adds(kind: type, variables: frozenset[str]) -> bool:
    """Tell whether a class of the script's own only ever adds to its ``variables``, and begins at zero."""
    functions = dict(own_functions(kind))
    made = _constants(functions.get("__init__"))
    reset = [*_constants(functions.get("reset_state")), *_constants(functions.get("reset_states"))]
    odd = "ones" in made or any(isinstance(const, (int, float)) and const for const in reset)
    changing = [function for name, function in functions.items() if name not in _ASIDE and name != "__init__"]
    return bool(variables) and not odd and bool(changing) and all(_adds(function, variables) for function in changing)


def _constants(function: Any) -> list[Any]:
    return [const for code in codes_of(function) for const in code.co_consts] if function is not None else []


def _adds(function: Any, variables: frozenset[str]) -> bool:
    """Tell whether all that a function does with the ``variables`` is to call ``assign_add()`` of one."""
    codes = list(codes_of(function))
    for code in codes:
        names = {name for name in code.co_names if name in _STATE or name.startswith(("assign", "scatter", "getattr"))}
        lines = [each for each in dis.get_instructions(code) if each.opname not in _BETWEEN]
        reads = [i for i, each in enumerate(lines) if each.opname in _LOADS and each.argval in variables]
        if names - {"assign_add"} or any(each.opname in _STORED for each in lines):
            return False
        if any(lines[i + 1].opname not in _LOADS or lines[i + 1].argval != "assign_add" for i in reads):
            return False
    return bool(codes)


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
    return (
        not codes
        or any(name in _STATE or name.startswith(("assign", "scatter")) for code in codes for name in code.co_names)
        or any(each.opname in _STORED for code in codes for each in dis.get_instructions(code))
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
