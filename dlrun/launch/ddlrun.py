"""IBM's ``ddlrun`` command lines, in the words of ``dlrun launch``.

===================  ==========================================================================================
ddlrun               dlrun launch
===================  ==========================================================================================
-H, -host            --hosts
-hostfile            --hostfile
-rf, -rankfile       --hosts, with the ranks that the file gives to each
-accelerators        --per-node, one rank for each GPU; the GPUs that are here unless said
-nodes -racks        told if they do not fit the hosts; dl_comm finds out itself which ranks share a node
-aisles
-mode p:6x2x1x1      -n and --per-node (GPUs of a host x hosts x racks x aisles); the letter chooses DDL's own algorithm
-ddlarg              its -mode as above; what else is in it means nothing to dl_comm
-mpiarg              --native
-tcp                 the variables that keep MPI libraries off InfiniBand
===================  ==========================================================================================

Options have one or two dashes. ``-h``: ``dlrun launch --help``.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

from dlrun import textfile
from dlrun.errors import DlrunError
from dlrun.launch.hosts import hostfile, hosts
from dlrun.launch.plan import Host

_VALUED = {"mode": "mode", "m": "mode", "ddlarg": "ddlarg", "rf": "rankfile", "rankfile": "rankfile", "H": "host",
           "host": "host", "hostfile": "hostfile", "aisles": "aisles", "racks": "racks", "nodes": "nodes",
           "accelerators": "accelerators", "mpiarg": "mpiarg"}  # fmt: skip
_EXAMPLE = "dlrun launch --ddlrun -H n1,n2 -accelerators 4 python train.py"
_MODE = re.compile(r"(?P<letter>[a-z]+):(?P<counts>\d+(x\d+){0,3})")
_RANK = re.compile(r"rank\s+(?P<rank>\d+)\s*=\s*(?P<host>\S+)(\s+slots?\s*=\s*\S+)?")
# Each library reads its own; one that does not know a variable passes it over.
_TCP = ("UCX_TLS=tcp,sm,self", "FI_PROVIDER=tcp", "OMPI_MCA_pml=ob1", "OMPI_MCA_btl=^openib,ofi,uct")


@dataclass
class _Said:
    """The options of a ddlrun line by their full names, and the words of the program."""

    options: dict[str, str] = field(default_factory=dict)
    tcp: bool = False
    program: list[str] = field(default_factory=list)


def translate(words: Sequence[str], gpus: int) -> tuple[list[str], list[str]]:
    """Return what ``dlrun launch`` is to be given for ddlrun's ``words``, and what to tell, one line for each reason.

    ``gpus`` is how many are here: the ranks of a host where the line does not say. Raises :class:`DlrunError` for an
    option that ddlrun does not have, and for counts that contradict each other.
    """
    said = _read(words)
    program = _program(said.program)
    notes: list[str] = []
    mode = _mode(said, notes)
    named = _hosts(said, notes)
    per_node = _count(said, "accelerators") or (mode[0] if mode else 0)
    if mode and _count(said, "accelerators") not in (None, mode[0]):
        raise DlrunError(f"-mode has {mode[0]} GPUs on a host, and -accelerators {said.options['accelerators']}")
    levels = [_count(said, name) for name in ("nodes", "racks", "aisles")]
    machines = len(named) or (prod(mode[1:]) if mode else prod(level or 1 for level in levels))
    for count, source in ((prod(mode[1:]) if mode else None, "-mode"),
                          (prod(level or 1 for level in levels) if any(levels) else None,
                           "-nodes x -racks x -aisles")):  # fmt: skip
        if count is not None and count != machines:
            raise DlrunError(f"{source} make {count} hosts, and {machines} are named", "name all, or leave it out")
    if any(levels[1:]) or (mode and prod(mode[2:]) > 1):
        notes.append("racks and aisles are not used: dl_comm adds up within a node first, then over the network")
    if not per_node and not any(host.slots for host in named):
        if not gpus:
            raise DlrunError("no GPU is here to count, and -accelerators is not given",
                             "say how many ranks a host takes: -accelerators 4")  # fmt: skip
        per_node = gpus
    slots = [host.slots or per_node for host in named]
    spelled = ["-n", str(sum(slots) if slots else machines * per_node)]
    spelled += ["--per-node", str(per_node)] if per_node else []
    if named:
        spelled += ["--hosts", ",".join(f"{h.name}:{h.slots}" if h.slots else h.name for h in named)]
    spelled += ["--native", said.options["mpiarg"]] if "mpiarg" in said.options else []
    if said.tcp:
        spelled += [word for setting in _TCP for word in ("--env", setting)]
    return [*spelled, *program], notes


def _read(words: Sequence[str]) -> _Said:
    said = _Said()
    left = list(words)
    while left and left[0].startswith("-"):
        word = left.pop(0)
        name, equals, value = word.lstrip("-").partition("=")
        if name == "tcp":
            said.tcp = True
        elif name not in _VALUED:
            raise DlrunError(f"ddlrun has no option {word}", "dlrun launch --ddlrun knows -H -hostfile -rankfile "
                             "-accelerators -nodes -racks -aisles -mode -ddlarg -mpiarg -tcp")  # fmt: skip
        elif not equals and not left:
            raise DlrunError(f"{word} has no value")
        else:
            said.options[_VALUED[name]] = value if equals else left.pop(0)
    said.program = left
    if not left:
        raise DlrunError("no script is named", f"write one, as in: {_EXAMPLE}")
    return said


def _mode(said: _Said, notes: list[str]) -> list[int]:
    """Return the counts of -mode, innermost first, wherever it stands."""
    text = said.options.get("mode", "")
    arguments = shlex.split(said.options.get("ddlarg", ""))
    rest = list(arguments)
    for i, word in enumerate(arguments[:-1]):
        if word.lstrip("-") == "mode":
            text = text or arguments[i + 1]
            rest = arguments[:i] + arguments[i + 2 :]
    if rest:
        notes.append(f"-ddlarg {shlex.join(rest)}: settings of DDL's own, which dl_comm does not have; dlrun tune "
                     "finds the settings of dl_comm")  # fmt: skip
    if not text:
        return []
    match = _MODE.fullmatch(text)
    if not match:
        raise DlrunError(f"-mode {text} is no mode", "write p:6x2x1x1: GPUs of a host x hosts x racks x aisles")
    notes.append(f"-mode {match['letter']}: chooses an algorithm of DDL's; dl_comm chooses its own, and dlrun tune "
                 "measures which")  # fmt: skip
    return [int(count) for count in match["counts"].split("x")]


def _hosts(said: _Said, notes: list[str]) -> tuple[Host, ...]:
    given = [name for name in ("host", "hostfile", "rankfile") if name in said.options]
    if len(given) > 1:
        raise DlrunError(f"-{given[0]} and -{given[1]} are both given", "give one of them")
    if given == ["host"]:
        return hosts(said.options["host"])
    if given == ["hostfile"]:
        return hostfile(said.options["hostfile"])
    return _rankfile(said.options["rankfile"], notes) if given else ()


def _rankfile(path: str, notes: list[str]) -> tuple[Host, ...]:
    """Return the hosts of a file of lines ``rank 0=n1 slot=0:0-3``."""
    try:
        lines = textfile.read(Path(path)).splitlines()
    except OSError as error:
        raise DlrunError(f"-rankfile {path}: {error.strerror}") from error
    placed: dict[int, str] = {}
    for number, line in enumerate(lines, 1):
        entry = line.partition("#")[0].strip()
        match = _RANK.fullmatch(entry)
        if entry and not match:
            raise DlrunError(f"{path}, line {number}: {entry!r} places no rank", "write rank 0=n1 slot=0:0-3")
        if match:
            placed[int(match["rank"])] = match["host"]
    if sorted(placed) != list(range(len(placed))) or not placed:
        raise DlrunError(f"-rankfile {path} does not place the ranks 0, 1, 2 and so on, each once")
    order = [placed[rank] for rank in range(len(placed))]
    names = list(dict.fromkeys(order))
    if order != [name for name in names for _ in range(order.count(name))]:
        raise DlrunError(f"-rankfile {path} deals ranks out over the hosts in turn",
                         "dlrun launch keeps neighbours on one host, in shared memory: number them so")  # fmt: skip
    notes.append("the rankfile's slots are not used: each rank is given cores of its own, next to its GPU")
    return tuple(Host(name, order.count(name)) for name in names)


def _count(said: _Said, option: str) -> int | None:
    text = said.options.get(option)
    if text is None:
        return None
    if not text.isdigit() or int(text) < 1:
        raise DlrunError(f"-{option} {text} is no number of them", "give 1 or more")
    return int(text)


def _program(words: list[str]) -> list[str]:
    """Return the program without the interpreter: every rank runs dlrun's."""
    if re.fullmatch(r"python(\d(\.\d+)?)?", Path(words[0]).name):
        words = words[1:]
        while words and words[0] in ("-u", "-B", "-s", "-E", "-I"):
            words = words[1:]
    if not words or (words[0].startswith("-") and words[0] != "-m"):
        raise DlrunError("after python comes no script", f"write one, as in: {_EXAMPLE}")
    return words
