"""Told to stop, a script that asks should_stop() saves first; the flag is a file in the run directory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from dlrun.port import port

SAVES = """
import os, time
run = os.environ["DLRUN_RUN_DIR"]
open(f"{run}/listens", "w").close()
print("up", flush=True)
while not os.path.exists(f"{run}/stop"):
    time.sleep(0.02)
print("saved because of", open(f"{run}/stop").read().strip())
"""


def start(folder: Path, mpiexec: str, script: str, *words: str) -> subprocess.Popen[str]:
    (folder / "script.py").write_text(script)
    line = [sys.executable, "-m", "dlrun", "launch", "-n", "2", "--mpiexec", mpiexec, *words, "script.py"]
    pipe = subprocess.PIPE
    process = subprocess.Popen(line, cwd=folder, stdout=pipe, stderr=pipe, text=True, env={**os.environ})
    assert process.stdout and process.stdout.readline() == "up\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2])
def test_a_script_that_listens_saves_and_ends_well(any_mpiexec, tmp_path, number):
    process = start(tmp_path, any_mpiexec, SAVES)
    process.send_signal(number)
    out, errors = process.communicate(timeout=200)
    assert (process.returncode, out) == (0, f"saved because of {number.name}\n")
    assert f"{number.name}: the ranks save and stop; they have 60 s" in errors


def test_what_nohup_has_started_goes_on_when_the_terminal_is_gone(any_mpiexec, tmp_path):
    text = "import os, time\nprint('up')\nwhile not os.path.exists('go'): time.sleep(0.02)\n"
    (tmp_path / "waits.py").write_text(text)
    line = ["nohup", sys.executable, "-m", "dlrun", "launch", "-n", "2", "--mpiexec", any_mpiexec, "waits.py"]
    process = subprocess.Popen(line, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout and process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGHUP)
    (tmp_path / "go").touch()
    errors = process.communicate(timeout=200)[1]
    assert process.returncode == 0 and "SIGHUP" not in errors, errors


def test_a_script_that_takes_too_long_to_save_is_ended(any_mpiexec, tmp_path):
    slow = SAVES.replace('print("saved', 'time.sleep(300); print("saved')
    process = start(tmp_path, any_mpiexec, slow, "--save-time", "0.5")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=200)
    assert process.returncode == 143


def test_an_early_warning_does_not_end_a_script_that_does_not_listen(any_mpiexec, tmp_path):
    process = start(tmp_path, any_mpiexec, SAVES.replace('open(f"{run}/listens", "w").close()\n', ""))
    process.send_signal(signal.SIGUSR1)
    out, errors = process.communicate(timeout=200)
    assert (process.returncode, out) == (0, "saved because of SIGUSR1\n")  # it read the file by itself
    assert "does not ask should_stop()" in errors


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def watcher(run: Path, rank: int) -> int:
    """Return the process that the launcher started for a rank, which batch systems signal, once its script runs."""
    deadline = time.monotonic() + 60
    while not (run / f"rank-{rank}.log").exists() or "up" not in (run / f"rank-{rank}.log").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return int(json.loads((run / "ranks.json").read_text())[rank]["pid"])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2])
def test_a_signal_to_one_rank_makes_all_of_them_save(mpiexec, tmp_path, number):
    process = start(tmp_path, mpiexec, SAVES, "--log-dir", "runs")
    os.kill(watcher(tmp_path / "runs/latest", 1), number)
    out, errors = process.communicate(timeout=200)
    assert (process.returncode, out) == (0, f"saved because of {number.name}\n"), errors
    assert f"dlrun: {number.name} to rank 1: the ranks save and stop; they have 60 s" in errors


WAITS = "import time\nprint('up', flush=True)\ntime.sleep(300)\n"


def test_a_rank_that_somebody_ends_ends_the_job_and_is_named(mpiexec, tmp_path):
    process = start(tmp_path, mpiexec, WAITS, "--log-dir", "runs")
    os.kill(watcher(tmp_path / "runs/latest", 1), signal.SIGTERM)
    errors = process.communicate(timeout=200)[1]
    assert process.returncode == 143, errors
    told = [line for line in errors.splitlines() if line.startswith("dlrun: rank")]
    assert len(told) == 1 and told[0].startswith("dlrun: rank 1 (host "), errors
    assert told[0].endswith("ended the job: somebody sent it SIGTERM")


def test_a_script_with_a_handler_of_its_own_gets_the_warning_that_its_rank_gets(any_mpiexec, tmp_path):
    handles = "import signal, sys\nsignal.signal(signal.SIGUSR1, lambda *_: sys.exit(0))\n" + WAITS
    process = start(tmp_path, any_mpiexec, handles, "--log-dir", "runs")
    for rank in range(2):
        os.kill(watcher(tmp_path / "runs/latest", rank), signal.SIGUSR1)
    errors = process.communicate(timeout=200)[1]
    assert process.returncode == 0, errors


AGREES = """
import os, time
import dl_comm
for step in range(100000):
    if step == 3 and dl_comm.get_rank() == 0:
        print("up", flush=True)
    if dl_comm.should_stop():
        break
    time.sleep(0.01)
