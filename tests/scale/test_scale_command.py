"""`dlrun scale` on real ranks, with a script whose rates are known."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

DIGITS = Path(__file__).parents[2] / "examples" / "torch_mnist" / "dist.py"
HAS_MPI = shutil.which("mpiexec") or (Path(sys.executable).parent / "mpiexec").exists()
pytestmark = pytest.mark.skipif(not HAS_MPI, reason="no mpiexec: nothing can start ranks")

# 100 samples/s on a rank, 90 % of the ideal on two; a strong run shows its share of the batch.
SCRIPT = """
import argparse
from mpi4py import MPI
parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--lr", type=float, default=0.5)
args = parser.parse_args()
n = MPI.COMM_WORLD.Get_size()
if MPI.COMM_WORLD.Get_rank() == 0:
    for epoch in range(3):
        rate = 100 * n * (1 if n == 1 else 0.9) + epoch
        print(f"epoch {epoch}: loss {1 / (epoch + 1)}, accuracy {0.7 + epoch / 10}, {rate} samples/s", flush=True)
    print("batch", args.batch_size, "lr", args.lr)
MPI.COMM_WORLD.Barrier()
"""


def scale(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dlrun", "scale", *args]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200, check=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train_dist.py").write_text(SCRIPT)
    return tmp_path


def test_rates_efficiencies_figures_and_a_page_that_needs_no_network(folder: Path) -> None:
    done = scale(folder, "train_dist.py", "-n", "1,2", "--divide", "batch-size=64", "--divide", "lr=0.5")
    assert done.returncode == 0, done.stderr
    result = json.loads((folder / "dlrun-scale" / "scale.json").read_text())
    rows = {(row["mode"], row["ranks"]): row for row in result["rows"]}
    assert set(rows) == {("weak", 1), ("weak", 2), ("strong", 1), ("strong", 2)}
    assert rows["weak", 1]["mean"] == 101.5
    assert rows["weak", 2]["efficiency"] == pytest.approx(181.5 / 203)
    assert result["target"] == pytest.approx(0.9)
    logs = [p.read_text() for p in folder.glob("dlrun-runs/2*/rank-0.log")]
    assert sorted(re.search(r"batch .*", log)[0] for log in logs if "batch" in log) == [  # type: ignore[index]
        "batch 32 lr 0.25",
        "batch 64 lr 0.5",
        "batch 64 lr 0.5",
    ]
    assert "90 %" in done.stdout or "89 %" in done.stdout
    page = (folder / "dlrun-scale" / "report.html").read_text()
    pytest.importorskip("matplotlib")
    assert page.count("<svg") == 5
    assert not re.search(r"(?:src|href)=\"(?!#)", page)
    for name in ("throughput", "efficiency", "accuracy", "loss", "time-to-accuracy"):
        assert (folder / "dlrun-scale" / f"{name}.pdf").read_bytes().startswith(b"%PDF")
        assert (folder / "dlrun-scale" / f"{name}.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.wide
def test_the_rates_of_the_digits_are_those_of_a_clock_outside_the_script(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    pytest.importorskip("torch")
    done = scale(tmp_path, str(DIGITS), "-n", "2", "--json", "--", "--epochs", "10")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    (run,), (row,) = result["runs"], result["rows"]
    ends = [point["seconds"] for point in run["reading"]["points"]]
    assert len(ends) == 10
    # Epochs of 1536 samples, each between two lines, with an evaluation. A line that comes late is not the typical one.
    by_hand = 1536 / statistics.median(after - before for before, after in itertools.pairwise(ends))
    typical = statistics.median(run["reading"]["rates"][1:])
    assert by_hand < 1.9 * typical, "half of the rate, or twice, would be another unit"
    assert by_hand > 0.01 * row["mean"]
    assert ends[-1] < run["seconds"]
    assert row["mean"] == pytest.approx(sum(run["reading"]["rates"][1:]) / 9)


def test_without_matplotlib_the_tables_still_come_and_a_line_says_what_to_install(folder: Path) -> None:
    (folder / "matplotlib.py").write_text("raise ImportError('no matplotlib here')")
    done = scale(folder, "train_dist.py", "-n", "1")
    assert done.returncode == 0, done.stderr
    assert "weak" in done.stdout
    assert "pip install 'dlrun[plot]'" in done.stderr
    assert "<table>" in (folder / "dlrun-scale" / "report.html").read_text()


def test_a_script_that_prints_no_rate_has_its_epochs_timed(folder: Path) -> None:
    text = "import time\nfor e in range(3):\n    time.sleep(0.2)\n    print(f'epoch {e}: accuracy 0.5', flush=True)\n"
    (folder / "epochs.py").write_text(text)
    done = scale(folder, "epochs.py", "-n", "1")
    assert done.returncode == 0, done.stderr
    assert "epochs/s" in done.stdout.splitlines()[1]
    assert "the script prints no samples/s: its rates are epochs/s" in done.stderr


GOES_ON = """
import os
checkpoint = os.environ["CHECKPOINT"]  # an absolute path, which leads out of the run's folder
begins = 3 * os.path.exists(checkpoint)
open(checkpoint, "w").close()
for epoch in range(begins, begins + 3):
    print(f"epoch {epoch}: 9 samples/s")
