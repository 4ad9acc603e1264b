"""Ports a folder of public scripts, runs the ports, and prints the table: ported, refused, doubted, wrong.

    python tests/port/public_scripts.py TABLE.tsv FOLDER [--standins DIR] [--only ID ...] [--run] [--steps 4]

TABLE.tsv has the columns id, framework, path, expect; FOLDER/ID/ holds each script beside its local modules. With
--run every port is run for a few steps: on 1 rank (the parameters must be those of the serial script, bit by bit),
on 2 ranks that each repeat the serial run (likewise), and on 2 ranks that share the data (all ranks must hold the
same parameters after every step). The scripts themselves are no part of the repository.
"""

import argparse
import csv
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from dlrun.errors import DlrunError
from dlrun.port.files import read_and_port, write
from dlrun.port.report import Ported

PROBE = Path(__file__).with_name("probe.py")


def run(folder: Path, script: str, ranks: int, args: argparse.Namespace, **extra: str) -> list[dict[str, object]]:
    """Return what the probe wrote on each rank; ``ranks`` 0 is a run without a launcher."""
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch) / "work"
        shutil.copytree(folder, work)
        result = Path(scratch) / "result"
        environment = {**os.environ, "MPLBACKEND": "Agg", "OMP_NUM_THREADS": "1", "STANDIN_FAKE_CUDA": "1",
                       "STANDIN_N": "256", "PYTHONHASHSEED": "0", **extra}  # fmt: skip
        environment["PYTHONPATH"] = os.pathsep.join([*([args.standins] if args.standins else []), str(work)])
        command = [
            sys.executable,
            str(PROBE),
            str(result),
            str(args.steps),
            script,
            *args.arguments.get(folder.name, []),
        ]
        if ranks:
            command = [str(Path(sys.executable).with_name("mpiexec")), "-n", str(ranks), *command]
        try:
            done = subprocess.run(
                command, cwd=work, env=environment, capture_output=True, text=True, timeout=args.timeout
            )
            (Path(args.logs) / f"{folder.name}-{ranks}{'r' if extra else ''}.log").write_text(
                done.stdout[-4000:] + done.stderr[-6000:]
            )
        except subprocess.TimeoutExpired:
            return [{"why": f"no end in {args.timeout} s", "digests": []}]
        found = []
        for rank in range(max(ranks, 1)):
            file = Path(f"{result}.{rank}")
            found.append(json.loads(file.read_text()) if file.exists() else {"why": "killed", "digests": []})
        return found


def judged(folder: Path, script: str, ported: Ported, args: argparse.Namespace) -> str:
    """Return the verdict over the runs of one port, in a few words."""
    with tempfile.TemporaryDirectory() as scratch:
        port = Path(scratch) / folder.name
        shutil.copytree(folder, port)
        write(port / script, ported.script_part.encoded(), like=folder / script)
        for module in ported.modules:
            write(port / module.file, module.encoded(), like=folder / module.file)
        return compared(folder, port, script, args)


def compared(folder: Path, ported: Path, script: str, args: argparse.Namespace) -> str:
    """Return the verdict over the runs of ``script`` in ``folder``, and of its port in another."""
    (one,) = run(folder, script, 0, args)
    if not one["digests"]:
        return f"serial does not run: {one['why']}"
    (alone,) = run(ported, script, 0, args)
    if alone["digests"] != one["digests"]:
        return f"WRONG alone: {alone['why']} after {len(alone['digests'])} of {len(one['digests'])} steps"
    twins = run(ported, script, 2, args, DL_COMM_REPLICATE="1")
    for rank, twin in enumerate(twins):
        if twin["digests"] != one["digests"]:
            return f"WRONG replicate: rank {rank}: {twin['why']} after {len(twin['digests'])} steps"
    shared = run(ported, script, 2, args)
    if not shared[0]["digests"]:
        return f"WRONG shared: {[r['why'] for r in shared]}"
    if shared[0]["digests"] != shared[1]["digests"]:
        return f"WRONG shared: parameters differ; {[r['why'] for r in shared]}"
    if shared[0]["digests"] == one["digests"]:
        if len(set(one["digests"])) == 1 and len(one["digests"]) > 1:
            return "right (as far as its parameters tell: no step changes them)"
        if any("# this rank's samples" in file.read_text("utf-8", "replace") for file in ported.rglob("*.py")):
            return "right (the mean over equal parts of a full batch is exact)"
        return "WRONG shared: nothing was shared, 2 ranks repeat the serial run"
    return "right"


def main() -> None:
    """Print one line a script, and the counts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("table", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--standins", default="")
    parser.add_argument("--framework", default="torch")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--arguments", type=json.loads, default={}, help='JSON: {"id": ["--epochs", "1"]}')
    parser.add_argument("--run", action="store_true")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--timeout", type=int, default=90)
    parser.add_argument("--logs", default=tempfile.gettempdir())
    args = parser.parse_args()
    counts: Counter[str] = Counter()
    with args.table.open() as file:
        rows = [r for r in csv.DictReader(file, delimiter="\t") if r["framework"] == args.framework]
    for row in rows:
        folder = args.folder / row["id"]
        script = folder / Path(row["path"]).name
        if (args.only and row["id"] not in args.only) or not script.exists():
            continue
        start = time.perf_counter()
        try:
            ported = read_and_port(script)
            modules = f" in {1 + len(ported.modules)} files" if ported.modules else ""
            verdict = f"ported{modules}, {len(ported.doubts)} doubts"
        except DlrunError as error:
            verdict = "refused: " + error.message.splitlines()[0].replace(str(script.parent) + os.sep, "")[:110]
            ported = None
        except Exception as error:  # a traceback is a finding of its own
            verdict, ported = f"CRASH {type(error).__name__}: {error}", None
        took = time.perf_counter() - start
        counts[verdict.split(":")[0].split(",")[0].split(" in ")[0]] += 1
        outcome = ""
        if ported is not None and args.run and row["runs_offline"] == "yes":
            outcome = judged(folder, script.name, ported, args)
            counts[" ".join(outcome.split(":")[0].split()[:2])] += 1
        print(f"{row['id']}  {took:4.2f} s  expect {row['expect'][:24]:24}  {verdict}  {outcome}", flush=True)
    print(", ".join(f"{n} {what}" for what, n in counts.most_common()))


if __name__ == "__main__":
    main()
