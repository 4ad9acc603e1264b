"""What is to be launched, and the command that does it: values alone."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from dlrun.launch.site import Launcher


class Host(NamedTuple):
    """A node to run on, and how many ranks it takes (None: an equal share)."""

    name: str
    slots: int | None = None


class LaunchPlan(NamedTuple):
    """A job to start: a program, how often, and where. What is None is still open; ``resolve`` closes it.

    ``program`` is the script and its arguments; ``module`` says that it is a module's name, as in ``python -m``.
    ``native`` are words for the launcher itself. ``per_node``, ``cores`` and ``gpus`` count ranks per node, and cores
    and GPUs per rank; ``share_gpus`` lets more ranks than GPUs start on this machine, and ``mps`` has them run on it at
    once (mps.py). ``show`` are the ranks whose output is shown (None: all), ``torchrun`` gives the ranks what torchrun
    would, ``origins`` say where variables of ``env`` come from, where that is not the command line. ``cwd`` is where
    the job runs ("": here); a script that runs ``sandboxed`` has a folder of its own that looks like that one,
    ``run_dir/files``, in which what it wrote is left. Without a ``run_dir`` one is made below ``log_dir``. What is
    shown is added to the file ``tee``, too ("": to none). ``input`` is the rank whose script reads dlrun's standard
    input (-1: none).
    Seconds: ``grace`` between a signal and SIGKILL, ``save_time`` to save and stop in, ``start_timeout`` for all ranks
    to start (None: two minutes, more for many), ``stall_timeout`` without progress until ``on_stall`` ("report" or
    "abort"; less than dl_comm's DL_COMM_TIMEOUT_S, 300, that it is told who waits where before dl_comm gives up),
    ``silence`` after which a node that does not answer counts as gone, ``serial_after`` which ranks that have loaded
    nothing to talk with are told to be copies of a serial script.
    """

    program: tuple[str, ...]
    ranks: int | None = None
    module: bool = False
    backend: str = "auto"
    mpiexec: str = ""
    native: tuple[str, ...] = ()
    torchrun: bool = False
    per_node: int | None = None
    hosts: tuple[Host, ...] = ()
    cores: int | None = None
    gpus: int | None = None
    share_gpus: bool = True
    mps: bool = False
    bind: bool = True
    env: tuple[tuple[str, str], ...] = ()
    origins: tuple[tuple[str, str], ...] = ()
    show: tuple[int, ...] | None = (0,)
    cwd: str = ""
    sandboxed: bool = False
    run_dir: str = ""
    log_dir: str = "dlrun-runs"
    tee: str = ""
    input: int = -1
    grace: float = 1.0
    save_time: float = 60.0
    stall_timeout: float = 240.0
    on_stall: str = "report"
    start_timeout: float | None = None
    tuned: bool = True
    silence: int = 20
    serial_after: float = 60.0
    # Closed by resolve():
    launcher: Launcher | None = None
    pmi: str = ""
    nodes: int = 1
    kind: str = "script"
    local: bool = True
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What the program is called, without folders, packages and ending: "train" of ``runs/train.py``."""
        return self.program[0].rpartition(".")[2] if self.module else Path(self.program[0]).stem

    @property
    def start_limit(self) -> float:
        """Seconds in which all ranks must have started; many ranks that import from one file server take longer."""
        return self.start_timeout if self.start_timeout is not None else 120.0 + 0.1 * (self.ranks or 1) // 1

    @property
    def spec_file(self) -> str:
        """Where the ranks read what does not belong on a command line."""
        return f"{self.run_dir}/spec.json"

    @property
    def missing(self) -> str:
        """What is so when no launcher was found (its path is then a bare name), else ""."""
        if self.launcher is None or not self.launcher.path or "/" in self.launcher.path:
            return ""
        said = f": {self.launcher.why}" if self.launcher.why else ""
        return f"no {'MPI' if self.backend == 'auto' else self.backend} launcher is here{said}"

    @property
    def hint(self) -> str:
        """What to do when no launcher was found."""
        if self.backend in ("auto", "mpich"):
            return 'to have one in this environment: pip install "dlrun[mpi]"'
        program = self.launcher.path if self.launcher else self.backend
        if self.launcher and self.launcher.why:
            return f"name another with --mpiexec, or leave out --backend; {program} may be set up elsewhere only"
        return f"put {program} on PATH, or leave out --backend"

    @property
    def shim(self) -> tuple[str, ...]:
        """The command every rank runs."""
        return (sys.executable, "-m", "dlrun.rank", "--spec", self.spec_file, "--", *self.program)


def program(script: str, *args: str, module: bool = False) -> tuple[str, ...]:
    """Return a job's program as a command line spells it: `--` between a Python script and its arguments is dlrun's.

    It may stand there, as with the verbs that take options after the script; a second one is the script's own.
    """
    own = (module or script.endswith(".py")) and args[:1] == ("--",)
    return (script, *(args[1:] if own else args))


class Flag(NamedTuple):
    """Some words of a launcher's command line, and the reason why they stand there."""

    words: tuple[str, ...]
    why: str


# Python puts the texts of a set in an order that each process draws, unless this is set: word ids would differ by rank.
ONE_ORDER = {"PYTHONHASHSEED": "0"}


class Command(NamedTuple):
    """What is run: the words, each with its reason, and what changes in the environment."""

    flags: tuple[Flag, ...]
    set: Mapping[str, str] = MappingProxyType({})
    unset: tuple[str, ...] = ()

    @property
    def argv(self) -> list[str]:
        """The command as a list of words; no shell ever reads it."""
        return [word for flag in self.flags for word in flag.words]

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return ``env`` as the command gets it."""
        return ONE_ORDER | {name: value for name, value in env.items() if name not in self.unset} | dict(self.set)

    def __str__(self) -> str:
        changes = [word for name in self.unset for word in ("-u", name)]
        changes += [f"{name}={value}" for name, value in self.set.items()]
        return shlex.join([*(["env"] if changes else []), *changes, *self.argv])
