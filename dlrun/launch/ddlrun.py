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
-mode p:6x2x1x1      -n and --per-node (GPUs of a host x hosts x racks x aisles); the letter, which may stand alone,
                     chooses DDL's own algorithm
-ddlarg, -ddloption  its -mode as above; what else is in it means nothing to dl_comm
-no_ddloptions       DDL_OPTIONS, else set to the mode and -ddlarg, is not: ``import ddl`` heeds it
-x VAR=v             --env; so is one within -mpiarg, and ``-mca name value`` is OMPI_MCA_name
-mpiarg              --native, but for words of Spectrum MPI's own, which another MPI takes for something else
-tcp, -t             the variables that keep MPI libraries off InfiniBand; so does -mpiarg -pami_noib
python -O, -W        the variables of Python's that say the same
-v                   nothing: what is run is shown by ``dlrun launch --dry-run``
===================  ==========================================================================================

Options have one or two dashes. ``-h``: ``dlrun launch --help``.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

from dlrun import textfile
from dlrun.errors import DlrunError
from dlrun.launch.hosts import hostfile, hosts
from dlrun.launch.plan import Host

_VALUED = {
    "mode": "mode",
    "m": "mode",
    "ddlarg": "ddlarg",
    "ddloption": "ddlarg",
    "rf": "rankfile",
    "rankfile": "rankfile",
    "H": "host",
    "host": "host",
    "hostfile": "hostfile",
    "aisles": "aisles",
    "racks": "racks",
    "nodes": "nodes",
    "accelerators": "accelerators",
    "mpiarg": "mpiarg",
    "x": "x",
}
_FLAGS = {"tcp": "tcp", "t": "tcp", "v": "verbose", "verbose": "verbose", "no_ddloptions": "no_ddloptions"}
_REPEATED = ("ddlarg", "mpiarg", "x")
_EXAMPLE = "dlrun launch --ddlrun -H n1,n2 -accelerators 4 python train.py"
_MODE = re.compile(r"(?P<letter>[a-z]+)(:(?P<counts>\d+(x\d+){0,3}))?")
_RANK = re.compile(r"rank\s+(?P<rank>\d+)\s*=\s*(?P<host>\S+)(\s+slots?\s*=\s*\S+)?")
# Each library reads its own; one that does not know a variable passes it over.
_TCP = ("UCX_TLS=tcp,sm,self", "FI_PROVIDER=tcp", "OMPI_MCA_pml=ob1", "OMPI_MCA_btl=^openib,ofi,uct")
# Words of Spectrum MPI's mpirun, which another's refuses or takes for something else.
_SPECTRUM = re.compile(
    r"-{1,2}(pami(_\w+)?|tcp|ibv|mxm\w*|ofi|ucx|psm2|usnic|hcoll|fca|gpu|disable_gpu_hooks|disable_gdr|verbsbypass|async"
    r"|aff\w*|prot|stdio(_\w+)?|entry(base)?|intra|inter|soe|smpi\w*)(=.*)?",
    re.IGNORECASE,
)
_SPECTRUM_VALUED = re.compile(r"-{1,2}(aff\w*|stdio(_\w+)?|entry(base)?|intra|inter|pami_\w+)", re.IGNORECASE)
_SPECTRUM_OFF_INFINIBAND = ("pami_noib", "tcp")


@dataclass
class _Said:
    """The options of a ddlrun line by their full names, and the words of the program."""

    options: dict[str, str] = field(default_factory=dict)
    repeated: dict[str, list[str]] = field(default_factory=lambda: {name: [] for name in _REPEATED})
    flags: set[str] = field(default_factory=set)
    program: list[str] = field(default_factory=list)


