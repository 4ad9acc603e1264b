"""Runs that fork from a process which has imported the framework."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlrun.verify.tracer.warm import hand_over
from dlrun.verify.warming import Warm

HEAD = "import os, random, socket, sys; from dlrun.verify.tracer import warm\n"
SERVES = (
    HEAD + "door = socket.socket(socket.AF_UNIX)\ndoor.bind(sys.argv[1] + 'way')\ndoor.listen(9)\n"
    "os.rename(sys.argv[1] + 'way', sys.argv[1])\n"  # who sees it is answered
    "words = warm.serve(door, lambda: random.seed(0))\n"
    "if words[0] == 'sleep':\n    print(os.getpid(), flush=True)\n    import time\n    time.sleep(99)\n"
    "print(words, os.environ.get('OWN'), os.getcwd(), random.random())\nprint('told', file=sys.stderr)\n"
    "os.write(int(os.environ['PMI_FD']), b'here') if 'PMI_FD' in os.environ else None\n"
    "sys.exit(int(words[0]))\n"
)
ASKS = HEAD + "code = warm.hand_over(sys.argv[1], sys.argv[2:])\nsys.exit(99 if code is None else code)\n"


@pytest.fixture
def door(tmp_path: Path) -> Iterator[str]:
    path = str(tmp_path / "door")
    server = subprocess.Popen([sys.executable, "-c", SERVES, path], stdin=subprocess.PIPE)
    until = time.monotonic() + 60
    while not Path(path).exists() and time.monotonic() < until:
        time.sleep(0.05)
    yield path
    assert server.stdin is not None
    server.stdin.close()
    assert server.wait(30) == 0


def ask(door: str, *words: str, folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", ASKS, door, *words]
    return subprocess.run(command, env={**os.environ, **more}, cwd=folder, capture_output=True, text=True, timeout=60)


def test_a_run_has_its_own_arguments_environment_folder_output_and_code(door: str, tmp_path: Path) -> None:
    for code in (0, 3):
        made = ask(door, str(code), "more", folder=tmp_path, OWN=f"own{code}")
        assert made.returncode == code
        assert made.stdout.startswith(f"['{code}', 'more'] own{code} {tmp_path.resolve()} ")
        assert made.stderr == "told\n"


def test_each_has_random_numbers_of_its_own(door: str, tmp_path: Path) -> None:
    drawn = {ask(door, "0", folder=tmp_path).stdout.split()[-1] for _ in range(2)}
    assert len(drawn) == 2


def test_what_a_launcher_has_opened_for_its_rank_comes_along(door: str, tmp_path: Path) -> None:
    reads, writes = os.pipe()
    os.set_inheritable(writes, True)
    command = [sys.executable, "-c", ASKS, door, "0"]
    subprocess.run(
        command, env={**os.environ, "PMI_FD": str(writes)}, pass_fds=[writes], capture_output=True, timeout=60
    )
    assert os.read(reads, 4) == b"here"
    os.close(reads)
    os.close(writes)


def test_a_run_that_is_killed_takes_its_fork_along(door: str, tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ASKS, door, "sleep"], stdout=subprocess.PIPE, text=True) as asking:
        assert asking.stdout is not None
        pid = int(asking.stdout.readline())
        asking.kill()
    until = time.monotonic() + 30
    while Path(f"/proc/{pid}").exists() and time.monotonic() < until:
        time.sleep(0.05)
    assert not Path(f"/proc/{pid}").exists()


def test_a_run_that_is_gone_before_it_is_answered_ends_no_other(door: str, tmp_path: Path) -> None:
    told = {"arguments": ["sleep"], "streams": [1], "environment": {}, "folder": str(tmp_path), "cores": [0]}
    data = json.dumps(told).encode()
    reads, writes = os.pipe()
    with socket.socket(socket.AF_UNIX) as asked:
        asked.connect(door)
        socket.send_fds(asked, [struct.pack("<Q", len(data))], [writes])
        asked.sendall(data)
    os.close(writes)
    assert ask(door, "0", folder=tmp_path).returncode == 0
    with os.fdopen(reads) as output:
        output.read()  # until nobody may write into it: the fork has been ended, too


def test_where_nobody_answers_and_for_sets_in_another_order_a_run_imports_by_itself(tmp_path: Path) -> None:
    assert hand_over(str(tmp_path / "door"), ["0"]) is None
    with Warm("torch") as warm:
        assert warm.told({"PYTHONHASHSEED": "77"}) == {}
