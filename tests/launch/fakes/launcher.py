"""Stands in for aprun, PALS' mpiexec, jsrun or flux: ``launcher.py TOOL words``.

It takes the options that the tool's manual names, and no other; what is wrong is refused in the tool's manner. Then it
really starts the ranks: under the mpiexec that $FAKE_MPIEXEC names, with the variables that the tool sets.
"""

from __future__ import annotations

import os
import re
import sys

COUNT, COUNT_FROM_0, TEXT = r"[1-9]\d*", r"\d+", r".+"
# tool -> how it calls an option -> (its longer name, what its value looks like; None for a switch)
OPTIONS: dict[str, dict[str, tuple[str, str | None]]] = {
    "aprun": {
        "-n": ("ranks", COUNT),
        "-N": ("per node", COUNT),
        "-d": ("depth", COUNT),
        "-j": ("threads", "[0124]"),
        "-cc": ("bind", r"cpu|depth|numa_node|none|[\d,:x-]+"),
        "-L": ("nodes", r"\d+(-\d+)?(,\d+(-\d+)?)*"),
        "-S": ("per NUMA node", COUNT),
        "-r": ("reserved", COUNT),
        "-e": ("env", r"\w+=.*"),
        "-b": ("bypass", None),
        "-q": ("quiet", None),
        "-m": ("memory", r"\d+[kKmMgG]?(h|hs)?"),
        "-T": ("sync output", None),
    },
    "pals": {
        "-n": ("ranks", COUNT),
        "--np": ("ranks", COUNT),
        "--ppn": ("per node", COUNT),
        "--depth": ("depth", COUNT),
        "--cpu-bind": ("bind", r"none|numa|socket|core|thread|depth|(list|mask):.+"),
        "--hosts": ("hosts", TEXT),
        "--hostfile": ("hostfile", TEXT),
        "--env": ("env", r"\w+(=.*)?"),
        "--label": ("label", None),
        "--line-buffer": ("line", None),
        "--no-vni": ("no vni", None),
        "--pmi": ("pmi", "cray|pmix|none"),
        "--mem-bind": ("memory", TEXT),
        "--gpu-bind": ("gpus", TEXT),
    },
    "jsrun": {
        "-n": ("sets", COUNT),
        "-r": ("sets per host", COUNT),
        "-a": ("ranks of a set", COUNT),
        "-c": ("cores of a set", rf"{COUNT}|ALL_CPUS"),
        "-g": ("GPUs of a set", rf"{COUNT_FROM_0}|ALL_GPUS"),
        "-b": ("bind", r"none|rs|packed(:\d+)?(:smt:\d)?"),
        "-d": ("order", r"packed|cyclic|plane:\d+"),
        "-X": ("exit on error", "[01]"),
        "-E": ("env", r"\w+(=.*)?"),
        "-l": ("latency", TEXT),
        "--smpiargs": ("mpi", TEXT),
        "--stdio_mode": ("stdio", "collected|individual|prepended"),
    },
    "flux": {
        "-N": ("nodes", COUNT),
        "-n": ("ranks", COUNT),
        "-c": ("cores", COUNT),
        "-g": ("GPUs", COUNT),
        "-o": (
            "shell",
            r"(cpu-affinity=(on|off|per-task|map:.+)|gpu-affinity=(on|off|per-task|map:.+)|exit-on-error|"
            r"exit-timeout=\w+|mpi=\w+|pmi=\w+|verbose(=\d)?)",
        ),
        "--env": ("env", TEXT),
        "--requires": ("requires", r"\^?(host|hosts|rank|ranks):.+|\w+"),
        "-u": ("unbuffered", None),
        "-l": ("label", None),
        "-t": ("time", TEXT),
        "-q": ("queue", TEXT),
        "--exclusive": ("whole nodes", None),
    },
}
UNKNOWN = {
    "aprun": "aprun: unrecognized option '{}'",
    "pals": "mpiexec: unrecognized option '{}'",
    "jsrun": "Error: unknown option '{}'",
    "flux": "flux-run: error: unrecognized arguments: {}",
}
# What each tells a rank, in the shell's words: r is the rank, p the ranks on a node, n all of them.
TELLS = {
    "aprun": "ALPS_APP_PE=$r",
    "pals": "PALS_RANKID=$r PALS_LOCAL_RANKID=$((r % p)) PALS_LOCAL_SIZE=$p PALS_NODEID=$((r / p)) PALS_APID=a-b",
    "jsrun": "JSM_NAMESPACE_RANK=$r JSM_NAMESPACE_SIZE=$n JSM_NAMESPACE_LOCAL_RANK=$((r % p)) "
    "JSM_NAMESPACE_LOCAL_SIZE=$p",
    "flux": "FLUX_TASK_RANK=$r FLUX_JOB_SIZE=$n FLUX_TASK_LOCAL_ID=$((r % p)) FLUX_JOB_ID=f1 FLUX_JOB_NNODES=1",
}


