"""Ports a table of public scripts, runs the ports, and prints the table: right, refused, not run here, wrong.

    python tests/port/public_scripts.py TABLE.tsv FOLDER RESULTS [--run] [--python keras=.../bin/python ...]
        [--standins torch=DIR --standins tf=DIR] [--arguments FILE.json] [--only ID ...] [--again] [--verify]

TABLE.tsv has the columns id, framework, path, expect; FOLDER/ID/ holds each script beside its local modules. With
--run every port is run for a few steps: on 1 rank (the parameters must be those of the serial script, bit by bit),
on 2 ranks that each repeat the serial run (likewise), and on 2 ranks that share the data (all ranks must hold the
same parameters after every step). With --verify, `dlrun verify --seed 0` judges the ports that are right by these
runs; alone it judges all. RESULTS/ID.json keeps each script's outcome: a second call goes on where the first one
ended, and without --run and --verify only prints what is there. A framework may be given several interpreters: the
first one under which the serial script trains is used. The scripts themselves are no part of the repository.
"""

import argparse
import contextlib
import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import IO

from dlrun.errors import DlrunError
from dlrun.port.files import port_tree, read_and_port

PROBE = Path(__file__).with_name("probe.py")
PROBES = {"torch": "torch", "keras": "keras", "tf2": "keras", "tf1": "session", "estimator": "session"}
QUIET = {
    "MPLBACKEND": "Agg",
    "OMP_NUM_THREADS": "1",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_ENABLE_ONEDNN_OPTS": "0",
    "TF_DETERMINISTIC_OPS": "1",
    "PYTHONHASHSEED": "0",
}


class Judge:
    """Runs one script and its port under one interpreter, and compares what the steps left behind."""

    def __init__(self, row: dict[str, str], args: argparse.Namespace, python: str) -> None:
        self.row, self.args, self.python = row, args, python
        self.script = Path(row["path"]).name

    def environment(self, work: Path) -> dict[str, str]:
        """Return what a script runs under that finds its stand-ins, and its modules in ``work``."""
        framework = self.row["framework"]
        standins = self.args.standins.get("torch" if framework == "torch" else "tf")
        quick = str(Path(__file__).with_name("quick")) if self.args.jitter else None
        path = [part for part in (quick, standins, os.environ.get("PYTHONPATH"), str(work)) if part]
        made = {
            "STANDIN_N": "256",
            **os.environ,
            **QUIET,
            "PYTHONPATH": os.pathsep.join(path),
            "STANDIN_FAKE_CUDA": "1",
            "PROBE_FRAMEWORK": PROBES[framework],
            "JITTER": self.args.jitter,
        }
        return made | ({"STANDIN_TF1": "1"} if PROBES[framework] == "session" else {})

    def verified(self, folder: Path, ported: Path) -> str:
        """Return the verdict of ``dlrun verify``: proved, or what else it says."""
        given = self.args.arguments.get(self.row["id"], [])
        command = [
            self.python,
            "-m",
            "dlrun",
            "verify",
            str(folder / self.script),
            str(ported / self.script),
            "--json",
            "--seed",
            "0",
            "--steps",
            "4",
            "--",
            *given,
        ]
        log = self.args.results / f"{self.row['id']}-verify.json"
        with tempfile.TemporaryDirectory() as scratch, log.open("w") as said:
            work = Path(scratch) / "work"
            shutil.copytree(folder, work)
            environment = self.environment(work) | {"PATH": f"{Path(self.python).parent}:{os.environ['PATH']}"}
            environment["PYTHONPATH"] = environment["PYTHONPATH"].removesuffix(f":{work}")  # each has its own modules
            try:
                bounded(command, work, environment, said, 12 * self.args.timeout)
            except subprocess.TimeoutExpired:
                return f"no verdict in {12 * self.args.timeout} s"
        text = log.read_text(errors="replace")
        try:
            verdict = json.loads(text[text.index("{\n") : text.rindex("}") + 1])
        except ValueError:
            return " ".join(line for line in text.splitlines()[-2:] if "%" not in line)[:300]
        if verdict.get("error"):
            return f"no verdict: {verdict['error']}"[:400]
        wrong = [f"{c['name']}: {c['finding']}" for c in verdict["checks"] if c["status"] == "failed"]
        passed = sum(c["status"] == "passed" for c in verdict["checks"])
        return f"proved ({passed} checks)" if verdict["proved"] else f"NOT PROVED: {'; '.join(wrong)}"[:400]

    def run(self, folder: Path, ranks: int, **extra: str) -> list[dict[str, object]]:
        """Return what the probe wrote on each rank; ``ranks`` 0 is a run without a launcher."""
        with tempfile.TemporaryDirectory() as scratch:
            work, result = Path(scratch) / "work", Path(scratch) / "result"
            shutil.copytree(folder, work)
            environment = self.environment(work) | extra
            given = self.args.arguments.get(self.row["id"], [])
            command = [self.python, str(PROBE), str(result), str(self.args.steps), self.script, *given]
            if ranks:
                command = [str(Path(self.python).with_name("mpiexec")), "-n", str(ranks), *command]
            log = self.args.results / f"{self.row['id']}-{ranks}{'r' if extra else ''}.log"
            try:
                with log.open("w") as said:
                    bounded(command, work, environment, said, self.args.timeout)
            except subprocess.TimeoutExpired:
                return [{"why": f"no end in {self.args.timeout} s", "digests": []}] * max(ranks, 1)
            found = [Path(f"{result}.{rank}") for rank in range(max(ranks, 1))]
            return [json.loads(f.read_text()) if f.exists() else {"why": "killed", "digests": []} for f in found]

    def compared(self, folder: Path, ported: Path, one: dict[str, object]) -> str:
        """Return the verdict over the runs of the port, which follow a serial run ``one``."""
        steps = one["digests"]
        assert isinstance(steps, list)
        (alone,) = self.run(ported, 0)
        if alone["digests"] != steps:
            (again,) = self.run(folder, 0)
            if again["digests"] != steps:
                return f"NOT RUN: the serial script does not repeat itself: {again['why']}"
            return f"WRONG alone: {alone['why']} after {equal(alone, one)} of {len(steps)} steps"
        for rank, twin in enumerate(self.run(ported, 2, DL_COMM_REPLICATE="1")):
            if twin["digests"] != steps:
                return f"WRONG replicate: rank {rank}: {twin['why']} after {equal(twin, one)} of {len(steps)} steps"
        shared = self.run(ported, 2)
        if any("CommError: shard" in str(r["why"]) and "cannot be divided among" in str(r["why"]) for r in shared):
            return f"NOT RUN: too few samples here for 2 ranks, and the port says so: {shared[0]['why']}"
        if not shared[0]["digests"]:
            return f"WRONG shared: {[r['why'] for r in shared]}"
        if shared[0]["digests"] != shared[1]["digests"]:
            return f"WRONG shared: parameters differ; {[r['why'] for r in shared]}"
        if shared[0]["digests"] == steps:
            if len(set(steps)) == 1 and len(steps) > 1:
                return "right (as far as its parameters tell: no step changes them)"
            if any("# this rank's samples" in file.read_text("utf-8", "replace") for file in ported.rglob("*.py")):
                return "right (the mean over equal parts of a full batch is exact)"
            return "WRONG shared: nothing was shared, 2 ranks repeat the serial run"
        return "right"