def translate(words: Sequence[str], gpus: int, environ: Mapping[str, str] = os.environ) -> tuple[list[str], list[str]]:
    """Return what ``dlrun launch`` is to be given for ddlrun's ``words``, and what to tell, one line for each reason.

    ``gpus`` is how many are here: the ranks of a host where the line does not say. ``environ`` has the values of
    variables that ``-x`` names only. Raises :class:`DlrunError` for an
    option that ddlrun does not have, and for counts that contradict each other.
    """
    said = _read(words)
    program, of_python = _program(said.program)
    notes: list[str] = []
    mode = _mode(said, notes)
    named = _hosts(said, notes)
    per_node = _count(said, "accelerators") or (mode[0] if mode else 0)
    if mode and _count(said, "accelerators") not in (None, mode[0]):
        raise DlrunError(f"-mode puts {mode[0]} on a host, and -accelerators {said.options['accelerators']}")
    levels = [_count(said, name) for name in ("nodes", "racks", "aisles")]
    machines = len(named) or (prod(mode[1:]) if mode else prod(level or 1 for level in levels))
    for count, source in (
        (prod(mode[1:]) if mode else None, "-mode"),
        (prod(level or 1 for level in levels) if any(levels) else None, "-nodes x -racks x -aisles"),
    ):
        if count is not None and count != machines:
            raise DlrunError(f"{source} names {count} hosts, and -H {machines}", "name all, or leave it out")
    if any(levels[1:]) or (mode and prod(mode[2:]) > 1):
        notes.append("racks and aisles are not used: dl_comm adds up within a node first, then over the network")
    if not per_node and not any(host.slots for host in named):
        if not gpus:
            raise DlrunError(
                "no GPU is here to count, and -accelerators is not given",
                "say how many ranks a host takes: -accelerators 4",
            )
        per_node = gpus
    slots = [host.slots or per_node for host in named]
    spelled = ["-n", str(sum(slots) if slots else machines * per_node)]
    spelled += ["--per-node", str(per_node)] if per_node else []
    if named:
        spelled += ["--hosts", ",".join(f"{h.name}:{h.slots}" if h.slots else h.name for h in named)]
    native, variables = _for_mpi(said, environ, notes)
    spelled += ["--native", shlex.join(native)] if native else []
    variables += [*of_python, *(_TCP if "tcp" in said.flags else ())]
    if "no_ddloptions" not in said.flags:
        variables.append(f"DDL_OPTIONS={_ddl_options(said)}")
    return [*spelled, *(word for setting in variables for word in ("--env", setting)), *program], notes


def _for_mpi(said: _Said, environ: Mapping[str, str], notes: list[str]) -> tuple[list[str], list[str]]:
    """Return the words of -mpiarg that are the launcher's, and the variables to set, of -x, too."""
    variables, native, dropped = list(said.repeated["x"]), [], []
    left = [word for text in said.repeated["mpiarg"] for word in shlex.split(text)]
    while left:
        word = left.pop(0)
        name = word.lstrip("-")
        if name == "x" and left:
            variables.append(left.pop(0))
        elif name in ("mca", "gmca") and len(left) > 1:
            variables.append(f"OMPI_MCA_{left.pop(0)}={left.pop(0)}")
        elif name.lower() in _SPECTRUM_OFF_INFINIBAND:
            said.flags.add("tcp")
        elif _SPECTRUM.fullmatch(word):
            dropped.append(word)
            if _SPECTRUM_VALUED.fullmatch(word) and left and not left[0].startswith("-"):
                dropped.append(left.pop(0))
        else:
            native.append(word)
    if dropped:
        notes.append(f"-mpiarg {shlex.join(dropped)}: of Spectrum MPI's own; what it needs, give as --native")
    return native, [v if "=" in v else f"{v}={environ[v]}" for v in variables if "=" in v or v in environ]


def _ddl_options(said: _Said) -> str:
    """Return what DDL_OPTIONS is to be: the mode, p unless said, and what else DDL is given."""
    rest = " ".join(said.repeated["ddlarg"])
    given = any(word.lstrip("-") == "mode" for word in shlex.split(rest))
    mode = f"-mode {said.options['mode']}" if "mode" in said.options else "" if given else "-mode p"
    return f"{mode} {rest}".strip()