def options(tool: str, words: list[str]) -> tuple[dict[str, str], list[str]]:
    """Return the options that stand before the program, and the program with its arguments; ends for a wrong one."""
    found: dict[str, str] = {}
    while words and words[0].startswith("-"):
        word = words.pop(0)
        name, equals, value = word.partition("=") if word.startswith("--") else (word, "", "")
        if name not in OPTIONS[tool]:
            sys.exit(UNKNOWN[tool].format(word))
        meaning, pattern = OPTIONS[tool][name]
        if pattern is not None:
            if not equals:
                if not words:
                    sys.exit(f"{tool}: option '{name}' requires an argument")
                value = words.pop(0)
            if not re.fullmatch(pattern, value):
                sys.exit(f"{tool}: invalid value '{value}' for {name}")
        found[meaning] = value
    if not words:
        sys.exit(f"{tool}: no program is given")
    return found, words


def ranks(tool: str, found: dict[str, str]) -> tuple[int, int]:
    """Return (ranks, ranks on each node); ends where the options contradict each other."""
    if tool == "jsrun":
        each = int(found.get("ranks of a set", 1))
        total, per_node = int(found["sets"]) * each, int(found.get("sets per host", found["sets"])) * each
        bound = re.match(r"packed:(\d+)", found.get("bind", ""))
        if bound and int(bound[1]) * each > int(found.get("cores of a set", 1)):
            sys.exit("Error: binding asks for more cores than the resource set has")
        return total, per_node
    total = int(found.get("ranks", 1))
    if tool == "flux":
        nodes = int(found.get("nodes", 1))
        if "whole nodes" in found and "nodes" not in found:
            sys.exit("flux-run: ERROR: --exclusive can only be used with --nodes")
        if nodes > total:
            sys.exit("flux-run: ERROR: node count must not be greater than task count")
        return total, -(-total // nodes)
    if tool == "aprun" and found.get("bind") == "depth" and "depth" not in found:
        sys.exit("aprun: -cc depth requires -d")
    return total, int(found.get("per node", total))


def main(tool: str, words: list[str]) -> None:
    if words[:1] in (["--version"], ["version"]):
        print({"aprun": "aprun (ALPS) 6.6.59", "pals": "1.2.12", "jsrun": "10.3.1", "flux": "commands: 0.61.2"}[tool])
        return
    if tool == "flux" and words == ["getattr", "size"]:
        print(1)
        return
    if tool == "flux" and (not words or words.pop(0) != "run"):
        sys.exit("flux: run is the one command of this stand-in")
    found, program = options(tool, words)
    n, p = ranks(tool, found)
    tell = f'r=${{PMI_RANK:-$OMPI_COMM_WORLD_RANK}} n={n} p={p}; export {TELLS[tool]}; exec "$@"'
    mpiexec = os.environ["FAKE_MPIEXEC"]
    os.execv(mpiexec, [mpiexec, "-n", str(n), "sh", "-c", tell, "sh", *program])


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
