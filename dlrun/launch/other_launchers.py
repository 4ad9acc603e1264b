"""The options of other launchers, in the words of ``dlrun launch``.

==========================================  ====================================================================
mpirun, torchrun, accelerate, deepspeed,    dlrun launch
horovodrun
==========================================  ====================================================================
-np, --np, --num_processes, --num-proc      -n
-H, --host                                  --hosts
-n 4:8                                      -n 8 --min-ranks 4
--nnodes 1:4                                the same, so many times the ranks of a node
-n auto, gpu, cpu                           -n with the number of GPUs or cores that are here
--nproc-per-node, --num_gpus, -npernode,    --per-node; -n is then so many on each node
-ppn, --ntasks-per-node
--nnodes, --num_machines, --num_nodes       the nodes by which that is multiplied, or -n is divided
--tee 3                                     --show all; every rank's log is written anyway
-x NAME=VALUE                               --env; of variables that are set here every rank has each anyway
--standalone, --multi_gpu, --oversubscribe  nothing: dlrun finds out by itself
--node_rank, --master_port, --rdzv_backend  nothing: dlrun is started once, on one node
==========================================  ====================================================================

Dashes and underscores within them are one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from dlrun.errors import DlrunError

_RANKS = ("-np", "--np", "--num-processes", "--num-proc", "--num-workers", "--nprocs")
_HOSTS = ("-H", "--host")
_PER_NODE = ("--nproc-per-node", "--num-gpus", "-npernode", "--npernode", "-ppn", "--ntasks-per-node")
_NODES = ("--nnodes", "--num-machines", "--num-nodes")
_STREAMS = re.compile(r"[0-3]|\d+:[0-3](,\d+:[0-3])*")  # torchrun's: of all ranks, or of some
_VARIABLE = ("-x",)
_NOTHING = ("--standalone", "--multi-gpu", "--oversubscribe")
_NOT_NEEDED = (
    "--node-rank",
    "--machine-rank",
    "--master-addr",
    "--master-port",
    "--main-process-ip",
    "--main-process-port",
    "--rdzv-backend",
    "--rdzv-endpoint",
    "--rdzv-id",
)


def translate(words: Sequence[str], valued: Collection[str], gpus: int, cores: int) -> tuple[list[str], list[str]]:
    """Return the ``words`` of a command line as dlrun spells them, and what to tell of those that are left out.

    ``valued`` are dlrun's own options that take a value; what follows the script is the script's, and stays. ``gpus``
    and ``cores`` are what is here. Raises :class:`DlrunError` for a number that is none.
    """
    left, line = list(words), _Line(gpus, cores)
    while left and left[0].startswith("-") and left[0] not in ("--", "--ddlrun"):
        word = left.pop(0)
        name, equals, value = word.partition("=")
        plain = "--" + name[2:].replace("_", "-") if name.startswith("--") else name
        theirs = plain in (*_RANKS, *_HOSTS, *_PER_NODE, *_NODES, *_VARIABLE, *_NOT_NEEDED)
        if plain == "--tee" and (_STREAMS.fullmatch(value or "".join(left[:1]))):
            left = left if equals else left[1:]
            line.spelled += ["--show", "all"]
            line.notes.append("each rank's output is in its log anyway; --show all shows it, too")
            continue
        if plain in _NOTHING:
            line.notes.append(f"{name} is not needed: dlrun finds out what is here")
            continue
        if not theirs and name not in ("-n", "--ranks"):
            line.spelled += [word, *(left[:1] if name in valued and not equals else [])]
            left = left[1:] if name in valued and not equals else left
            continue
        if not equals and not left:
            raise DlrunError(f"{name} has no value")
        line.take(name, plain, value if equals else left.pop(0))
    return [*line.spelled, *line.counts(), *left], line.notes


class _Line:
    """What has been read of a line so far; ``least`` are the nodes that it may do with."""

    def __init__(self, gpus: int, cores: int) -> None:
        self.gpus, self.cores = gpus, cores
        self.spelled, self.notes = list[str](), list[str]()
        self.per_node = self.nodes = self.ranks = self.least = 0

    def take(self, name: str, plain: str, value: str) -> None:
        """Take an option ``name`` (``plain``, with dashes) that another launcher has too, and its value."""
        if plain in _PER_NODE:
            self.per_node = _number(name, value, self.gpus, self.cores)
        elif plain in _NODES:
            least, colon, most = value.partition(":")
            self.least = _number(name, least, 0, 0) if colon else 0
            self.nodes = _number(name, most if colon else value, 0, 0)
        elif plain in _HOSTS:
            self.spelled += ["--hosts", value]
        elif plain in _VARIABLE:
            if "=" in value:
                self.spelled += ["--env", value]
            else:
                self.notes.append(f"{name} {value} is not needed: every rank has the variables that are set here")
        elif plain in _NOT_NEEDED:
            self.notes.append(f"{name} is not needed: dlrun launch is started once, and starts all nodes' ranks")
        else:
            self._ranks(name, value, plain in _RANKS)

    def _ranks(self, name: str, value: str, theirs: bool) -> None:
        least, colon, most = value.partition(":")
        if colon and least.isdecimal() and most.isdecimal():
            self.spelled += ["--min-ranks", least]
            value = most
        value = str(_number(name, value, self.gpus, self.cores)) if value in _WORDS or theirs else value
        self.ranks = int(value) if value.isdecimal() else 0
        self.spelled += ["--ranks", value]  # of a short option click looks for long ones like it, for 4 ms

    def counts(self) -> list[str]:
        """Return what the numbers of nodes, and of ranks on each, come to."""
        if self.nodes > 1 and not self.per_node:
            if not self.ranks:
                raise DlrunError(
                    f"{self.nodes} nodes, and how many ranks each takes is not said", "say so: --per-node 4"
                )
            return ["--per-node", str(-(-self.ranks // self.nodes))]
        if not self.per_node:
            return []
        most = [] if self.ranks else ["--ranks", str(self.per_node * max(self.nodes, 1))]
        least = ["--min-ranks", str(self.per_node * self.least)] if self.least and most else []
        return [*least, *most, "--per-node", str(self.per_node)]


_WORDS = ("auto", "gpu", "cpu")


def _number(option: str, text: str, gpus: int, cores: int) -> int:
    if text == "gpu" and not gpus:
        raise DlrunError(f"{option} gpu: dlrun sees no GPU here", f"say how many ranks: {option} 4")
    if text in _WORDS and cores:
        return cores if text == "cpu" or not gpus else gpus
    if not text.isdecimal() or not int(text):
        raise DlrunError(f"{option} {text} is no number of them", "give 1 or more")
    return int(text)
