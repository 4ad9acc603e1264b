"""The trials as JSON lines: a head that says what is searched, then one line per outcome."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dlrun import textfile
from dlrun.errors import DlrunError
from dlrun.tune.search import Outcome, Trial

FORMAT = "dlrun tune 1"
_BEGINS = '{"format": "dlrun tune '


def as_line(outcome: Outcome) -> str:
    """One outcome as a line of JSON."""
    return json.dumps(asdict(outcome)) + "\n"


def head_of(path: Path) -> dict[str, Any]:
    """The head of the journal at `path`; empty where there is none."""
    line, newline, _ = _text(path).partition("\n")
    return dict(json.loads(line)) if newline else {}


def _text(path: Path) -> str:
    """What the journal holds, "" where there is none; raises DlrunError for a file of another kind."""
    text = textfile.read(path) if path.exists() else ""
    if not (text.startswith(_BEGINS) or _BEGINS.startswith(text)):  # the latter: its head was cut off
        raise DlrunError(f"{path} is no journal of dlrun tune", "name another file with --journal; this one stays")
    return text


def outcome_of(value: dict[str, Any]) -> Outcome:
    """The outcome that `as_line` wrote."""
    trial = value["trial"]
    settings = tuple((name, setting) for name, setting in trial["settings"])
    facts = tuple((name, fact) for name, fact in value["facts"])
    return Outcome(
        Trial(settings, trial["stage"], trial["turn"]),
        value["value"],
        value["cost"],
        tuple(value["samples"]),
        value["error"],
        facts,
    )


class Journal:
    """A file that holds every outcome as soon as it is known; what it holds already is `outcomes`.

    A line cut off by an interruption is dropped. A file that was written for another search is refused, and the part
    of the head that differs is named.
    """

    def __init__(self, path: Path, head: dict[str, Any]) -> None:
        self.path = path
        self.outcomes: list[Outcome] = []
        # Through JSON, so that tuples and lists compare alike.
        head = json.loads(json.dumps({"format": FORMAT, **head}))
        lines = _text(path).splitlines(keepends=True)
        whole = [line for line in lines if line.endswith("\n")]
        if not whole:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(head) + "\n")
            return
        self._check(json.loads(whole[0]), head)
        self.outcomes = [outcome_of(json.loads(line)) for line in whole[1:]]
        if len(whole) < len(lines):
            path.write_text("".join(whole))

    def _check(self, found: dict[str, Any], head: dict[str, Any]) -> None:
        if found != head:
            name, then, now = _difference(found, head)
            raise DlrunError(
                f"{self.path} is the journal of another search: {name} was {_shown(then)}, and is {_shown(now)} now",
                "name another file with --journal, or delete this one",
            )

    def add(self, outcome: Outcome) -> None:
        """Keep one more outcome, on the disk before this returns."""
        with self.path.open("a") as file:
            file.write(as_line(outcome))
            file.flush()
            os.fsync(file.fileno())
        self.outcomes.append(outcome)


def _difference(found: Any, head: Any, name: str = "") -> tuple[str, Any, Any]:
    """Return what two heads differ in first: its name, and both values."""
    if not (isinstance(found, dict) and isinstance(head, dict)):
        return name, found, head
    name = next(n for n in {**head, **found} if found.get(n) != head.get(n))
    return _difference(found.get(name), head.get(name), name)


def _shown(value: Any) -> str:
    return "not set" if value in (None, "", []) else ", ".join(value) if isinstance(value, list) else str(value)