"""


@pytest.mark.parametrize(
    ("script", "args", "said"),
    [
        ("print('hello')", ("-n", "1"), "the script printed no rate"),
        ("print('9 samples/s')", ("-n", "2"), "no rank talked to another"),
        ("raise SystemExit(3)", ("-n", "1"), "the weak run with -n 1 failed"),
        (GOES_ON, ("-n", "1", "--repeats", "2"), "begins with epoch 3, and began with epoch 0"),
        (
            "print('9 img/s, warm')",
            ("-n", "1", "--rate", "(.*)"),
            "finds '9 img/s, warm' in '9 img/s, warm', and that is no",
        ),
        ("", ("--rate", "speed ("), "'speed (' is no regular expression"),
        ("", ("--accuracy", "top1"), "'top1' has no group for the number; write 'top1 ([0-9.]+)'"),
        ("", ("-n", "0,1"), "write 1,2,4"),
        ("", ("--divide", "batch=many"), "'many' is no number"),
        ("", ("--divide", "batch=0"), "--divide: 0 cannot be divided among ranks"),
        ("", ("--divide", "batch=-8"), "--divide: -8 cannot be divided among ranks"),
        ("", ("--divide", "lr=nan"), "--divide: nan cannot be divided among ranks"),
    ],
)
def test_what_goes_wrong_is_said(
    folder: Path, script: str, args: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHECKPOINT", str(folder / "checkpoint"))
    (folder / "bad.py").write_text(script)
    done = scale(folder, "bad.py", *args)
    assert done.returncode != 0
    assert said in done.stderr


def test_a_run_that_fails_leaves_those_before_it(folder: Path) -> None:
    fails = SCRIPT.replace("n = MPI", "if MPI.COMM_WORLD.Get_size() == 2: raise ValueError('too many')\nn = MPI")
    (folder / "fails.py").write_text(fails)
    done = scale(folder, "fails.py", "-n", "1,2")
    assert done.returncode == 1 and "Measured" in done.stdout, done.stderr
    assert "a run failed: the tables hold the runs that were done" in done.stderr
    assert "dlrun: the weak run with -n 2 failed: rank " in done.stderr and "ValueError: too many" in done.stderr
    assert [run["ranks"] for run in json.loads((folder / "dlrun-scale/scale.json").read_text())["runs"]] == [1]


SAVES = """
import os, sys
import torch
import dl_comm
import settings
dl_comm.init_mpi()
n = dl_comm.get_nranks()
begins = 3 * os.path.exists("last.pt")
assert open("data/x.csv").read() == "1,2" and open("../beside.csv").read() == "3"
for epoch in range(begins, begins + 3):
    dl_comm.barrier()
    if dl_comm.get_rank() == 0:
        print(f"epoch {epoch}: {9 * n} samples/s", flush=True)
        for name in ("last.pt", "model.pt", sys.argv[1]):
            torch.save({}, name)  # written in C++
        open("log.txt", "a").write(f" {n}")
        open(os.path.dirname(os.path.abspath(__file__)) + f"/made-on-{n}.txt", "w").close()
