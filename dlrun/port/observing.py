"""``dlrun port --observe``: what a serial run of a few steps says about a script, for the passes to read."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import libcst as cst

from dlrun.errors import DlrunError
from dlrun.package import home_of
from dlrun.port import tracer
from dlrun.port.program.script import Script

# The longest that a script may take to its first steps.
_LONGEST_S = 600


@dataclass(frozen=True)
class Place:
    """One call at which something happened: what (module, optimizer, loader, iterate, backward, step, save, print).

    ``line`` and ``column`` (from 0; -1 where the interpreter does not tell) begin the call, ``end`` is its last line.
    """

    what: str
    file: str
    line: int
    column: int
    end: int
    times: int


@dataclass(frozen=True)
class Observed:
    """What happened in a run: the places, how many optimizer steps it made, and why it ended."""

    places: tuple[Place, ...]
    steps: int
    ended: str

    def calls(self, script: Script, what: str) -> Iterator[tuple[cst.Call, Place]]:
        """Yield the calls of ``script`` at which ``what`` happened: those that the interpreter pointed to."""
        files = {file if tree is not script.module else "": tree for tree, file in script.files.items()}
        for place in self.places:
            tree = files.get(place.file)
            if place.what == what and tree is not None:
                for call in script.calls:
                    if script.tree_of(call) is tree and _is_at(script, call, place):
                        yield call, place
                        break

    def by_call(self, script: Script) -> dict[cst.Call, set[str]]:
        """Return what happened at each call of ``script``, of the things that decide how it is ported."""
        found: dict[cst.Call, set[str]] = {}
        for what in ("optimizer", "loader", "module", "backward", "step"):
            for call, _ in self.calls(script, what):
                found.setdefault(call, set()).add(what)
        return found


def _is_at(script: Script, call: cst.Call, place: Place) -> bool:
    start = script.where(call).start
    return start.line == place.line and (
        place.column < 0 or (start.column == place.column and script.where(call).end.line == place.end)
    )


def observe(path: Path, args: Sequence[str], steps: int) -> Observed:
    """Run the script at ``path`` with ``args`` for ``steps`` optimizer steps under the tracer, and return what it saw.

    Raises:
        DlrunError: the script ends without a step, or takes longer than ten minutes for them.
    """
    with tempfile.TemporaryDirectory() as scratch:
        result = Path(scratch) / "places"
        command = [sys.executable, tracer.__file__, str(result), str(steps), str(path), *args]
        try:
            done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=_LONGEST_S)
        except subprocess.TimeoutExpired:
            raise DlrunError(
                f"{path}: made fewer than {steps} optimizer steps in {_LONGEST_S} s.",
                "Observe it on less data, or fewer steps.",
            ) from None
        if not result.exists():
            said = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
            raise DlrunError(
                f"{path}: cannot be observed: {' '.join(said) or f'exit code {done.returncode}'}.",
                f"Run it by itself first: python {shlex.quote(str(path))}",
            )
        head, *lines = [json.loads(line) for line in result.read_text().splitlines()]
    folder = home_of(path.resolve(), path.read_bytes()).folder
    places = []
    for line in lines:
        file = Path(line["file"]).resolve()
        name = "" if file == path.resolve() else file.relative_to(folder).as_posix()
        begin, column, end, _ = line["at"]
        places.append(Place(line["what"], name, begin, column, end, line["times"]))
    if not head["steps"]:
        command_line = f"dlrun port --observe {shlex.quote(str(path))} -- ARGS"
        raise DlrunError(
            f"{path}: ended without an optimizer step: {head['ended']}.",
            f"Give it the arguments it trains with: {command_line}",
        )
    return Observed(tuple(places), head["steps"], head["ended"])
