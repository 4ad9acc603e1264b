"""``python -m dlrun.rank --spec FILE -- script args``: join ``dlrun launch``, take a place, run the script."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import select
import signal
import socket
import sys
import time
import zlib
from collections.abc import Mapping
from typing import Any

from dlrun import __version__
from dlrun.rank import torchrun, wire
from dlrun.rank.gpus import gpus, visible
from dlrun.rank.identity import Identity, identity
from dlrun.rank.log import Log
from dlrun.rank.pinning import pin
from dlrun.rank.script import run
from dlrun.rank.watch import FORWARDED, Watcher

_PR_SET_CHILD_SUBREAPER = 36
_CONNECT_S = 16.0  # a call that the system drops is made again after 1, 3, 7 and 15 s
_NEXT_S = 0.25  # without an answer, until the next address is called, too
_AT_START = ("PYTHON", "LD_", "GLIBC_", "MALLOC_")
_AGAIN = "DLRUN_AGAIN"
_CALLS = 8  # before a rank gives up: the last waits for 6 to 13 s


def main(argv: list[str]) -> int:
    """Be one rank; return its exit code."""
    if len(argv) < 4 or argv[0] != "--spec" or argv[2] != "--":
        sys.exit("usage: python -m dlrun.rank --spec FILE -- script [args]; `dlrun launch` writes such lines")
    try:
        with open(argv[1]) as file:  # noqa: PTH123 - pathlib costs 5 ms a rank
            spec = json.load(file)
    except OSError as error:
        sys.exit(
            f"dlrun: {socket.gethostname()} cannot read {argv[1]} ({error.strerror}): the run directory must lie "
            "where every node sees it"
        )
    began, again = at_start(os.environ), os.environ.pop(_AGAIN, "")
    for name, value in spec["inherit"].items():  # of the shell that dlrun was started in; what is set here stays
        os.environ.setdefault(name, value)
    os.environ.update(spec["env"])
    if at_start(os.environ) != began and not again:
        os.environ[_AGAIN] = "1"  # once: something here may set them at every start
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    me = identity(os.environ, spec["backend"])
    server, me = meet(me, spec) if spec["server"] else (None, me)
    place = {
        "RANK": me.rank,
        "SIZE": me.size or spec["ranks"],
        "LOCAL_RANK": me.local_rank or 0,
        "LOCAL_SIZE": me.local_size or 1,
        "NODE": me.node or 0,
        "NNODES": spec["nnodes"],
    }
    os.environ.update({f"DLRUN_{name}": str(value) for name, value in place.items()})
    os.environ["DLRUN_RUN_DIR"] = spec["run_dir"]
    if spec.get("as_openmpi"):
        names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
        os.environ.update({f"OMPI_COMM_WORLD_{name}": str(place[name]) for name in names})
        os.environ["DLRUN_AS_OPENMPI"] = "1"  # they are not that launcher's
    if spec["torchrun"]:
        os.environ.update(torchrun.variables(place, spec["master"], spec["run_dir"]))
    if not pin(os.environ, me.local_rank or 0, me.local_size or 1, spec["place"]):
        return start(me.rank, argv[3:], spec, server)
    from dlrun.rank import mps

    ours = mps.join(os.environ, me.local_rank or 0, spec["token"])
    try:
        return start(me.rank, argv[3:], spec, server)
    finally:
        if ours:
            mps.end(os.environ)


def at_start(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that Python and the system's loader read once, as they start: ``PYTHONPATH``."""
    return {name: value for name, value in environ.items() if name.startswith(_AT_START)}


