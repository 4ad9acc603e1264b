"""Runs checks of ``dl_comm.torch`` (the files named) with tensors of the CPU that count as a GPU's.

The fake driver owns all memory, so that everything goes the way of a GPU: pinned memory, streams, events. Only the
operations of torch itself are not ordered by streams: whatever follows a reduction waits for it here.
"""

import ctypes
import os
import runpy
import sys
from pathlib import Path

FACES = Path(__file__).parents[1] / "faces"


def main() -> None:
    rank = int(os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK", "0")))
    if os.environ.get("OWN_GPU"):
        os.environ["FAKE_CUDA_UUID"] = str(20 + rank)
    if os.environ.get("HOSTS"):
        os.environ["DL_COMM_HOST"] = os.environ["HOSTS"].split(",")[rank]
    import dl_comm.torch
    from dl_comm import device
    from dl_comm.torch import averaging, gpu
    from gpus import Gpu

    fake = Gpu()
    stream = fake.stream()
    averaging.plain_buffers = lambda tensors: None  # the short way of tensors that are the host's
    gpu.is_on_gpu = lambda tensor: tensor.device.type == "cpu"
    gpu.current_stream = lambda where: stream
    gpu.stream_object = lambda where: None
    follow = device.Flight.follow

    def follow_and_wait(self: device.Flight, follower: int) -> None:
        follow(self, follower)
        fake.call("cuStreamSynchronize", ctypes.c_void_p(follower))

    device.Flight.follow = follow_and_wait
    sys.path.insert(0, str(FACES))
    sys.argv = [str(FACES / "run_checks.py"), *sys.argv[1:]]
    runpy.run_path(sys.argv[0], run_name="__main__")
    if dl_comm.torch.is_rank0():
        assert "cuEventRecord" in fake.calls(), "nothing has gone over the GPU"
        print("went over the GPU", flush=True)


main()
