"""Watch a job that has begun: its ranks' output, its signals, its first failure, its exit code."""

from __future__ import annotations

import json
import os
import selectors
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from dlrun.launch.console import Console, OnLine, complain
from dlrun.launch.first_failure import FirstFailure
from dlrun.launch.plan import LaunchPlan
from dlrun.launch.preflight import refusals, warnings
from dlrun.launch.rank_server import Call
from dlrun.launch.result import Failure, Result, keep
from dlrun.launch.signals import Signals
from dlrun.launch.stall import Lookout, missing, verdict
from dlrun.launch.start import Start
from dlrun.launch.start_progress import StartProgress
from dlrun.launch.stdin import Input
from dlrun.rank import wire
from dlrun.rank.proc import unlink_forsaken

_PATIENCE = 1.5  # seconds a launcher gets to end by itself after its ranks have ended


class Run:
    """One job, from its ``start``, which has begun, to the last process's end."""

    def __init__(
        self, plan: LaunchPlan, start: Start, on_line: OnLine | None, on_note: Callable[[str], None] | None
    ) -> None:
        assert plan.ranks
        assert start.launcher
        self.plan, self.ranks, self.start, self.launcher = plan, plan.ranks, start, start.launcher
        self.run_dir = Path(plan.cwd, plan.run_dir)
        self.selector, self.server = start.selector, start.server
        self.server.heard, self.server.lost = self.heard, self.lost
        copy = Path(plan.tee).open("ab", buffering=0) if plan.tee else None  # noqa: SIM115 - the console closes it
        self.console = Console(plan.show or (), on_line, copy)
        self.on_note = on_note or (lambda note: None)
        self.blame = FirstFailure(self.ranks, self.run_dir, plan.show or ())
        self.refusal = ""
        self.asked = 0  # how often the ranks were told to end
        self.input = Input(self.selector, lambda data: self.server.feed(plan.input, data))
        self.told_input = plan.input < 0 or self.input.empty
        self.signals = Signals(plan, self.run_dir, lambda: self.asked, self._stop)
        self.silent: set[int] = set()  # the ranks that talk to nobody, and have run for a while
        self.lookout = Lookout(plan.stall_timeout)
        self.end_by = float("inf")  # then the launcher itself is ended
        self.started = start.started
        self.start_progress = StartProgress(self.ranks, self.started, plan.start_limit, telling=on_note is not None)

    def run(self) -> Result:
        """Stay until the job has ended."""
        wake_in, wake_out = os.pipe()
        os.set_blocking(wake_out, False)
        os.write(wake_out, b"\0")  # the launcher may have ended before its end would wake us
        before = signal.set_wakeup_fd(wake_out)
        self.selector.register(wake_in, selectors.EVENT_READ, lambda: os.read(wake_in, 512))
        try:
            with self.signals.handled():
                try:
                    self._loop()
                finally:
                    self._end_launcher()
        finally:
            self.start.close()
            signal.set_wakeup_fd(before)
            os.close(wake_in)
            os.close(wake_out)
        result = self._result()
        if result.returncode or result.interrupted:  # watchers that the launcher has killed could not do it
            unlink_forsaken(self.start.began)
        return result

    def _loop(self) -> None:
        """Serve what comes until the launcher has ended and every rank has hung up."""
        gone_at = float("inf")
        while True:
            now = time.monotonic()
            deadline = min(
                self.end_by,
                gone_at + _PATIENCE,
                self._start_by(),
                self.signals.due,
                self.lookout.due,
                self.blame.due,
                self.start_progress.due,
                self.input.due,
                self.console.due,
            )
            ready = self.selector.select(min(max(deadline - now, 0), 0.25 if gone_at < now else 5.0))
            for key, _ in ready:
                key.data()
            now = time.monotonic()
            if self.launcher.ended and (gone_at == float("inf") or (ready and not self.asked)):
                gone_at = now  # while they are heard, ranks have time: who reads what is shown may be slow
            if gone_at <= now and (self.server.open == 0 or now > gone_at + _PATIENCE):
                return
            if gone_at == float("inf") and self._over():
                self.end_by = min(self.end_by, now + _PATIENCE)
            self._act_in_time(now)

    def _act_in_time(self, now: float) -> None:
        """Do what is due."""
        self.start_progress.tell(now, 0 if self.asked else len(self.server.missing()))
        if now >= self.console.due:
            self.console.pass_on()
        if now >= self.input.due:
            self.input.wanted()
        if now >= self._start_by():
            self._refuse(
                f"{len(self.server.missing())} of {self.ranks} ranks did not start within "
                f"{self.plan.start_limit:g} s: rank {_list(self.server.missing())}"
            )
        if now >= self.blame.due:
            self._blame()
        if now >= self.signals.due:
            self.signals.act(now)
            self._blame_signal(now)
        if now >= self.lookout.due:
            self._look_for_progress()
        if now >= self.end_by:
            self._end_launcher()

    def heard(self, call: Call, kind: bytes, body: bytes) -> None:
        """Take one message of a rank."""
        if kind in (wire.OUT, wire.ERR):
            self.console.show(call.rank, kind, body)
            self.lookout.moved()
        elif kind == wire.STACK:
            self.lookout.seen(call.rank, call.host, json.loads(body))
        elif kind == wire.HELLO:
            self._roll_call(call)
        elif kind == wire.READS:
            self._reads(call.rank)
        elif kind == wire.TALKS:
            self._note_silent(call.rank, json.loads(body)["talks"])
        elif kind == wire.FAILED and not self.asked:
            self.blame.fails(json.loads(body))
        elif kind == wire.ENDED and self.plan.kind != "command":
            if call.ended and not call.ended["code"] and not call.ended["said"]:
                self._leaves(call)
        elif kind == wire.LEAVES:
            self._leaves(call)
        elif kind == wire.SIGNALLED:
            self.signals.of_rank(call, json.loads(body)["signal"])

    def _reads(self, rank: int) -> None:
        """A script wants standard input: one rank's has it, and the others are told where they read."""
        if rank == self.plan.input:
            self.input.wanted()
        elif not self.told_input:
            self.told_input = True
            self.console.end_line()
            self.on_note(
                f"rank {rank} reads standard input, and finds it empty: it is rank {self.plan.input}'s alone; "
                "give all ranks a file, or have one read and broadcast"
            )

    def _leaves(self, call: Call) -> None:
        """A rank is through, or has said nothing: the others may wait for it, for ever."""
        self.blame.leaves(call)
        self.lookout.suspect()

    def _note_silent(self, rank: int, talks: bool) -> None:
        """Say early what would else be said after hours: the ranks train each a model of its own."""
        if not talks:
            self.silent.add(rank)
        if self.ranks > 1 and len(self.silent) == self.ranks:
            self.console.end_line()
            self.on_note(
                f"after {self.plan.serial_after:g} s no rank has loaded anything to talk to the others with: "
                "if these are copies of a serial script, make it a data-parallel one first (dlrun port)"
            )

    def _look_for_progress(self) -> None:
        """Ask all ranks twice where they stand; tell if nobody has moved in between."""
        if not self.server.complete or self.asked or self._over():
            self.lookout.moved()
        elif self.lookout.look():
            self.lookout.asked = self.server.ask_stacks()
        elif stacks := self.lookout.stalled():
            if all(stack.stuck for stack in stacks.values()) and self.blame.blames_left():
                return
            absent = missing(stacks) or list(stacks.values())
            works = self.plan.on_stall == "abort" and any(stack.works for stack in absent)
            if not self.lookout.told(works):
                return
            still = self.lookout.still()
            self.console.end_line()
            for line in verdict(stacks, still):
                print(line if line.startswith(" ") else f"dlrun: {line}", file=sys.stderr, flush=True)
            if works:
                print("  the job is not ended while it works there", file=sys.stderr, flush=True)
            elif self.plan.on_stall == "abort" and not self.blame.blames_left():
                guilty = absent[0]
                self.blame.fails(
                    {
                        "rank": guilty.rank,
                        "host": guilty.host,
                        "pid": guilty.pid,
                        "where": guilty.own,
                        "what": f"no progress for {still:.0f} s",
                        "code": 124,
                        "time": time.time(),
                    }
                )

    def lost(self, call: Call) -> None:
        """A watcher is gone without a word."""
        if not self.asked:
            self.blame.loses(call)
            if self.server.open == 0:
                self._blame()

    def _roll_call(self, call: Call) -> None:
        if call.size not in (None, self.ranks):
            self._refuse(f"{self.ranks} ranks were asked for, and the launcher started rank {call.rank} of {call.size}")
        elif not self.server.missing() and not self.server.complete:
            facts = [self.server.calls[rank].facts for rank in range(self.ranks)]
            keep(self.run_dir / "ranks.json", json.dumps(facts, indent=1) + "\n")
            for line in warnings(facts, self.plan.nodes, self.plan.local, self.plan.cores or 0):
                self.on_note(line)
            if refused := refusals(facts):
                self._refuse(refused[0])
            else:
                self.server.welcome()

    def _blame(self) -> None:
        """Decide who failed first, and end the job."""
        self.blame.decide()
        if not self.asked:
            self._stop(signal.SIGTERM, self.plan.grace)

    def _blame_signal(self, now: float) -> None:
        """Blame a signal that a rank got, if nothing else explains it."""
        failure = self.signals.failure(now, failing=self.blame.heard)
        if failure and not self.blame.blames_left(silent=True):  # launchers may send it when they miss a rank
            self.blame.fails(failure)

    def _refuse(self, why: str) -> None:
        if not self.refusal:
            self.refusal = why
            self._stop(signal.SIGTERM, self.plan.grace)

    def _stop(self, number: int, grace: float) -> None:
        self.asked += 1
        self.server.stop(number, grace)
        in_time = grace + 0.5 if self.server.complete else 0.0
        self.end_by = min(self.end_by, time.monotonic() + in_time)

    def _start_by(self) -> float:
        waiting = not self.server.complete and not self.asked
        return self.started + self.plan.start_limit if waiting else float("inf")

    def _over(self) -> bool:
        """Return whether every rank has said that it ended."""
        return self.server.complete and all(call.ended for call in self.server.calls.values())

    def _end_launcher(self) -> None:
        self.end_by = float("inf")
        self.start.end_launcher()

    def _result(self) -> Result:
        said = self.launcher.last_words()
        self.console.close()
        self._blame_signal(float("inf"))
        self.blame.decide()
        failure = self._once(self.blame.failure)
        keep(self.run_dir / "launcher.log", said.decode(errors="replace"))
        ended = [call.ended for call in self.server.calls.values() if call.ended]
        code = self.launcher.code
        if failure:
            code = failure.code
        elif self.signals.number:
            code = 128 + self.signals.number
        elif self.refusal:
            code = 1
        elif len(ended) == self.ranks:
            code = max(end["code"] for end in ended)
        else:
            self.refusal = self.refusal or self._unfinished(code)
            code = code or 1
        serial = self.ranks > 1 and len(ended) == self.ranks and not any(end["talked"] for end in ended)
        if failure or self.refusal or self.signals.number or (serial and code == 0):
            self.console.end_line()
        if self.refusal:
            complain(self.refusal, self._hint(), said)
        seconds = time.monotonic() - self.started
        return Result(
            code, self.run_dir, failure, seconds, self.signals.ended, self.signals.ended_by, serial and code == 0
        )

    def _once(self, failure: Failure | None) -> Failure | None:
        """Return the failure without its last lines, where a rank that is shown has said the same: a syntax error."""
        if not failure or not failure.tail:
            return failure
        for rank in self.plan.show or ():
            with suppress(OSError):
                said = (self.run_dir / f"rank-{rank}.log").read_bytes()[-32768:].decode(errors="replace")
                if all(line in said for line in failure.tail):
                    return failure._replace(tail=())
        return failure

    def _hint(self) -> str:
        """Return what to look at where ranks on other nodes did not start."""
        if self.plan.local or not self.server.missing():
            return ""
        here = Path(self.plan.cwd).absolute()
        folders = [here] if self.run_dir.absolute().is_relative_to(here) else [here, self.run_dir.absolute()]
        return f"every node must be there, and see {', '.join(map(str, folders))} and {sys.executable}"

    def _unfinished(self, code: int) -> str:
        if missing := self.server.missing():
            return f"the launcher ended (exit code {code}) before rank {_list(missing)} of {self.ranks} had started"
        unended = [rank for rank, call in self.server.calls.items() if not call.ended]
        return f"the launcher ended (exit code {code}) while rank {_list(unended)} was running"


def _list(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