def start(rank: int, program: list[str], spec: dict[str, Any], server: socket.socket | None) -> int:
    """Fork the script and watch it; return its exit code."""
    log = Log(spec["run_dir"], rank)
    shown = rank in spec["show"] or not server
    pipes = [os.pipe(), os.pipe()] if shown else [os.pipe()]  # of a log alone, one: its lines stay in order
    fed = os.pipe() if server and rank == spec.get("input", -1) else None
    report, told = (end.detach() for end in socket.socketpair())
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    script = os.fork()
    if script == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.dup2(fed[0] if fed and spec["kind"] == "command" else os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(pipes[0][1], 1)
        os.dup2(pipes[-1][1], 2)
        if server:
            server.close()
        if fed:
            os.close(fed[1])
        elif spec.get("input", -1) >= 0:  # there is one rank to debug
            os.environ.setdefault("PYTHONBREAKPOINT", "0")
        run(program, spec["kind"], told, spec.get("sandbox", ""), fed[0] if fed else 0)
    for pipe in pipes:
        os.close(pipe[1])
    os.close(told)
    streams = dict(zip((pipe[0] for pipe in pipes), (wire.OUT, wire.ERR), strict=False))
    serial_after = spec["serial_after"] if spec["kind"] != "command" else float("inf")  # what that starts is not seen
    watcher = Watcher(rank, script, report, log, streams, shown, server, serial_after)
    if fed:
        os.close(fed[0])
        watcher.feeds(fed[1], at_once=spec["kind"] == "command")
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return watcher.run()


def meet(me: Identity, spec: dict[str, Any]) -> tuple[socket.socket, Identity]:
    """Return the connection to ``dlrun launch`` and this rank's place in the job.

    A call that is reset before it was answered is made again, later: so end calls that came while more ranks called
    than the system lets wait (``net.core.somaxconn``), some of them only after they seemed to be connected.
    """
    for attempt in range(_CALLS):
        server = connect(spec["server"], spec["silence"])
        try:
            return server, join(server, me, spec)
        except ConnectionError:
            server.close()
            time.sleep(0.1 * 2**attempt * (0.5 + me.rank % 64 / 64))  # ranks apart from each other
    sys.exit(f"dlrun: {socket.gethostname()}: dlrun launch hung up on rank {me.rank} {_CALLS} times")


def connect(addresses: list[list[Any]], silence: int) -> socket.socket:
    """Return a connection to ``dlrun launch``: its addresses are called one after the other, and the first that
    answers is it; none is waited for before the next is called (RFC 8305).

    Ends this rank when none answers.
    """
    calls = select.poll()
    called: dict[int, socket.socket] = {}
    left, deadline = list(addresses), time.monotonic() + _CONNECT_S
    while (left or called) and time.monotonic() < deadline:
        if left:
            host, port = left.pop(0)
            call = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
            call.setblocking(False)
            if call.connect_ex((host, port)) in (0, errno.EINPROGRESS):
                calls.register(call, select.POLLOUT)
                called[call.fileno()] = call
            else:
                call.close()
        for fd, _ in calls.poll((_NEXT_S if left else max(deadline - time.monotonic(), 0)) * 1000 if called else 0):
            calls.unregister(fd)
            server = called.pop(fd)
            if server.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
                server.setblocking(True)
                wire.keep_alive(server, silence)
                for other in called.values():
                    other.close()
                return server
            server.close()
    tried = ", ".join(f"{host}:{port}" for host, port in addresses)
    sys.exit(f"dlrun: {socket.gethostname()} cannot reach dlrun launch (tried {tried}): is it still running?")


def facts() -> dict[str, Any]:
    """Return what `dlrun launch` compares between the ranks before it starts them."""
    core = next(
        (
            f"{p}/dl_comm/{f}"
            for p in sys.path
            if os.path.isdir(f"{p}/dl_comm")  # noqa: PTH112
            for f in os.listdir(f"{p}/dl_comm")  # noqa: PTH208
            if f.startswith("_core.")
        ),
        "",
    )
    checksum = ""
    if core:
        with open(core, "rb") as file:  # noqa: PTH123
            checksum = f"{zlib.crc32(file.read()):08x}"
    try:
        shm = os.statvfs("/dev/shm")
        free = shm.f_bavail * shm.f_frsize
    except OSError:
        free = 0
    vendor, found = gpus()
    left = [gpu.name for gpu in visible(os.environ, vendor, found)] if vendor else []
    return {
        "python": sys.version.split()[0],
        "dlrun": __version__,
        "dl_comm": checksum,
        "shm": free,
        "gpus": left,
        "cpus": sorted(os.sched_getaffinity(0)),
    }


def join(server: socket.socket, me: Identity, spec: dict[str, Any]) -> Identity:
    """Call the server, wait until all ranks have, and return this rank's place in the job."""
    hello = {"rank": me.rank, "size": me.size, "host": socket.gethostname(), "pid": os.getpid()}
    if spec["torchrun"] and me.rank == 0:
        hello["port"] = torchrun.free_port()
    server.sendall(spec["token"].encode() + wire.pack(wire.HELLO, hello | facts()))
    reader = wire.Reader()
    while True:
        data = server.recv(65536)
        if not data:
            sys.exit(1)
        for kind, body in reader.feed(data):
            if kind == wire.STOP:
                sys.exit(1)
            if kind == wire.WELCOME:
                given = json.loads(body)
                spec["nnodes"], spec["place"]["cpus"], spec["master"] = given["nnodes"], given["cpus"], given["master"]
                spec["place"]["shm"] = given["shm"]
                return Identity(me.rank, given["size"], given["local_rank"], given["local_size"], given["node"])


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(code)  # the watcher has nothing left to tidy up, and Python takes 5 ms for it
