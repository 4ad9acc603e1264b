"""Right ports are changed: what is planted in them, and what is to be said of it."""

from __future__ import annotations

from dataclasses import dataclass

BACKWARD = "        loss.backward()\n"
STEP = "        optimizer.step()\n"
SHARD = "train_loader = dl.shard(train_loader)\n"
APART = ("same parameters", "state and copies", "same steps")  # what follows from different parameters


@dataclass(frozen=True)
class Fault:
    """A mutation of the right port: pairs of (text, replacement), and what is to be reported where."""

    name: str
    edits: tuple[tuple[str, str], ...]
    check: str
    where: str = ""  # text of the line that is blamed
    follow: tuple[str, ...] = ()  # names of checks that fail as a consequence


def mutated(port: str, fault: Fault) -> str:
    for text, replacement in fault.edits:
        assert text in port, f"{text!r} is not in the right port"
        port = port.replace(text, replacement)
    return port
