"""The shim started by hand: one rank, with no ``dlrun launch`` to call."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import dlrun.rank.log as log_module
from dlrun.rank.log import Log, crashed_at
from dlrun.rank.script import what, where

SPEC = {
    "ranks": 1,
    "nnodes": 1,
    "backend": "local",
    "kind": "script",
    "show": [0],
    "server": [],
    "token": "",
    "silence": 20,
    "torchrun": False,
    "serial_after": 60.0,
    "place": {"bind": False, "cores": None, "gpus": None},
    "inherit": {},
    "env": {},
}


def test_a_log_on_a_full_disk_is_told_once_and_ends_no_training(tmp_path):
    (tmp_path / "rank-0.log").symlink_to("/dev/full")
    (tmp_path / "spec.json").write_text(json.dumps({**SPEC, "run_dir": str(tmp_path)}))
    (tmp_path / "train.py").write_text("for epoch in range(3):\n    print('epoch', epoch, flush=True)\n")
    line = [sys.executable, "-W", "error", "-m", "dlrun.rank", "--spec", "spec.json", "--", "train.py"]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "epoch 0\nepoch 1\nepoch 2\n")
    assert done.stderr == (
        "dlrun: rank-0.log cannot be written (No space left on device); the job goes on without it\n"
    ), "nor does Python warn of a file left open"


def test_of_a_crash_the_frames_of_the_script_are_shown_and_where_it_was(tmp_path):
    log = Log(str(tmp_path), 1)
    shim = f'  File "{Path(log_module.__file__).parent}/script.py", line 83 in _run_file\n'
    shim += '  File "<frozen runpy>", line 88 in _run_code\n'
    crash = f"""Fatal Python error: Segmentation fault\n  File "train.py", line 3 in <module>\n{shim}"""
    in_c = "Current thread's C stack trace (most recent call first):\n" + 30 * '  Binary file "python" [0x53d28e]\n'
    assert log.write(f" 1%\r 2%\nepoch 1\n{crash}\n{in_c}Extension modules: numpy (total: 1)\n".encode()) == b""
    said = [" 2%", "epoch 1", "Fatal Python error: Segmentation fault", '  File "train.py", line 3 in <module>']
    assert log.tail() == said
    assert crashed_at(said) == "train.py:3" and crashed_at(said[:2] + said[3:]) == ""


def test_a_node_that_does_not_see_the_run_directory_says_so(tmp_path):
    line = [sys.executable, "-m", "dlrun.rank", "--spec", "runs/spec.json", "--", "train.py"]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"dlrun: {socket.gethostname()} cannot read runs/spec.json (No such file or directory): "
        "the run directory must lie where every node sees it\n"
    )


@pytest.mark.parametrize(
    ("script", "code", "told"),
    [
        ("raise SystemExit(256)\n", 1, "sys.exit(256)"),  # of an exit code the system keeps 8 bits: a failure
        ("class E(Exception):\n    def __str__(self): raise ValueError\nraise E\n", 1, "E"),
    ],
)
def test_odd_ends_are_told_as_python_has_them(tmp_path, script, code, told):
    (tmp_path / "spec.json").write_text(json.dumps({**SPEC, "run_dir": str(tmp_path)}))
    (tmp_path / "train.py").write_text(script)
    line = [sys.executable, "-m", "dlrun.rank", "--spec", "spec.json", "--", "train.py"]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code and "dlrun" not in done.stderr, done.stderr
    kept = tmp_path / "rank-0.failure.json"
    assert (json.loads(kept.read_text())["what"] if kept.exists() else "") == told


FILLS = """
import resource, sys
sys.excepthook = lambda *error: sys.__excepthook__(*error)  # as dl_comm has one
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (16 << 20), used + (16 << 20)))
held = []
while True:
    held.append(bytearray(1 << 10))
"""


def test_a_script_that_has_used_all_memory_up_is_told_to_have(tmp_path):
    (tmp_path / "spec.json").write_text(json.dumps({**SPEC, "run_dir": str(tmp_path)}))
    (tmp_path / "fills.py").write_text(FILLS)
    line = [sys.executable, "-m", "dlrun.rank", "--spec", "spec.json", "--", "fills.py"]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    failure = json.loads((tmp_path / "rank-0.failure.json").read_text())
    assert (done.returncode, failure["what"], failure["where"]) == (1, "MemoryError", "fills.py:8"), done.stderr


def test_modules_are_found_where_python_finds_them_for_the_script(tmp_path, monkeypatch):
    for place in ("lib", "src"):
        (tmp_path / place).mkdir()
        (tmp_path / place / f"of_{place}.py").touch()
    (tmp_path / "spec.json").write_text(json.dumps({**SPEC, "run_dir": str(tmp_path)}))
    (tmp_path / "src" / "train.py").write_text(
        "from importlib.util import find_spec\nprint([bool(find_spec(name)) for name in ('of_lib', 'of_src')])\n"
    )
    line = [sys.executable, "-m", "dlrun.rank", "--spec", "spec.json", "--", "src/train.py"]
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "lib"))
    for safe in ("", "1"):
        monkeypatch.setenv("PYTHONSAFEPATH", safe)
        alone = subprocess.run([sys.executable, line[-1]], cwd=tmp_path, capture_output=True, text=True, check=True)
        done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stdout) == (0, alone.stdout), done.stderr


FRAMES = """in user code:

    File "/home/me/train.py", line 4, in step  *
        return helper(x)
    File "/v/site-packages/keras/src/traceback_utils.py", line 70, in error_handler
        raise e.with_traceback(filtered_tb) from None

    """


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (FRAMES + "CommError: rank 1 has left\n    in step 3\n", "CommError: rank 1 has left"),
        (
            FRAMES
            + "ValueError: Exception encountered when calling layer 'a' (type A).\n    \n    Cannot reshape\n    ",
            "ValueError: Cannot reshape",
        ),
        (
            "Exception encountered when calling A.call().\n\n\33[1mNo such size: 3\33[0m\n\n"
            "Arguments received by A.call():",
            "RuntimeError: No such size: 3",
        ),
        (
            "Graph execution error:\n\nDetected at node Gather defined at (most recent call last):\n"
            '  File "t.py", line 5,'
            " in f\n\nindices = 7 is not in [0, 3)\n\t [[{{node Gather}}]] [Op:f]",
            "RuntimeError: indices = 7 is not in [0, 3)",
        ),
        ("Graph execution error:\n\nDetected at node Gather defined at\n\nindices = 7", "RuntimeError: indices = 7"),
        (
            "Error(s) in loading state_dict for Net:\n\tMissing key(s): a.",
            "RuntimeError: Error(s) in loading state_dict for Net: Missing key(s): a.",
        ),
        ("no such\nthing", "RuntimeError: no such"),
        ("in user code:", "RuntimeError"),
        ("", "RuntimeError"),
    ],
)
def test_of_an_error_the_line_is_told_that_says_what_it_is(message, said):
    assert what(RuntimeError(message)) == said
    assert where(None, RuntimeError(message)) == ("/home/me/train.py:4" if message.startswith(FRAMES) else "")
