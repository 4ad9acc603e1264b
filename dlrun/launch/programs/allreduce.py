"""What ``dlrun launch --check`` runs on every rank: average what can be computed by hand, and compare.

Prints one line of JSON: ``rank``, ``size`` (as the MPI library sees them), ``bytes``, ``seconds`` and ``wrong``.
"""

import json
import os
import time

import dl_comm as mc
import numpy as np

LENGTHS = (1, 1000, 1 << 20)  # elements of float32: less than a message, a small gradient, a large one


def pattern(length: int) -> np.ndarray:
    """Whole numbers, which float32 adds without rounding."""
    return (np.arange(length) % 97).astype(np.float32)


mc.init(1, 1, 1)
rank, size = mc.get_rank(), mc.get_nranks()
gradients = [pattern(length) * (rank + 1) for length in LENGTHS]
begin = time.perf_counter()
means = mc.gradients(gradients, 0)
seconds = time.perf_counter() - begin
wrong = []
for length, mean in zip(LENGTHS, means, strict=True):
    right = pattern(length) * ((size + 1) / 2)
    off = np.flatnonzero(~np.isclose(mean, right, rtol=1e-6, atol=0))
    if len(off):
        i = off[0]
        wrong.append(f"{len(off)} of {length} elements, first element {i}: {mean[i]:g} instead of {right[i]:g}")
told = {
    "rank": rank,
    "asked": int(os.environ["DLRUN_SIZE"]),
    "size": size,
    "seconds": seconds,
    "wrong": wrong,
    "bytes": 4 * sum(LENGTHS),
}
print(json.dumps(told), flush=True)
mc.finalize()