dl_comm.finalize()
"""


def test_no_run_writes_over_the_users_files_or_goes_on_from_what_another_has_saved(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    here, far = tmp_path / "a folder" / "übung", tmp_path / "far.pt"
    (here / "data").mkdir(parents=True)
    mine = {
        "data/x.csv": "1,2",
        "../beside.csv": "3",
        "model.pt": "three weeks",
        "log.txt": "mine",
        "../../far.pt": "f",
    }
    for name, text in {**mine, "train_dist.py": SAVES, "settings.py": ""}.items():
        (here / name).write_text(text)
    done = scale(here, "train_dist.py", "-n", "1,2", "--json", "--", str(far))
    assert done.returncode == 0, done.stderr
    assert {name: (here / name).read_text() for name in mine} == mine
    assert {path.name for path in here.iterdir()} == {
        "data",
        "model.pt",
        "log.txt",
        "train_dist.py",
        "settings.py",
        "dlrun-runs",
        "dlrun-scale",
    }
    for run in json.loads(done.stdout)["runs"]:
        root = here / run["files"]
        wrote = {path.name: path for path in root.rglob("*") if not path.is_dir()}
        assert set(wrote) == {"last.pt", "model.pt", "log.txt", f"made-on-{run['ranks']}.txt"}
        assert wrote["log.txt"].read_text() == "mine" + 3 * f" {run['ranks']}"
        assert run["files"] in done.stderr
        assert {path.name for path in root.parent.iterdir()} >= {"files", "rank-0.log"}
        assert not list(root.parent.glob("*.lock"))
        assert not (root.parent / "outside").exists()


def test_a_module_of_a_package_is_measured_apart_too(folder: Path) -> None:
    package = folder / "trains"
    package.mkdir()
    (folder / "train_dist.py").rename(package / "main.py")
    (package / "__init__.py").write_text("")
    (package / "name.py").write_text("NAME = 'made.txt'\n")
    text = (package / "main.py").read_text()
    (package / "main.py").write_text("from .name import NAME\nopen(NAME, 'w').close()\n" + text)
    done = scale(folder, "-n", "1", "-m", "trains.main")
    assert done.returncode == 0, done.stderr
    assert len(list(folder.glob("dlrun-runs/2*/files/**/made.txt"))) == 1
    assert not (folder / "made.txt").exists()


def test_runs_of_other_programs_than_pythons_do_not_go_on_from_each_other_either(tmp_path: Path) -> None:
    here, far = tmp_path / "a" / "b" / "c" / "d", tmp_path / "far.sh"
    here.mkdir(parents=True)
    text = "#!/bin/sh\ntest -e last.pt && exit 3\ncat data.csv\ntouch last.pt\necho '9 samples/s'\n"
    for program in (here / "train.sh", far):
        program.write_text(text)
        program.chmod(0o755)
    (here / "data.csv").write_text("1,2")
    for name in ("./train.sh", "../../../../far.sh"):
        done = scale(here, name, "-n", "1", "--repeats", "2")
        assert done.returncode == 0, done.stderr
        assert {path.name for path in here.iterdir()} == {"train.sh", "data.csv", "dlrun-runs", "dlrun-scale"}
    assert len(list(here.glob("dlrun-runs/2*/files/**/last.pt"))) == 4


LISTENS = """
import os, time
run = os.environ["DLRUN_RUN_DIR"]
print("epoch 0: accuracy 0.5, 100 samples/s", flush=True)
open(f"{run}/listens", "w").close()
while not os.path.exists(f"{run}/stop"):
    time.sleep(0.02)
"""


def test_links_that_nobody_needs_do_not_stay_after_an_interruption(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("1")
    text = "import time\nopen('begun', 'w').close()\nprint('epoch 0: 9 samples/s', flush=True)\ntime.sleep(100)\n"
    (tmp_path / "train_dist.py").write_text(text)
    line = [sys.executable, "-m", "dlrun", "scale", "-n", "1", "train_dist.py"]
    process = subprocess.Popen(line, cwd=tmp_path, stderr=subprocess.DEVNULL)
    by = time.monotonic() + 120
    while not list(tmp_path.glob("dlrun-runs/2*/files/**/begun")):
        assert process.poll() is None and time.monotonic() < by
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=120) == 130
    left = [path.name for path in tmp_path.glob("dlrun-runs/2*/files/**/*") if not path.is_dir()]
    assert left == ["begun"]


def test_a_run_that_saved_and_stopped_because_it_was_told_to_is_no_measurement(tmp_path: Path) -> None:
    (tmp_path / "train_dist.py").write_text(LISTENS)
    line = [sys.executable, "-m", "dlrun", "scale", "-n", "1", "train_dist.py"]
    process = subprocess.Popen(line, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    by = time.monotonic() + 120
    while not list(tmp_path.glob("dlrun-runs/2*/listens")):
        assert process.poll() is None and time.monotonic() < by
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 143
    assert said.splitlines()[-1] == "dlrun: ended by SIGTERM before the first run was done", said