def bounded(command: list[str], work: Path, environment: dict[str, str], said: IO[str], seconds: int) -> None:
    """Run ``command``, and end it with all that it started if it takes longer than ``seconds``."""
    with subprocess.Popen(command, cwd=work, env=environment, stdout=said, stderr=said, start_new_session=True) as run:
        try:
            run.wait(seconds)
        except subprocess.TimeoutExpired:
            run.send_signal(signal.SIGINT)  # lets dlrun verify end the sessions that it started
            with contextlib.suppress(subprocess.TimeoutExpired):
                run.wait(20)
            raise
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(run.pid, signal.SIGKILL)


def equal(run: dict[str, object], serial: dict[str, object]) -> int:
    """Return after how many first steps two runs hold the same parameters."""
    steps = list(zip(run["digests"], serial["digests"], strict=False))  # type: ignore[call-overload]
    return next((i for i, (a, b) in enumerate(steps) if a != b), len(steps))


def judged(row: dict[str, str], folder: Path, args: argparse.Namespace) -> dict[str, object]:
    """Return the verdicts over the runs of one port, under the first interpreter that trains the serial script."""
    whys = []
    script = Path(row["path"]).name
    for python in args.python.get(row["framework"], [sys.executable]):
        judge = Judge(row, args, python)
        (one,) = judge.run(folder, 0)
        if not one["digests"]:
            whys.append(str(one["why"]))
            continue
        with tempfile.TemporaryDirectory() as scratch:
            port = port_tree(folder / script, Path(scratch) / "port").path.parent
            shutil.copytree(folder, port, copy_function=missing, dirs_exist_ok=True)
            ran = judge.compared(folder, port, one) if args.run else "right"
            return {"ran": ran} | (
                {"verified": judge.verified(folder, port)} if args.verify and ran.startswith("right") else {}
            )
    return {"ran": f"NOT RUN: {' / '.join(whys)}"}


def missing(source: str, target: str) -> None:
    """Copy a file to where there is none."""
    if not Path(target).exists():
        shutil.copy2(source, target)