def _read(words: Sequence[str]) -> _Said:
    said = _Said()
    left = list(words)
    if left[:1] == ["--"]:
        del left[0]
    while left and left[0].startswith("-"):
        word = left.pop(0)
        name, equals, value = word.lstrip("-").partition("=")
        if name in _FLAGS:
            said.flags.add(_FLAGS[name])
        elif name in ("n", "np"):
            raise DlrunError(f"ddlrun has no option {word}: it counts hosts", "say -H HOST -accelerators RANKS")
        elif name not in _VALUED:
            raise DlrunError(
                f"ddlrun has no option {word}",
                "dlrun launch --ddlrun knows -H -hostfile -rankfile "
                "-accelerators -nodes -racks -aisles -mode -ddlarg -no_ddloptions -mpiarg -x -tcp "
                "-v",
            )
        elif not equals and not left:
            raise DlrunError(f"{word} has no value")
        else:
            value, name = value if equals else left.pop(0), _VALUED[name]
            if name in _REPEATED:
                said.repeated[name].append(value)
            else:
                said.options[name] = value
    said.program = left
    if not left:
        raise DlrunError("no script is named", f"write one, as in: {_EXAMPLE}")
    return said


def _mode(said: _Said, notes: list[str]) -> list[int]:
    """Return the counts of -mode, innermost first, wherever it stands."""
    text = said.options.get("mode", "")
    arguments = [word for given in said.repeated["ddlarg"] for word in shlex.split(given)]
    rest = list(arguments)
    for i, word in enumerate(arguments[:-1]):
        if word.lstrip("-") == "mode":
            text = text or arguments[i + 1]
            rest = arguments[:i] + arguments[i + 2 :]
    if rest:
        notes.append(
            f"-ddlarg {shlex.join(rest)}: settings of DDL's own, which dl_comm does not have; dlrun tune "
            "finds the settings of dl_comm"
        )
    if not text:
        return []
    match = _MODE.fullmatch(text)
    if not match:
        raise DlrunError(f"-mode {text} is no mode", "write p:6x2x1x1: GPUs of a host x hosts x racks x aisles")
    notes.append(
        f"-mode {match['letter']}: chooses an algorithm of DDL's; dl_comm chooses its own, and dlrun tune "
        "measures which"
    )
    return [int(count) for count in match["counts"].split("x")] if match["counts"] else []


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
        raise DlrunError(
            f"-rankfile {path} places ranks on the hosts round-robin",
            "dlrun launch keeps neighbours on one host, in shared memory: number them so",
        )
    notes.append("the rankfile's slots are not used: each rank is given cores of its own, next to its GPU")
    return tuple(Host(name, order.count(name)) for name in names)


def _count(said: _Said, option: str) -> int | None:
    text = said.options.get(option)
    if text is None:
        return None
    if not text.isdigit() or int(text) < 1:
        raise DlrunError(f"-{option} {text} is no number of them", "give 1 or more")
    return int(text)


def _program(words: list[str]) -> tuple[list[str], list[str]]:
    """Return the program without the interpreter, since every rank runs dlrun's, and variables for its options."""
    variables: list[str] = []
    if re.fullmatch(r"python(\d(\.\d+)?)?", Path(words[0]).name):
        words = words[1:]
        while words and (words[0] in ("-u", "-B", "-s", "-E", "-I", "-O", "-OO") or words[0].startswith("-W")):
            option, words = words[0], words[1:]
            if option.startswith("-O"):
                variables.append(f"PYTHONOPTIMIZE={len(option) - 1}")
            elif option.startswith("-W"):
                value, words = (option[2:], words) if option[2:] or not words else (words[0], words[1:])
                variables.append(f"PYTHONWARNINGS={value}")
    if not words or (words[0].startswith("-") and words[0] != "-m"):
        raise DlrunError("after python comes no script", f"write one, as in: {_EXAMPLE}")
    return words, variables
