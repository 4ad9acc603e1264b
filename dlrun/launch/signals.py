"""Being told to end or to save: by a signal to ``dlrun launch`` itself, or to one of its ranks.

Batch systems signal whom they please: the batch script's shell, ``dlrun launch`` in it, or every process of the job
(Slurm's ``--signal`` without ``B:``, ``scancel``, preemption). All of it means the same here.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dlrun.launch.plan import LaunchPlan
from dlrun.launch.rank_server import Call
from dlrun.rank.script import EARLY_WARNINGS

END = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SAVE = EARLY_WARNINGS  # the job is to save, and may go on
_WAIT = 0.5  # seconds in which a rank's SIGTERM may find its reason: launchers send it when another rank fails


class Signals:
    """What signals ask for: to save and stop, where the script asks ``should_stop()``, else to end; twice, to end now.

    ``stop(signal, grace)`` ends the ranks, ``asked`` says how often that has been done. ``due`` is when :meth:`act` or
    :meth:`failure` has something to say.
    """

    def __init__(
        self, plan: LaunchPlan, run_dir: Path, asked: Callable[[], int], stop: Callable[[int, float], None]
    ) -> None:
        self.plan, self.run_dir, self.asked, self.stop = plan, run_dir, asked, stop
        self.number = 0  # the signal that ended the job
        self.saving = ""  # the one that made the ranks save and stop
        self._save_by = float("inf")
        self._of_rank: tuple[float, Call | None, int] = (float("inf"), None, 0)

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Take this process's signals while the block runs, but for a hang-up that ``nohup`` has it ignore."""
        outlives = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
        taken = [number for number in (*END, *SAVE) if not (outlives and number == signal.SIGHUP)]
        handlers = {number: signal.signal(number, self.received) for number in taken}
        handlers[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: None)  # wakes the selector
        try:
            yield
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)

    @property
    def due(self) -> float:
        """When there is something to do."""
        return min(self._save_by, self._of_rank[0])

    @property
    def ended(self) -> bool:
        """Whether a signal ended the job, or had its ranks save and stop."""
        return bool(self.number) or (bool(self.saving) and self.listening)

    @property
    def ended_by(self) -> int:
        """The number of that signal; 0: there was none."""
        if self.number or not self.ended:
            return self.number
        return signal.Signals[self.saving.split()[0]]

    @property
    def listening(self) -> bool:
        """Whether the script asks ``should_stop()``: it has left the file ``listens`` in the run directory."""
        return (self.run_dir / "listens").exists()

    def received(self, number: int, _: object = None) -> None:
        """Ctrl-C, or the batch system wants us gone."""
        if not self.asked() and not self.saving and (self.listening or number in SAVE):
            self._save(signal.Signals(number).name)
        elif number in END:
            self.number = self.number or number
            first = not self.asked()
            self.stop(number if first else signal.SIGKILL, 2.0 if first else 0.0)

    def of_rank(self, call: Call, number: int) -> None:
        """A rank was signalled. An early warning counts at once, and once; an end waits for its reason, if any."""
        if self.asked() or self.saving:
            return
        if number in SAVE:
            self._save(f"{signal.Signals(number).name} to rank {call.rank}")
        elif self._of_rank[0] == float("inf"):
            self._of_rank = (time.monotonic() + _WAIT, call, number)

    def act(self, now: float) -> None:
        """End the ranks, where they have not saved in time."""
        if now >= self._save_by:
            self._save_by = float("inf")
            self.number = signal.SIGTERM
            self.stop(signal.SIGTERM, self.plan.grace)

    def failure(self, now: float, failing: bool) -> dict[str, Any] | None:
        """Return the failure of a rank that somebody ended, once that is sure; None where the job is ``failing``."""
        when, call, number = self._of_rank
        if now < when:
            return None
        self._of_rank = (float("inf"), call, number)
        if not call or failing or self.asked() or self.saving:
            return None
        name = signal.Signals(number).name
        if self.listening and not call.ended:
            self._save(f"{name} to rank {call.rank}")
            return None
        return {
            "rank": call.rank,
            "host": call.host,
            "pid": call.pid,
            "what": f"somebody sent it {name}",
            "where": "",
            "code": 128 + number,
            "time": time.time(),
        }

    def _save(self, why: str) -> None:
        """Have the ranks save and stop: the file ``stop`` tells a script that asks ``should_stop()``."""
        self.saving = why
        unseen = self.run_dir / "stop.new"  # who sees the file finds the signal's name in it
        try:
            unseen.write_text(why.split()[0] + "\n")
            unseen.replace(self.run_dir / "stop")
        except OSError as error:
            print(f"dlrun: {why}: the ranks cannot be told to save ({self.run_dir}: {error.strerror})", file=sys.stderr)
            return
        if self.listening:
            self._save_by = time.monotonic() + self.plan.save_time
            told = f"the ranks save and stop; they have {self.plan.save_time:g} s"
        else:
            told = "the script does not ask should_stop(), so nothing is saved, and it goes on"
        print(f"dlrun: {why}: {told}", file=sys.stderr, flush=True)
