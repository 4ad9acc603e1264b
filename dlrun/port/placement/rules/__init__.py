"""What libraries do to placements, as data: a row a name, looked up by qualified name, then by the method's last name.

What only computes needs no row: of Same it makes Same, of an Entry an Entry. Rows are about what adds up, counts,
keeps, shows, or differs between ranks by itself.
"""

from __future__ import annotations

from dlrun.port.placement.rules import libraries, python, tensors
from dlrun.port.placement.rules.rows import Row

_FUNCTIONS: dict[str, Row] = {**python.FUNCTIONS, **tensors.FUNCTIONS, **libraries.FUNCTIONS}
_METHODS: dict[str, Row] = {**python.METHODS, **tensors.METHODS, **libraries.METHODS}
_PREFIXES: tuple[tuple[str, Row], ...] = (*python.PREFIXES, *tensors.PREFIXES, *libraries.PREFIXES)

# What reads the order of a list that it is given; other functions make the same of any order, or hand it on.
IN_ORDER = {
    *("builtins.enumerate", "builtins.reversed", "itertools.accumulate", "itertools.pairwise", "numpy.diff"),
    *("numpy.cumsum", "numpy.argmax", "numpy.argmin", "numpy.convolve", "numpy.gradient", "torch.cumsum", "torch.diff"),
}
# The libraries whose random numbers follow a seed that a script sets for the whole process.
DRAWING = ("random", "numpy", "torch", "tensorflow", "keras")


def of_function(name: str) -> Row | None:
    """Return the row of a function or class by its qualified name: ``numpy.mean``."""
    if name in _FUNCTIONS:
        return _FUNCTIONS[name]
    return next((row for prefix, row in _PREFIXES if name.startswith(prefix)), None)


def of_object(name: str) -> Row | None:
    """Return the row of the objects that a function or class of this qualified name makes: loggers, boards."""
    return next((row for prefix, row in libraries.OBJECTS if name.startswith(prefix)), None)


def of_method(name: str) -> Row | None:
    """Return the row of a method by its name: ``append``, ``item``."""
    return _METHODS.get(name)


def sums_in(name: str, attribute: str) -> bool:
    """Tell whether objects of the class of this qualified name keep a sum in the attribute of that name."""
    return of_function(name) is Row.STATE and attribute in libraries.SUMS


def leaves_memory(name: str) -> bool:
    """Tell whether a function makes an array that holds what the memory does: ``numpy.empty``."""
    return name.rpartition(".")[2] in ("empty", "empty_like")


def is_sum(name: str) -> bool:
    """Tell whether the result of a metric of the class of this qualified name is a sum."""
    return name.rpartition(".")[2] in libraries.SUMMING


def functions() -> dict[str, Row]:
    """Return the rows of functions and classes, by qualified name."""
    return dict(_FUNCTIONS)


def methods() -> dict[str, Row]:
    """Return the rows of methods, by name."""
    return dict(_METHODS)


__all__ = [
    "DRAWING",
    "IN_ORDER",
    "Row",
    "functions",
    "is_sum",
    "methods",
    "of_function",
    "of_method",
    "of_object",
    "sums_in",
]
