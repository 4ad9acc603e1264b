"""Ctrl-C while a rank waits for others: it is heard at once, and the other ranks do not hang."""

from __future__ import annotations

import pytest

# Rank 0 waits for rank 1, which sleeps; a thread of rank 0 sends it what Ctrl-C would.
PROGRAM = """
    import os
    rank = int(os.environ.get("PMI_RANK") or os.environ["OMPI_COMM_WORLD_RANK"])
    os.environ["DL_COMM_HOST"] = "{hosts}"[rank]
    import signal, threading, time
    import numpy as np, dl_comm
    dl_comm.init()
    dl_comm.config_team(0, ksteps={blocking}, max_steps=100)
    for step in range(3):
        dl_comm.gradients([np.ones(10)])
    if rank == 1:
        time.sleep(600)
    begun = time.monotonic()
    try:
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        for step in range(2):
            dl_comm.gradients([np.ones(10)])
    except KeyboardInterrupt:
        print("interrupted", time.monotonic() - begun < 30, flush=True)
        raise
"""


@pytest.mark.parametrize("hosts", ["aa", "ab"], ids=["one node", "two nodes"])
@pytest.mark.parametrize("blocking", [100, 1], ids=["blocking", "in the background"])
def test_ctrl_c_ends_a_wait_for_another_rank_at_once(job, any_mpi, hosts, blocking):
    ended = job(any_mpi, 2, PROGRAM.format(hosts=hosts, blocking=blocking), DL_COMM_TIMEOUT_S="50")
    assert ended.lines("interrupted") == ["interrupted True"], ended.output
    assert "KeyboardInterrupt" in ended.output and ended.code != 0


CATCHES = """
    import os
    rank = int(os.environ.get("PMI_RANK") or os.environ["OMPI_COMM_WORLD_RANK"])
    os.environ["DL_COMM_HOST"] = "ab"[rank]
    import time
    import numpy as np, dl_comm
    dl_comm.init()
    dl_comm.gradients([np.ones(10)])
    if rank == 1:
        time.sleep(600)
    os.environ["PRESS"] = "Ctrl-C"
    try:
        dl_comm.gradients([np.ones(10)])
    except KeyboardInterrupt:
        print("caught", flush=True)
        os._exit(5)
"""
# Once it may, Ctrl-C comes while the rank waits for a message; a receive that is withdrawn is told.
WITHDRAWS = """
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>
int PMPI_Cancel(void *);
int PMPI_Test(void *, int *, void *);
int MPI_Test(void *request, int *done, void *status) {
  static int tests;
  if (getenv("PRESS") && ++tests == 300) raise(SIGINT);
  return PMPI_Test(request, done, status);
}
int MPI_Cancel(void *request) { return write(1, "withdrawn\\n", 10) == 10 ? PMPI_Cancel(request) : 1; }
"""


def test_a_script_that_catches_ctrl_c_gets_no_late_message_into_its_memory(job, any_mpi, before_mpi):
    ended = job(any_mpi, 2, CATCHES, DL_COMM_MPI_LIBRARY=before_mpi(WITHDRAWS), DL_COMM_TIMEOUT_S="50")
    assert "withdrawn\ncaught\n" in ended.output, ended.output
