"""Measures on a machine with a GPU what cannot be seen without one.

    python tests/comm/device/measure.py             on one GPU; the report is gpu-report/report.txt
    python tests/comm/device/measure.py --dry-run   only says what would be run
    python tests/comm/device/measure.py --rehearse  the same small, over the fake driver of the tests, without a GPU

Needs a checkout, dlrun installed from it with its tests' tools, and PyTorch for CUDA; with TensorFlow for CUDA, once
more in that environment. Every step is a command that can be run by itself. One that fails is noted, and the next runs.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from gpus import HERE, compiled

from dlrun.bench.result import from_json

ROOT = HERE.parents[2]
DLRUN = (sys.executable, "-m", "dlrun")
CHUNKS, STREAMS = (1024, 4096, 16384), (1, 2)


@dataclass(frozen=True)
class Step:
    """What is asked, the command that answers it, and the variables that it is run with."""

    asked: str
    command: tuple[str, ...]
    variables: tuple[tuple[str, str], ...] = ()
    result: str = ""  # the name of the JSON file with a bench's cells, if it is one

    def line(self) -> str:
        """As a shell takes it."""
        return " ".join([*(f"{name}={value}" for name, value in self.variables), shlex.join(self.command)])


def bench(asked: str, result: str, cases: tuple[str, ...], seconds: str, **variables: str) -> Step:
    file = f"{result}.json"
    words = ("bench", "allreduce", "--device", "cuda", "-n", "2", *cases, "--seconds", seconds, "--out", file)
    return Step(asked, (*DLRUN, *words), tuple(variables.items()), file)


def steps(rehearsed: bool) -> list[Step]:
    """All of it, in order: what is right first, then what is fast."""
    tests, compare = str(HERE), str(ROOT / "examples" / "cnn_benchmark" / "compare.py")
    seconds, one = ("0.02", "80KB") if rehearsed else ("1", "64MB")
    every = ("--sizes", "4,80KB", "--models", "cnn") if rehearsed else ("--sizes", "4:256MB", "--models", "resnet50")
    small = ("--size", "16", "--batch-size", "2", "--classes", "10", "--turns", "2", "--steps", "1")
    large = ("--model", "resnet50", "--size", "224", "--device", "cuda", "--turns", "13", "--steps", "10")
    trained = ("--share-gpus", compare, *(small if rehearsed else large))
    pytest = ("pytest", "-q", "-ra", "-p", "no:cacheprovider", tests, "-k", "fake and float32" if rehearsed else "real")
    found = [
        Step("what is here", (*DLRUN, "doctor")),
        Step(
            "right numbers for every type, on each way, 2 and 4 ranks; no host synchronisation in the hooks",
            (sys.executable, "-m", *pytest),
        ),
        bench("ranks that share the GPU, by CUDA IPC", "ipc", every, seconds, DL_COMM_GPU_PATH="ipc"),
        bench("the same through the host", "staged", every, seconds, DL_COMM_GPU_PATH="staged"),
    ]
    for chunk in CHUNKS[: 1 if rehearsed else None]:
        for streams in STREAMS[: 2 if rehearsed else None]:
            more = {"DL_COMM_PIPELINE_CHUNK_KB": str(chunk), "DL_COMM_NUM_CUDA_STREAMS": str(streams)}
            cases, name = ("--sizes", one, "--models", "none"), f"staged-{chunk}KB-{streams}"
            asked = f"the host in chunks of {chunk} KB over {streams} streams"
            found.append(bench(asked, name, cases, seconds, DL_COMM_GPU_PATH="staged", **more))
    two, peers = (*DLRUN, "launch", "-n", "2"), "beside DistributedDataParallel with gloo"
    found.append(Step(f"ResNet-50 on 2 ranks that have the GPU in time slices, {peers}", (*two, *trained)))
    return [*found, Step("the same on 2 ranks at once", (*two, "--mps", *trained))]


def cells(file: Path) -> list[str]:
    """The way that was gone, and for each case of a bench how fast: also as a part of the speed of pinned copies."""
    found, best = from_json(json.loads(file.read_text()), str(file)), dict[str, dict[str, float]]()
    for cell in found.cells:
        best.setdefault(cell.case, {})[cell.way] = cell.best
    return [f"  by {found.machine['path']}"] + [
        f"  {case}: {1e3 * ways['dl_comm']:.3f} ms, {ways['memcpy'] / ways['dl_comm']:.0%} of a pinned copy's speed"
        for case, ways in best.items()
    ]


def no_gpu() -> str:
    """Return why nothing can be measured here, or ""; asked in a process of its own, which frees the GPU again."""
    probe = "from dlrun.bench.programs.cuda import Gpu; Gpu()"
    asked = subprocess.run((sys.executable, "-c", probe), capture_output=True, text=True, check=False)
    return asked.stderr.splitlines()[-1].removeprefix("OSError: ") if asked.returncode else ""


def run(step: Step, folder: Path, environment: dict[str, str]) -> list[str]:
    """Run a step in the folder; what the report says of it."""
    begun = time.monotonic()
    variables = {**environment, **dict(step.variables)}
    done = subprocess.run(step.command, cwd=folder, env=variables, capture_output=True, text=True, check=False)
    took = f"{time.monotonic() - begun:.0f} s"
    ended = "" if done.returncode == 0 else f", FAILED with code {done.returncode}"
    if "pytest" in step.command and not ended and " passed" not in done.stdout.splitlines()[-1]:
        ended = ", FAILED: no test ran"
    output = done.stdout if done.returncode == 0 else done.stdout + done.stderr
    shown = cells(folder / step.result) if step.result and not ended else output.splitlines()[-60:]
    return [f"## {step.asked}", f"$ {step.line()}   ({took}{ended})", *shown, ""]


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--dry-run", action="store_true", help="print the commands")
    how.add_argument("--rehearse", action="store_true", help="small, over the fake driver")
    parser.add_argument("--out", type=Path, default=Path("gpu-report"), help="folder of the report and of all results")
    options = parser.parse_args()
    todo = steps(options.rehearse)
    if options.dry_run:
        print("\n".join(f"# {step.asked}\n{step.line()}" for step in todo))
        return 0
    if not options.rehearse and (why := no_gpu()):
        print(f"Nothing can be measured here: {why}.\n  Run this on a machine with a GPU, or with --rehearse.")
        return 1
    folder = options.out.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if options.rehearse:
        library = str(compiled(folder))
        environment |= {"DL_COMM_CUDA_LIBRARY": library, "DL_COMM_NCCL_LIBRARY": library}
    failed = 0
    with (folder / "report.txt").open("w", encoding="utf-8") as report:
        for step in todo:
            said = run(step, folder, environment)
            failed += "FAILED" in said[1]
            print("\n".join(said), flush=True)
            report.write("\n".join(said) + "\n")
            report.flush()
    if options.rehearse:
        print("Rehearsed: no number above says anything about a GPU.")
    print(f"{len(todo) - failed} of {len(todo)} steps ended well; {folder / 'report.txt'}")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
