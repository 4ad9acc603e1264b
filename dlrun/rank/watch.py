"""The watcher: keeps a rank's script, its output and its end."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import time
from typing import Any

from dlrun.rank import saving, wire
from dlrun.rank.communicating import may_spin, talks
from dlrun.rank.log import TAIL, Log, crashed_at
from dlrun.rank.proc import catches, children, seconds_of, stopped, unlink_forsaken, unlink_segments
from dlrun.rank.script import EARLY_WARNINGS, STACK_SIGNAL
from dlrun.rank.stdin import Feed

_PASSES = 32  # readings of the script's output before signals, and what dlrun launch says, have their turn
GRACE = 1.0  # seconds between the signal that asks a script to end and the one that ends it
# What others may send a watcher. Its starter blocks them from before the fork until they are handled.
ENDS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
FORWARDED = (*ENDS, *EARLY_WARNINGS)


class Watcher:
    """Watches one script until it and everything it started is gone.

    ``streams`` maps the read ends of the script's output pipes to the wire's kinds. The watcher writes the log, for a
    full disk does not end it, as it would a script; what is to be ``shown`` it sends on by ``server``, the connection
    to ``dlrun launch``, or where there is none, by its own output, which the launcher forwards.
    """

    def __init__(
        self,
        rank: int,
        script: int,
        report: int,
        log: Log,
        streams: dict[int, bytes],
        shown: bool,
        server: socket.socket | None,
        serial_after: float,
    ) -> None:
        self.rank, self.script, self.report, self.log = rank, script, report, log
        self.streams, self.shown, self.server = streams, shown, server
        self.reader = wire.Reader()
        self.feed: Feed | None = None
        self.since = time.time()
        self.kill_at = float("inf")
        self.look_at = time.monotonic() + serial_after if server else float("inf")  # whether the script talks to others
        self.orphaned = False  # ``dlrun launch`` is dead
        self.stopped = False  # the script was told to end: its end is no failure
        self.failure: dict[str, Any] = {}
        self.talked = True
        self.said = False  # whether the script has said how it ended; one that os._exit() ends does not
        self.left = ""  # where it called sys.exit(0), or os._exit()
        self.poll = select.poll()
        for fd in (report, *streams, *([server.fileno()] if server else [])):
            os.set_blocking(fd, False)
            self.poll.register(fd, select.POLLIN)
        if server:
            server.setblocking(True)
        self.received: set[int] = set()
        self.signalled: list[int] = []  # by somebody else; acted on in the loop, not in the middle of a message
        self.wake, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake)
        self.poll.register(self.wake, select.POLLIN)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in FORWARDED:
            signal.signal(number, lambda number, _: self.signalled.append(number))

    def feeds(self, fd: int, at_once: bool) -> None:
        """Write what ``dlrun launch`` reads into ``fd``, the script's input; ``at_once``, or when the script asks."""
        self.feed = Feed(fd, self.poll, lambda: self._send(wire.READS, {}))
        if at_once:
            self.feed.ask()

    def run(self) -> int:
        """Watch until the script has ended; return its exit code (128 + signal)."""
        status = None
        while status is None:
            wait = min(min(self.kill_at, self.look_at) - time.monotonic(), 60.0)
            for fd, _ in self.poll.poll(max(wait, 0) * 1000):
                self._serve(fd)
            while self.signalled:
                self._pass_signal_on(self.signalled.pop(0))
            if time.monotonic() >= self.kill_at:
                self._signal(signal.SIGKILL)
                self.kill_at = float("inf")
            if time.monotonic() >= self.look_at:
                self.look_at = float("inf")
                self._send(wire.TALKS, {"talks": talks(self.script)})
            done, raw = os.waitpid(self.script, os.WNOHANG)
            status = raw if done else None
        code = os.waitstatus_to_exitcode(status)
        for fd in (*self.streams, self.report):
            self._serve(fd)
        self._end_descendants()
        if code or self.stopped:
            unlink_forsaken(self.since)
        if self.orphaned:
            saving.clear(os.environ["DLRUN_RUN_DIR"])
        return self._conclude(code if code >= 0 else 128 - code, -code if code < 0 else 0)

    def _serve(self, fd: int) -> None:
        if fd == self.wake:
            os.read(fd, 512)
        elif fd == self.report:
            self._hear_script()
        elif self.feed and fd == self.feed.fd:
            self.feed.write()
        elif self.server and fd == self.server.fileno():
            self._hear_home()
        else:
            self._pass_on(fd)

    def _pass_on(self, fd: int) -> None:
        """Move what the script wrote to the log and to the console; not for ever, of one that never ceases to write."""
        with contextlib.suppress(BlockingIOError):
            for _ in range(_PASSES):
                if not (data := os.read(fd, 65536)):
                    self._forget(fd)
                    os.close(fd)
                    del self.streams[fd]
                    return
                self._show(wire.ERR, self.log.write(data))
                if self.shown:
                    self._show(self.streams[fd], data)

    def _show(self, stream: bytes, data: bytes) -> None:
        if self.server and data:
            self._send(stream, data)
        elif data:
            os.write(1 if stream == wire.OUT else 2, data)

    def _hear_script(self) -> None:
        try:
            lines = os.read(self.report, 65536).splitlines()
        except BlockingIOError:
            return
        except ConnectionResetError:  # it has ended, and has not read the answer below
            lines = []
        if not lines:
            self._forget(self.report)
        for line in lines:
            said = json.loads(line)
            if "reads" in said:
                self._send(wire.READS, {})
                continue
            if "sudden" in said:
                if not self.said:  # an exit hook ends what has said where it left
                    self.left = said["sudden"]
                continue
            self.said, self.talked = True, said.get("talked", self.talked)
            self.left = said.get("left", self.left)
            if "what" not in said:
                self._send(wire.LEAVES, {"left": self.left})
            else:
                for fd in list(self.streams):  # its traceback first: nothing is sure after the failure is known
                    self._pass_on(fd)
                self._fail(said)
                with contextlib.suppress(OSError):
                    os.write(self.report, b".")

    def _hear_home(self) -> None:
        assert self.server
        try:
            data = self.server.recv(65536)
        except OSError:
            data = b""
        if not data:
            self._orphaned()
        for kind, body in self.reader.feed(data):
            if kind == wire.STOP:
                order = json.loads(body)
                self._stop(order["signal"], order["grace"])
            elif kind == wire.IN and self.feed:
                self.feed.take(body)
            elif kind == wire.ASK:
                self._ask_stack()

    def _ask_stack(self) -> None:
        """Have the script write its stack, and send it on."""
        path = f"{os.environ['DLRUN_RUN_DIR']}/rank-{self.rank}.stack"
        if not os.path.exists(path):  # noqa: PTH110 - no Python script, or not yet
            return
        size = before = os.path.getsize(path)  # noqa: PTH202
        self._signal(STACK_SIGNAL)
        for _ in range(150 if not stopped(self.script) else 0):
            time.sleep(0.01)
            last, size = size, os.path.getsize(path)  # noqa: PTH202
            if size == last > before:  # it comes line by line, and is whole when it has stopped to grow
                break
        with open(path) as file:  # noqa: PTH123
            file.seek(before)
            dump = file.read()
        lines = []
        with contextlib.suppress(OSError), open(path.removesuffix("stack") + "call") as file:  # noqa: PTH123
            lines = file.read().splitlines()
        *calls, begun = lines or [""]
        own, below, child = seconds_of(self.script)
        self._send(
            wire.STACK,
            {
                "pid": self.script,
                "dump": dump,
                "call": calls[0] if calls else "",
                "begun": begun,
                "stopped": stopped(self.script),
                "written": self.log.size(),
                "seconds": [time.monotonic(), own, below],
                "child": child,
                "spins": may_spin(self.script),
            },
        )

    def _orphaned(self) -> None:
        """``dlrun launch`` is dead, and with it the job."""
        assert self.server
        self._forget(self.server.fileno())
        self.server, self.orphaned = None, True
        self._stop(signal.SIGTERM, GRACE)

    def _forget(self, fd: int) -> None:
        with contextlib.suppress(KeyError):
            self.poll.unregister(fd)

    def _stop(self, number: int, grace: float) -> None:
        self.stopped = True
        unlink_segments(self.script)
        self.kill_at = min(self.kill_at, time.monotonic() + grace)
        if not self.failure:  # a script that has failed is on its way out, through its exit hooks
            self._signal(number)

    def _pass_signal_on(self, number: int) -> None:
        """Somebody else, a batch system perhaps, sent us a signal: ``dlrun launch`` decides what all ranks do.

        A script that has a handler for it gets it, too; one that has none would simply die.
        """
        ends = number in ENDS
        self.received.add(number)
        if self.server:
            self._send(wire.SIGNALLED, {"signal": number})
        elif ends:
            self._stop(number, 2 * GRACE)
        if not ends and (not self.server or catches(self.script, number)):
            self._signal(number)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.script, number)

    def _fail(self, failure: dict[str, Any]) -> None:
        """Tell ``dlrun launch`` at once, before the exit hooks of the script, which may never end."""
        if self.stopped or self.failure:
            return
        trace = failure.pop("trace", [])
        self.failure = {
            "rank": self.rank,
            "host": socket.gethostname(),
            "pid": self.script,
            "time": time.time(),
            "tail": [] if self.shown else trace[-TAIL:] or self.log.tail(),
            **failure,
        }
        self._send(wire.FAILED, self.failure)

    def _conclude(self, code: int, number: int) -> int:
        if number in ENDS and number not in self.received and not self.stopped:
            self._send(wire.DIES, {"what": f"killed by {signal.Signals(number).name}", "code": code})
            time.sleep(0.1)  # who ends a script by this may send it to all its group, and ours has not been told yet
        while self.signalled:
            self._pass_signal_on(self.signalled.pop(0))
        if code and not self.failure and number not in self.received:
            known = number in {int(each) for each in signal.Signals}
            name = signal.Signals(number).name if known else f"signal {number}" if number else ""
            what, tail = f"killed by {name}" if name else f"exit code {code}", self.log.tail()
            place = crashed_at(tail) or (self.left if not number and not self.said else "")
            if self.left and any("calls finalize" in line for line in tail):  # dl_comm's words: the others went on
                what, place = "sys.exit(0) in the middle of the job", self.left
            self._fail({"what": what, "where": place, "code": code})
        code = self.failure.get("code", code)
        if self.failure:
            folder = os.environ["DLRUN_RUN_DIR"]
            with contextlib.suppress(OSError), open(f"{folder}/rank-{self.rank}.failure.json", "w") as file:  # noqa: PTH123
                json.dump(self.failure, file, indent=1)
        self._send(wire.ENDED, {"code": code, "talked": self.talked, "said": self.said, "left": self.left})
        return code

    def _send(self, kind: bytes, payload: bytes | dict[str, Any]) -> None:
        if self.server:
            try:
                self.server.sendall(wire.pack(kind, payload))
            except OSError:
                self._orphaned()

    def _end_descendants(self) -> None:
        """Kill what the script left running: its orphans become the watcher's children (it is their subreaper)."""
        for _ in range(100):
            left = children(os.getpid())
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            if not left:
                return
            time.sleep(0.01)
