"""Programs for ranks with arrays on a GPU. ``OWN_GPU`` gives each a GPU of its own, ``HOSTS`` says who is where."""

from __future__ import annotations

START = """
    import os, sys, warnings
    warnings.simplefilter("error")
    import numpy as np
    rank = int(os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK", "0")))
    if os.environ.get("OWN_GPU"):
        os.environ["FAKE_CUDA_UUID"] = str(rank + 20)
    if os.environ.get("HOSTS"):
        os.environ["DL_COMM_HOST"] = os.environ["HOSTS"].split(",")[rank]
    import dl_comm
    from gpus import Gpu, OnlyDlpack
    gpu = Gpu()
    dl_comm.init()
    n = dl_comm.get_nranks()

    def drawn(rank, size, kind="f4"):
        return (np.random.default_rng(rank).normal(size=size) * 9).astype(kind)

    def mean(size, kind="f4"):
        return np.mean([drawn(r, size, kind).astype("f8") for r in range(n)], axis=0)

    def path():
        from dl_comm import _core
        return _core.session().gpu_path()
"""

ONE = (
    START
    + """
    try:
        array = gpu.array(drawn(rank, 5000), gpu.stream())
        dl_comm.average(array)
        assert np.allclose(gpu.read(array), mean(5000), atol=1e-5)
        print(f"rank {rank} is right by {path()}", flush=True)
    except dl_comm.CommError as error:
        print(f"rank {rank} got: {error.message}; {error.hint}", flush=True)
"""
)


def failing(function: str, nth: int, code: int) -> str:
    """ONE, in which the nth call of a function of the driver's or of NCCL's from now on fails on rank 1."""
    call = f"gpu.fail('{function}', {nth}, {code})"
    return ONE.replace("    try:", f"    if rank == 1:\n        {call}\n    try:", 1)
