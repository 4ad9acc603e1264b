"""The journal of one rank: events with the line of the user's script that caused them."""

from __future__ import annotations

import json
import os
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

# The rank variables of the launchers, ours first: it is right wherever it is set.
RANK_VARIABLES = ("DLRUN_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PALS_RANKID", "SLURM_PROCID")

OURS = ("dl_comm", "ml_comm", "ml_comm_torch", "ddl")  # the names under which dl_comm is imported
UNCUT = 10**9  # the steps of an epoch that is not cut short
SHUFFLED, EVALUATED = "shuffled", "evaluated"  # what the serial script does with a loader, or trains on it in order


@dataclass(frozen=True)
class Orders:
    """What one traced run is to do; written by the parent, read by every rank."""

    script: str
    out: str  # folder of the trace files
    scratch: str  # the folder of links to the user's files, which a write replaces by copies
    folder: str  # the working folder of the run, in there, with links above it, too
    steps: int  # optimizer steps after which the script is stopped
    epoch_steps: int  # steps after which an epoch over a DataLoader is cut short, so that its end is seen too
    named: str = ""  # as which file the script is to know itself: the serial one, as logs and files may have its name
    framework: str = "torch"  # or "tensorflow", which is Keras, too
    seed: int | None = None  # seeds what the script does not seed
    seed_by_rank: bool = False  # ... with seed + rank, as unseeded ranks would differ
    alone: bool = False  # tell the script, where it asks, that it is rank 0 of 1
    quiet: bool = False  # no dropout, and batch norm's statistics as they are
    lineage: bool = False  # follow what training keeps from step to step
    global_batch: bool = False  # keep the serial global batch: local batch = B / n, learning rate not scaled
    sums: bool = False  # ... and take the mean of the ranks' gradients n times: the loss is a sum over samples
    training_loaders: tuple[int, ...] = ()  # the DataLoaders of the script, by order of creation, that feed backward()
    uses: tuple[str, ...] = ()  # what the serial script does with its loaders, by order of creation
    seedings: dict[str, int] | None = None  # how often the serial script seeds: further ones by rank are left out
    keeps: bool = False  # write the parameters of each step (see ``replay``)
    follows: str = ""  # the folder of a run that kept them, whose parameters are taken over after each step
    shaken: bool = False  # learn from other outputs
    frozen: bool = False  # take each update back: all steps are made with the first parameters
    own_gradients: bool = False  # ... and leave each rank the gradients of its batch in place of their mean
    few: int = (
        0  # cut loaders to so many batches for each of the ranks, or leave them uncut; draws follow from the batch
    )
    shares: int = 1  # ... of so many ranks
    tails: bool = False  # ... and leave loaders that train what n ranks do not share evenly
    turn: int = 0  # ... and so many of each n batches that are trained on come last
    turn_steps: int = 0  # what no loader gives is drawn anew behind so many (see ``iteration_seeds``); 0: left alone
    stride: int = 1  # ... of which the ranks take so many serial ones between them
    generators: tuple[int, ...] = ()  # ... and of the script's own, by order of creation, those that draw anew, too
    rounds: int = 1  # how often so many ``steps`` are made where a script goes on with a new model: the next fold
    training_shards: tuple[int, ...] | None = None  # calls of dl.shard, by order, that stay replicated: the rest shards

    @staticmethod
    def read(path: str) -> Orders:
        """Return the orders in the JSON file at ``path``."""
        raw = json.loads(Path(path).read_text())
        for name in ("training_loaders", "training_shards", "uses", "generators"):
            raw[name] = None if raw[name] is None else tuple(raw[name])
        return Orders(**raw)


class Stopped(BaseException):
    """All steps are done: unwinds the script. Not an ``Exception``, so that the script's handlers let it pass."""


def rank_here() -> int:
    """Return this process's rank, 0 without a launcher."""
    return next((int(os.environ[name]) for name in RANK_VARIABLES if os.environ.get(name)), 0)


@cache
def is_user_file(filename: str) -> bool:
    """Tell whether code in the file is the user's: not the standard library's, a package's, dlrun's or dl_comm's."""
    if filename.startswith("<") or f"{os.sep}site-packages{os.sep}" in filename or "dist-packages" in filename:
        return False
    ours = [Path(__file__).parents[2], Path(sysconfig.get_path("stdlib"))]
    specs = [spec for name in OURS if (spec := find_spec(name))]
    ours += [Path(folder) for spec in specs for folder in spec.submodule_search_locations or []]
    file = Path(filename)  # dl_comm's may be links to another folder
    return not any(file.is_relative_to(folder) or file.resolve().is_relative_to(folder.resolve()) for folder in ours)


