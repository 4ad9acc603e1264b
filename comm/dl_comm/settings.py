"""The DL_COMM_* variables that Python reads; the core reads the others (``src/settings.h``). README.md lists all."""

from __future__ import annotations

from collections.abc import Mapping

from dl_comm.errors import CommError


def number(environment: Mapping[str, str], variable: str, default: float, *, whole: bool = False) -> float:
    """Return the number above 0 that a variable holds. Raises CommError that names it and what it holds instead."""
    text = environment.get(variable, "")
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf") or (whole and value != int(value)):
        raise CommError(f"{variable} is '{text}'", f"it takes a {'whole ' if whole else ''}number above 0")
    return value


def threads(environment: Mapping[str, str]) -> int:
    """Return how many threads a team gets that nobody gave a number: as ``default_nthreads`` in ``src/settings.h``."""
    return int(number(environment, "DL_COMM_DEFAULT_NTHREADS", 4, whole=True))


def flag(environment: Mapping[str, str], variable: str) -> bool:
    """Return whether a variable is 1 rather than 0 or missing. Raises CommError that names it and what it holds."""
    text = environment.get(variable, "")
    if text not in ("", "0", "1"):
        raise CommError(f"{variable} is '{text}'", "it takes 0 or 1")
    return text == "1"


def window(environment: Mapping[str, str], variable: str) -> tuple[int, float]:
    """Return the steps ``FIRST:LAST`` that a variable holds; without one of them, 0 and infinity."""
    text = environment.get(variable, "")
    first, _, last = text.partition(":")
    if not all(part.isdecimal() or not part for part in (first, last)):
        raise CommError(f"{variable} is '{text}'", "it takes FIRST:LAST, numbers of steps, as in 100:120")
    return int(first or 0), float(last or "inf")
