"""Values that training computes in one step and uses in a later one, whatever the framework: what each is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from dlrun.verify.tracer.recorder import Recorder, running, user_frame

KEPT = "kept"
NAMED = 200  # of the script's names that are followed at most


@dataclass(eq=False)
class Value:
    """What is in a tensor and its views: the rounds of its making and last change, and what of earlier rounds is in it.

    ``made_of``: by arithmetic; ``holds``: copied, as into a queue. ``reduced``: a sum or mean over samples is in it.
    ``accumulates``: its new value is computed from its old one, round after round. ``noise``: draws, (line, hash of
    what was drawn). ``given``: a model takes it as an input, as a hidden state.
    """

    born: int
    round: int
    made_of: frozenset[Value] = frozenset()
    holds: frozenset[Value] = frozenset()
    reduced: bool = False
    accumulates: bool = False
    given: bool = False
    generation: int = 0  # of values that were made of a value of an earlier round, which was made so, ...
    noise: frozenset[tuple[str, str]] = frozenset()
    at: str = ""
    name: str = ""
    note: dict[str, Any] | None = field(default=None, repr=False)

    def change(self, made: Value, moves: bool, renews: bool) -> None:
        """Take in what a function made, which changed this value in place; ``renews``: nothing of the old one stays."""
        if renews:
            self.born, self.made_of, self.holds = made.round, made.made_of, made.holds
            self.reduced, self.accumulates = made.reduced, self in made.made_of
        else:
            again = 0 < self.round < made.round or self.accumulates
            self.accumulates |= (again and not moves) or self in made.made_of
            self.made_of, self.holds = self.made_of | made.made_of, self.holds | made.holds
            self.reduced |= made.reduced
        self.generation = max(self.generation, made.generation)
        self.round, self.at = made.round, line()


def made(round: int, known: list[Value], moves: bool, over_samples: bool) -> Value:
    """Return what a function makes of these values in a round; ``moves``: it copies, and computes nothing."""
    old = frozenset(v for v in known if v.round and (v.born < round or v.accumulates))
    made_of: frozenset[Value] = frozenset().union(*(v.made_of for v in known))
    holds: frozenset[Value] = old.union(*(v.holds for v in known))
    value = Value(round, round, made_of, holds)
    value.reduced = over_samples or any(v.reduced for v in known)
    value.generation = max((v.generation for v in known), default=0)
    if not moves:
        value.made_of, value.holds = made_of | holds, frozenset()
        value.generation = max([value.generation, *(v.generation + 1 for v in holds)])
    return value


def kind_of(value: Value) -> str:
    """Return ``accumulated``, ``reduced`` (over samples), or ``kept``, as a queue keeps what it was given.

    Samples that each step draws from those of the last one, each from its own (Markov chains), are kept, too.
    """
    chain = bool(value.noise) and not value.reduced
    return "accumulated" if value.accumulates and not chain else "reduced" if value.reduced else KEPT


def note_carried(recorder: Recorder, losses: list[Value], round: int) -> None:
    """Note what is in losses of earlier rounds, and what was drawn for them.

    What was only kept, as a queue keeps samples, is left out: that is local.
    """
    used = frozenset().union(*(v.made_of | v.holds for v in losses))
    kept = {
        value.name: {
            "kind": kind_of(value),
            "note": value.note,
            "at": value.at,
            "own": value.given and not value.reduced,
        }
        for value in sorted((v for v in used if v.note and kind_of(v) != KEPT), key=lambda v: (v.round, v.name))
    }
    noise = sorted(frozenset().union(*(v.noise for v in losses)))
    if kept or noise:
        recorder.note("carried", tensors=kept, noise=noise if round else [])


def keep_names(
    of: Callable[[Any], Value | None], below: Callable[..., Iterable[Any]], note: Callable[..., Any]
) -> None:
    """After a step: keep the names and contents of what the script has kept.

    ``below(name, value, depth)`` yields the tensors in a value, each with its name.
    """
    found: dict[Value, tuple[str, Any]] = {}
    for name, tensor in _named(below):
        value = of(tensor)
        if value is not None and value.round > 0 and len(found) < NAMED:
            found[value] = (name, tensor)
    for value, (name, tensor) in found.items():
        value.name, value.note = name, note(tensor)


def _named(below: Callable[..., Iterable[Any]]) -> Iterator[tuple[str, Any]]:
    """Yield the tensors to which the script's running functions, and its globals, have a name, and those names."""
    for space in running():
        for name, value in list(space.items()):
            yield from below(name, value, 2)


def line() -> str:
    """Return the line of the user's script that is running."""
    frame = user_frame()
    return f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno}" if frame else ""