print("stopped at", step)
"""


def test_all_ranks_stop_at_the_same_step(mpiexec, tmp_path):
    pytest.importorskip("dl_comm", reason="dl_comm's compiled core is not installed")
    process = start(tmp_path, mpiexec, AGREES, "--log-dir", "runs")
    process.send_signal(signal.SIGTERM)
    out, errors = process.communicate(timeout=200)
    assert process.returncode == 0, errors
    logs = [(tmp_path / f"runs/latest/rank-{rank}.log").read_text() for rank in range(2)]
    assert logs[0] == "up\n" + logs[1]
    assert out == logs[1] != ""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_to_every_process_of_the_job_as_slurm_sends_it_lets_all_ranks_save(any_mpiexec, tmp_path, number):
    pytest.importorskip("dl_comm", reason="dl_comm's compiled core is not installed")
    process = start(tmp_path, any_mpiexec, AGREES, "--log-dir", "runs")
    watchers = [int(rank["pid"]) for rank in json.loads((tmp_path / "runs/latest/ranks.json").read_text())]
    scripts = [child for watcher in watchers for child in children(watcher)]
    for pid in [*watchers, *scripts]:
        os.kill(pid, number)
    out, errors = process.communicate(timeout=200)
    assert process.returncode == 0, errors
    assert out.startswith("stopped at "), errors
    assert f"dlrun: {number.name} to rank " in errors


FORKS = """
import os, signal, time
import dl_comm
dl_comm.should_stop()
there, here = os.pipe()
pid = os.fork()
if not pid:
    os.write(here, b".")
    time.sleep(300)
os.read(there, 1)
os.kill(pid, signal.SIGTERM)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_a_process_that_a_listening_script_forked_still_ends_by_sigterm(any_mpiexec, tmp_path):
    pytest.importorskip("dl_comm", reason="dl_comm's compiled core is not installed")
    (tmp_path / "forks.py").write_text(FORKS)
    line = [sys.executable, "-m", "dlrun", "launch", "-n", "2", "--mpiexec", any_mpiexec, "forks.py"]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)
    assert done.stdout == "-15\n", done.stderr


def test_a_job_in_the_folder_of_one_that_was_stopped_starts_afresh(dlrun, any_mpiexec, tmp_path):
    words = ["--mpiexec", any_mpiexec, "--log-dir", "runs", "script.py"]
    process = start(tmp_path, any_mpiexec, SAVES, "--log-dir", "runs")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=200)
    assert (tmp_path / "runs/latest/stop").exists()
    (tmp_path / "script.py").write_text("import os\nprint(sorted(os.listdir(os.environ['DLRUN_RUN_DIR'])))\n")
    done = dlrun("-n", "1", *words)
    assert done.stdout == "['rank-0.log', 'rank-0.stack', 'rank-0.times', 'ranks.json', 'spec.json']\n", done.stderr


def test_without_dlrun_launch_nobody_is_told_to_stop(monkeypatch):
    dl_comm = pytest.importorskip("dl_comm", reason="dl_comm's compiled core is not installed")
    monkeypatch.delenv("DLRUN_RUN_DIR", raising=False)
    assert dl_comm.should_stop() is False


HANDLES = """import os, signal, time
import torch
from torch.utils.data import DataLoader, TensorDataset
stop = False
def handler(number, frame):
    global stop
    stop = True
signal.signal(signal.SIGUSR1, handler)
x = torch.randn(32, 4)
model = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.01)
start, loader = time.time(), DataLoader(TensorDataset(x), 4)
for epoch in range(10000):
    for (a,) in loader:
        opt.zero_grad()
        model(a).pow(2).mean().backward()
        opt.step()
    if epoch == 0:
        print("up", flush=True)
    if stop or time.time() - start > 600:
        torch.save(model.state_dict(), "last.pt")
        print("saved")
        break
print("end")
"""


@pytest.mark.wide("openmpi-4.1.4", "mpich-4.0.2")
def test_a_port_of_a_script_that_saves_by_its_own_handler_saves_for_one_told_to_dlrun(mpiexec, tmp_path):
    pytest.importorskip("torch")
    process = start(tmp_path, mpiexec, port(HANDLES).text)
    process.send_signal(signal.SIGUSR1)
    out, errors = process.communicate(timeout=200)
    assert (process.returncode, out) == (0, "saved\nend\n"), errors
    assert (tmp_path / "last.pt").exists()


FITS = """import os
os.environ["KERAS_BACKEND"] = "torch"
import keras
import numpy as np
x = np.random.rand(64, 4).astype("float32")
model = keras.Sequential([keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.01), "mse")
up = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: print("up", flush=True) if epoch == 0 else None)
saves = keras.callbacks.ModelCheckpoint("last.weights.h5", save_weights_only=True, save_freq=EVERY)
model.fit(x, x.sum(1), batch_size=8, epochs=100000, verbose=0, callbacks=[up, saves])
left = model.get_weights()
model.load_weights("last.weights.h5")
print("saved", all((a == b).all() for a, b in zip(left, model.get_weights())))
"""


@pytest.mark.parametrize("every", [pytest.param("'epoch'", marks=pytest.mark.wide), "14"])
def test_a_fit_of_a_job_that_is_told_to_end_leaves_with_its_next_checkpoint(every, any_mpiexec, tmp_path):
    pytest.importorskip("torch")
    if find_spec("keras") is None:
        pytest.skip("Keras is not installed")
    process = start(tmp_path, any_mpiexec, port(FITS.replace("EVERY", every)).text)
    process.send_signal(signal.SIGUSR1)
    out, errors = process.communicate(timeout=200)
    assert (process.returncode, out) == (0, "saved True\n"), errors
