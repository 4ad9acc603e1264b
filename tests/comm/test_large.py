"""More than 2^31 elements in one array: counts and offsets are 64 bits wide everywhere."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

COUNT = 2**31 + 12_345
PLACES = [0, 1, 2**30, 2**31 - 1, 2**31, 2**31 + 1, COUNT - 1]


@pytest.fixture(autouse=True)
def enough_memory():
    lines = Path("/proc/meminfo").read_text().splitlines()
    available = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    if available < 7 * 1024**2:
        pytest.skip(f"needs 7 GiB of memory, {available >> 20} are free")


def test_an_array_of_more_than_2_to_the_31_elements_is_reduced_to_its_end(threads):
    def body(session, rank):
        mine = np.zeros(COUNT, "u1")
        mine[PLACES] = [10 * rank + place for place in range(len(PLACES))]
        session.allreduce([(mine.ctypes.data, mine.size, "uint8")], "sum")
        return mine[PLACES].tolist(), int(np.count_nonzero(mine))

    expected = [10 + 2 * place for place in range(len(PLACES))], len(PLACES)
    assert threads(2, body, stage_kb=1024, timeout_s=250, patience=250) == [expected] * 2


def test_more_than_2_to_the_31_bytes_go_through_mpi(job, any_mpi):
    program = f"""
        import numpy as np, dl_comm
        dl_comm.init()
        values = np.zeros({COUNT}, "i1")
        if dl_comm.get_rank() == 1:
            values[{PLACES}] = range(1, 1 + {len(PLACES)})
        dl_comm.broadcast([values], 1)
        assert values[{PLACES}].tolist() == list(range(1, 1 + {len(PLACES)})), values[{PLACES}]
        assert np.count_nonzero(values) == {len(PLACES)}
        print("rank", dl_comm.get_rank(), "right", flush=True)
    """
    ended = job(any_mpi, 2, program, timeout=250, DL_COMM_SHARED_MEMORY="none")
    assert (len(ended.lines("rank")), ended.code) == (2, 0), ended.output