def outcome(row: dict[str, str], folder: Path, args: argparse.Namespace) -> dict[str, object]:
    """Port one script, run it where asked, and return what came of it."""
    script = folder / Path(row["path"]).name
    start = time.perf_counter()
    found: dict[str, object] = {"id": row["id"], "framework": row["framework"], "expect": row["expect"]}
    try:
        ported = read_and_port(script)
    except DlrunError as error:
        return found | {"refused": error.message.splitlines()[0].replace(str(script.parent) + os.sep, "")}
    except Exception as error:  # a traceback is a finding of its own
        return found | {"crash": f"{type(error).__name__}: {error}"}
    found |= {
        "seconds": round(time.perf_counter() - start, 2),
        "files": 1 + len(ported.modules),
        "doubts": len(ported.doubts),
    }
    return found | (judged(row, folder, args) if args.run or args.verify else {})


def kind(found: dict[str, object]) -> str:
    """Return the column of the table that an outcome counts in."""
    to_refuse = str(found["expect"]).startswith("refuse")
    if "crash" in found:
        return "crashed"
    if "refused" in found:
        return "refused rightly" if to_refuse else "refused wrongly"
    if to_refuse:
        return "ported, though to be refused"
    ran = str(found.get("ran", ""))
    return "wrong" if ran.startswith("WRONG") else "right" if ran.startswith("right") else "ported, not run here"


def table(results: list[dict[str, object]]) -> str:
    """Return the outcomes, a line a script, and their counts by framework."""
    lines = []
    for found in results:
        said = str(found.get("ran") or found.get("refused") or found.get("crash") or "")
        said = " | ".join(part for part in (said[:150], str(found.get("verified", ""))) if part)
        lines.append(f"{found['id']}  {kind(found):22} {str(found['expect'])[:24]:24}  {said}")
    kinds = Counter((str(f["framework"]), kind(f)) for f in results)
    names = list(dict.fromkeys(name for _, name in kinds))
    for framework in [*dict.fromkeys(str(f["framework"]) for f in results), ""]:
        counts = [(sum(n for (f, k), n in kinds.items() if k == name and framework in ("", f)), name) for name in names]
        told = ", ".join(f"{n} {name}" for n, name in counts if n)
        lines.append(f"{framework or 'all'}: {sum(n for n, _ in counts)} scripts: {told}")
        verdicts = [str(f["verified"]) for f in results if "verified" in f and framework in ("", f["framework"])]
        if verdicts:
            lines.append(f"    verified: {sum(v.startswith('proved') for v in verdicts)} of {len(verdicts)} proved")
    return "\n".join(lines)


def main() -> None:
    """Judge what has no result yet, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("table", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("results", type=Path)
    parser.add_argument("--python", nargs="*", action="extend", default=[], help="FRAMEWORK=INTERPRETER")
    parser.add_argument("--standins", nargs="*", action="extend", default=[], help="torch=DIR, tf=DIR")
    parser.add_argument("--framework", nargs="*", default=list(PROBES))
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--arguments", type=Path, help='a JSON file: {"id": ["--epochs", "1"]}')
    parser.add_argument("--run", action="store_true")
    parser.add_argument("--verify", action="store_true", help="let dlrun verify judge the ports that are right")
    parser.add_argument("--again", action="store_true", help="judge scripts again that have a result")
    parser.add_argument("--jitter", default="", metavar="SEED", help="let ranks sleep before they touch files")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--timeout", type=int, default=90)
    args = parser.parse_args()
    interpreters: dict[str, list[str]] = {}
    for framework, python in (given.split("=", 1) for given in args.python):
        interpreters.setdefault(framework, []).append(python)
    args.python, args.standins = interpreters, dict(given.split("=", 1) for given in args.standins)
    args.arguments = json.loads(args.arguments.read_text()) if args.arguments else {}
    args.results.mkdir(parents=True, exist_ok=True)
    results = []
    with args.table.open() as file:
        rows = [row for row in csv.DictReader(file, delimiter="\t") if row["framework"] in args.framework]
    for row in rows:
        kept, folder = args.results / f"{row['id']}.json", (args.folder / row["id"]).resolve()
        wanted = (not args.only or row["id"] in args.only) and (folder / Path(row["path"]).name).exists()
        if wanted and (args.again or not kept.exists()):
            found = outcome(row, folder, args)
            kept.write_text(json.dumps(found))
            print(row["id"], kind(found), found.get("ran", ""), found.get("verified", ""), flush=True)
        if kept.exists() and (not args.only or row["id"] in args.only):
            results.append(json.loads(kept.read_text()))
    print(table(results))


if __name__ == "__main__":
    main()
