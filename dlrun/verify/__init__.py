"""Proves that a port does what its serial script does, by running both for a few steps and comparing.

``runs`` starts a script under ``tracer``, which writes a ``trace``; ``checks`` ask traces one question each and
``compare`` puts the answers together, both without starting anything; ``verdict`` is what comes out, ``report`` shows
it. ``job`` is the order of it all::

    verdict = verify(Job(Path("train.py"), Path("train_dist.py"), ranks=2), Path("/tmp/somewhere"))
    verdict.proved, verdict.faults

The checks rest on three facts. On 1 rank a port must change no bit. The mean of n equal gradients is that gradient,
exactly for n a power of two, so n ranks that repeat the serial run must change no bit either. And n ranks with their
own samples must hold the same bits as each other after every update, made from the mean of their gradients.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dlrun.verify.job import Job, verify
    from dlrun.verify.verdict import Check, Verdict

__all__ = ["Check", "Job", "Verdict", "verify"]
HOMES = {"Job": "job", "verify": "job", "Check": "verdict", "Verdict": "verdict"}


def __getattr__(name: str) -> Any:
    """Import what is asked for: each rank of each run imports the tracer alone."""
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{HOMES[name]}"), name)
