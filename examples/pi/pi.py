"""Estimate pi with many ranks, mpi4py and dl_comm side by side: the share of random points that fall into a circle.

    dlrun launch -n 4 pi.py

dl_comm uses the MPI that mpi4py has loaded, and each rank is the same in both. Without a launcher there is one rank.
"""

import argparse
import math

import dl_comm
import numpy as np
from mpi4py import MPI


def share_inside(points, seed):
    """Return which share of random points of the unit square lies within the quarter of the unit circle."""
    x, y = np.random.default_rng(seed).random((2, points))
    return float(np.mean(x * x + y * y <= 1))


def main():
    parser = argparse.ArgumentParser(description="pi, mpi4py and dl_comm")
    parser.add_argument("--points", type=int, default=1_000_000, help="of each rank")
    args = parser.parse_args()

    world = MPI.COMM_WORLD
    dl_comm.init()
    assert (dl_comm.get_rank(), dl_comm.get_nranks()) == (world.rank, world.size)
    share = share_inside(args.points, seed=[1, world.rank])

    by_mpi = 4 * world.allreduce(share) / world.size
    (mean,) = dl_comm.gradients([np.array([share])])
    by_dl_comm = 4 * mean[0]
    if world.rank == 0:
        deviation = 4 * math.sqrt(math.pi / 4 * (1 - math.pi / 4) / (args.points * world.size))
        print(f"{world.size} ranks: pi is {by_dl_comm:.6f} by dl_comm, {by_mpi:.6f} by MPI, +- {deviation:.6f}")
    dl_comm.finalize()


if __name__ == "__main__":
    main()
