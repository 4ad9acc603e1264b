"""What torchrun would set: scripts that torch.distributed connects, started as they are."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from test_cluster import BEST, words

if TYPE_CHECKING:
    from launchers import Lab

CONNECTED = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(3) * dist.get_rank()
dist.all_reduce(total)
print(total.tolist(), os.environ["LOCAL_RANK"], os.environ["WORLD_SIZE"])
dist.destroy_process_group()
"""
# As init_process_group does it, without the seconds that its import takes: rank 0 listens, the others call.
CALLS = """
import os, socket, time
rank, port = int(os.environ["RANK"]), int(os.environ["MASTER_PORT"])
names = "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"
mine = " ".join([socket.gethostname(), *(os.environ[name] for name in names)])
if rank == 0:
    server = socket.create_server(("", port))
    heard = sorted(server.accept()[0].makefile().read() for _ in range(2))
    print(mine, *heard, sep="; ")
else:
    for attempt in range(200):
        try:
            call = socket.create_connection((os.environ["MASTER_ADDR"], port), timeout=5)
            break
        except ConnectionRefusedError:
            time.sleep(0.05)
    call.sendall(f"{rank}: {mine}".encode())
"""


def test_ranks_of_torch_distributed_meet_and_are_no_copies_of_a_serial_script(dlrun, any_mpiexec, tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "ddp.py").write_text(CONNECTED)
    done = dlrun("-n", "2", "--torchrun", "--mpiexec", any_mpiexec, "ddp.py")
    assert (done.returncode, done.stdout) == (0, "[1.0, 1.0, 1.0] 0 2\n"), done.stderr
    assert "serial" not in done.stderr
    without = dlrun("-n", "2", "--mpiexec", any_mpiexec, "ddp.py")
    assert without.returncode == 1 and "dlrun launch --torchrun sets them" in without.stderr


@pytest.mark.skipif(not BEST, reason="no MPI launcher is installed (mpich, openmpi)")
@pytest.mark.parametrize("host", ["elsewhere", "n1"])
def test_rank_0_is_found_from_all_machines_wherever_the_job_is_started(lab: Lab, tmp_path: Path, host: str):
    (tmp_path / "calls.py").write_text(CALLS)
    line = [*words(f"{BEST} over ssh"), "--torchrun", "calls.py"]
    if host == "n1":
        line = [str(lab.folder / "on"), "n1", "sh", "-c", 'cd "$0" && exec "$@"', str(tmp_path), *line]
    done = subprocess.run(line, cwd=tmp_path, env=lab.ssh, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "n1 3 0 2 0 2; 1: n1 3 1 2 0 2; 2: n2 3 0 1 1 2\n"), done.stderr
