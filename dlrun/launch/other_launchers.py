"""The options of other launchers, in the words of ``dlrun launch``.

==========================================  ====================================================================
mpirun, torchrun, accelerate, deepspeed,    dlrun launch
horovodrun
==========================================  ====================================================================
-np, --np, --num_processes, --num-proc      -n
-H, --host                                  --hosts
-n 4:8                                      -n 8 --min-ranks 4
-n auto, gpu, cpu                           -n with the number of GPUs or cores that are here
--nproc-per-node, --num_gpus, -npernode     --per-node; -n is then so many on each node
--nnodes, --num_machines, --num_nodes       the nodes by which that is multiplied, or -n is divided
--tee 3                                     --show all; every rank's log is written anyway
--standalone, --multi_gpu                   nothing: dlrun finds out by itself
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
_PER_NODE = ("--nproc-per-node", "--num-gpus", "-npernode", "--npernode")
_NODES = ("--nnodes", "--num-machines", "--num-nodes")
_STREAMS = re.compile(r"[0-3]|\d+:[0-3](,\d+:[0-3])*")  # torchrun's: of all ranks, or of some
_NOTHING = ("--standalone", "--multi-gpu")
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
    left, spelled, notes = list(words), list[str](), list[str]()
    per_node = nodes = ranks = 0
    while left and left[0].startswith("-") and left[0] not in ("--", "--ddlrun"):
        word = left.pop(0)
        name, equals, value = word.partition("=")
        plain = "--" + name[2:].replace("_", "-") if name.startswith("--") else name
        theirs = plain in (*_RANKS, *_HOSTS, *_PER_NODE, *_NODES, *_NOT_NEEDED)
        if plain == "--tee" and (_STREAMS.fullmatch(value or "".join(left[:1]))):
            left = left if equals else left[1:]
            spelled += ["--show", "all"]
            notes.append("each rank's output is in its log anyway; --show all shows it, too")
            continue
        if plain in _NOTHING:
            notes.append(f"{name} is not needed: dlrun finds out what is here")
            continue
        if not theirs and name not in ("-n", "--ranks"):
            spelled += [word, *(left[:1] if name in valued and not equals else [])]
            left = left[1:] if name in valued and not equals else left
            continue
        if not equals and not left:
            raise DlrunError(f"{name} has no value")
        value = value if equals else left.pop(0)
        if plain in _PER_NODE:
            per_node = _number(name, value, gpus, cores)
        elif plain in _NODES:
            nodes = _number(name, value, 0, 0)
        elif plain in _HOSTS:
            spelled += ["--hosts", value]
        elif plain in _NOT_NEEDED:
            notes.append(f"{name} is not needed: dlrun launch is started once, and starts all nodes' ranks")
        else:
            least, colon, most = value.partition(":")
            if colon and least.isdecimal() and most.isdecimal():
                spelled += ["--min-ranks", least]
                value = most
            value = str(_number(name, value, gpus, cores)) if value in _WORDS or theirs else value
            ranks = int(value) if value.isdecimal() else 0
            spelled += ["-n", value]
    if nodes > 1 and not per_node:
        if not ranks:
            raise DlrunError(f"{nodes} nodes, and how many ranks each takes is not said", "say so: --per-node 4")
        spelled += ["--per-node", str(-(-ranks // nodes))]
    elif per_node and ranks:
        spelled += ["--per-node", str(per_node)]
    elif per_node:
        spelled += ["-n", str(per_node * max(nodes, 1)), "--per-node", str(per_node)]
    return [*spelled, *left], notes


_WORDS = ("auto", "gpu", "cpu")


def _number(option: str, text: str, gpus: int, cores: int) -> int:
    if text == "gpu" and not gpus:
        raise DlrunError(f"{option} gpu: dlrun sees no GPU here", f"say how many ranks: {option} 4")
    if text in _WORDS and cores:
        return cores if text == "cpu" or not gpus else gpus
    if not text.isdecimal() or not int(text):
        raise DlrunError(f"{option} {text} is no number of them", "give 1 or more")
    return int(text)
