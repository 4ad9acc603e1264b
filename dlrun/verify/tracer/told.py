"""The numbers of ranks that a script asks for: which rank it is, and of how many.

A port that shares its data by them shares them also where dl_comm's own sharding is switched off. So a run can tell it
that it is rank 0 of 1, whereupon it repeats the serial run; and where they are part of a loss that is noted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from dlrun.sandbox.imports import AfterImport
from dlrun.verify.tracer.recorder import Recorder

ASKED = {"get_rank": 0, "get_nranks": 1}  # and what a rank is told that is to be alone
OPERATORS = ("add", "floordiv", "mul", "pow", "sub", "truediv")
ARITHMETIC = {
    "add",
    "div",
    "divide",
    "mul",
    "multiply",
    "pow",
    "sub",
    "true_divide",
    *(f"__{n}__" for n in OPERATORS),
    *(f"__r{n}__" for n in OPERATORS),
    *(f"__i{n}__" for n in OPERATORS),
    "add_",
    "div_",
    "mul_",
}


def _told(value: Any) -> Any:
    return Whole(value) if type(value) is int else Part(value) if type(value) is float else value


def _operations(base: type) -> dict[str, Callable[..., Any]]:
    """Return the arithmetic of ``base``, whose results are told numbers again."""

    def of(name: str) -> Callable[..., Any]:
        def told(number: Any, other: Any) -> Any:
            kind = float if isinstance(other, float) else base
            return _told(getattr(kind, name)(kind(number), other))

        return told

    return {name: of(name) for operator in OPERATORS for name in (f"__{operator}__", f"__r{operator}__")}


class Whole(int):
    """A rank's number or the number of ranks, or what was computed of them."""


class Part(float):
    """What was computed of such numbers, with a fraction."""


for kind in (Whole, Part):
    for name, operation in _operations(kind.__base__).items():  # type: ignore[arg-type]
        setattr(kind, name, operation)


def is_part(name: str, args: Any, result: Any) -> bool:
    """Whether a function of PyTorch's makes such a number part of what a backward will go through."""
    given = any(isinstance(value, (Whole, Part)) for value in args)
    return given and name in ARITHMETIC and bool(getattr(result, "requires_grad", False))


def tell(recorder: Recorder, face: ModuleType) -> None:
    """Tell the script its numbers from now on, and note that it asks."""
    for name, alone in ASKED.items():
        if asked := vars(face).get(name):
            setattr(face, name, _telling(recorder, asked, alone if recorder.orders.alone else None))


def tell_of_mpi(recorder: Recorder) -> None:
    """Note that the script takes its numbers from mpi4py, too; a rank that is to be alone is so there as well."""

    def loaded(mpi: ModuleType) -> None:
        recorder.note("asked")
        if recorder.orders.alone:
            vars(mpi)["COMM_WORLD"] = vars(mpi)["COMM_SELF"]

    sys.meta_path.insert(0, AfterImport("mpi4py.MPI", loaded))


def _telling(recorder: Recorder, function: Callable[[], int], number: int | None) -> Callable[[], int]:
    noted = False

    def told() -> int:
        nonlocal noted
        if not noted:
            noted = True
            recorder.note("asked")
        return Whole(function() if number is None else number)

    told.__doc__ = function.__doc__
    return told
