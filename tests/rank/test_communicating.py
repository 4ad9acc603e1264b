"""Whether a script could be talking to others, seen from outside."""

from __future__ import annotations

import subprocess
import sys

import pytest

from dlrun.rank.communicating import talks

ALONE = "import socket; a = socket.create_server(('127.0.0.1', 0))"
CONNECTED = f"{ALONE}; b = socket.create_connection(a.getsockname()); c = a.accept()"
MPI = "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI"


def seen(code: str) -> bool:
    """Return what is seen of a process that has run ``code`` and waits."""
    line = [sys.executable, "-c", f"{code}\nprint('up', flush=True)\ninput()"]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout and process.stdin
        assert process.stdout.readline() == "up\n"
        answer = talks(process.pid)
        process.stdin.write("\n")
        process.stdin.flush()
    return answer


def test_a_script_that_computes_talks_to_nobody():
    assert seen("import json") is False
    assert seen(ALONE) is False, "it listens, and nobody has called"


def test_a_connection_counts():
    assert seen(CONNECTED) is True


def test_an_mpi_library_counts():
    if subprocess.run([sys.executable, "-c", MPI], capture_output=True, check=False).returncode:
        pytest.skip("no MPI library is here for mpi4py")
    assert seen(MPI) is True


def test_a_process_that_is_gone_is_given_the_benefit_of_the_doubt():
    assert talks(2**22 + 1) is True