def is_of_user(value: Any) -> bool:
    """Tell whether a value is of a class that the script, or a module of its own, defines."""
    module = type(value).__module__
    return module == "__main__" or is_user_file(getattr(sys.modules.get(module), "__file__", None) or "<none>")


def spaces(space: dict[str, Any], stopped: TracebackType | None) -> list[dict[str, Any]]:
    """Return the script's globals, ``space``, and the variables of its functions that it was stopped in."""
    found = [space]
    while stopped is not None:
        if is_user_file(stopped.tb_frame.f_code.co_filename):
            found.append(stopped.tb_frame.f_locals)
        stopped = stopped.tb_next
    return found


def running() -> list[dict[str, Any]]:
    """Return the variables of the script's running functions, the innermost first, and their globals."""
    frame: FrameType | None = sys._getframe(1)
    found: dict[int, dict[str, Any]] = {}
    while frame is not None:
        if is_user_file(frame.f_code.co_filename):
            found |= {id(names): names for names in (frame.f_locals, frame.f_globals)}
        frame = frame.f_back
    return list(found.values())


def user_frame() -> FrameType | None:
    """Return the innermost frame that runs the user's code, None where there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_user_file(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def called_by_dl_comm() -> bool:
    """Tell whether dl_comm's code stands between here and the user's innermost frame."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_user_file(frame.f_code.co_filename):
        if f"{os.sep}dl_comm{os.sep}" in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False


class Recorder:
    """Writes events; knows how many optimizer steps were made and whether the script is to end.

    One per process. Of forked children (DataLoader workers) the events of ``workers`` alone are kept.
    """

    def __init__(self, orders: Orders, rank: int) -> None:
        self.orders, self.rank = orders, rank
        self.steps = 0
        self.made = self.known = 0  # optimizers of new parameters, and those of them at the last step
        self._rounds, self._before = 1, 0  # rounds begun, and the steps before this one
        self.statistics: Callable[[], str] = str  # a hash of those of batch norm, where there are any
        self.statistics_in: Callable[[Any], dict[str, bool]] = lambda what: {}  # what is told of them where it is saved
        self.inside = 0  # > 0 while one of dl_comm's functions, or one of ours, runs: what it does is not the script's
        self._pid, self._stops = os.getpid(), 0
        self._began = time.monotonic()
        self._file = (Path(orders.out) / f"rank{rank}.jsonl").open("a", encoding="utf-8")

    def note(self, kind: str, **data: Any) -> None:
        """Append one event: its kind, the user's line that is running, and ``data`` (JSON values)."""
        if os.getpid() != self._pid and kind != "worker":
            return
        with self.aside():
            clock = round(time.monotonic() - self._began, 3)
            self._file.write(json.dumps({"kind": kind, "at": self.line, "clock": clock, **data}) + "\n")
            self._file.flush()

    @property
    def line(self) -> str:
        """The line of the user's script that is running, such as ``train.py:12``; empty where none is."""
        frame = user_frame()
        return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}" if frame else ""

    @contextmanager
    def aside(self) -> Iterator[None]:
        """What runs under it is not the script's doing."""
        self.inside += 1
        try:
            yield
        finally:
            self.inside -= 1

    @property
    def done(self) -> bool:
        """Whether all the steps asked for were made, since the round began."""
        return self.steps - self._before >= self.orders.steps

    @property
    def judges(self) -> bool:
        """Whether a script that ends itself may do so by what it has come to: with parameters that stay, too poor."""
        return self.orders.frozen and self.steps > 0

    def goes_on(self, anew: bool = False) -> bool:
        """Begin another round of steps, where one is left and a new model is to be trained, or will be: ``anew``."""
        if self._rounds >= self.orders.rounds or not (anew or self.made > self.known):
            return False
        self._rounds, self._before = self._rounds + 1, self.steps
        return True

    def stop(self) -> None:
        """End the script: raise ``Stopped``; leave the process where the script swallows it again and again."""
        self._stops += 1
        if self._stops > 20:
            self.note("end", how="stopped")
            sys.stdout.flush()
            os._exit(0)
        raise Stopped
