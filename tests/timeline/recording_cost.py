"""What recording a timeline costs: the digits example's network, recording on and off in turns, step by step.

    dlrun launch -n 2 --timeline trace.json tests/timeline/recording_cost.py

Prints the medians of both, and by how much a recorded step is longer: the median over pairs of neighbouring steps. The
wrappers around the core's calls stay in the steps that are not recorded; each costs about a microsecond.
"""

from __future__ import annotations

import statistics
import time

import dl_comm.torch as dl
import torch
from dl_comm import timeline
from torch import nn

PAIRS = 1000


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(512, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    dl.broadcast(model, optimizer)
    images, labels = torch.randn(64, 1, 8, 8), torch.randint(0, 10, (64,))
    times: dict[bool, list[float]] = {True: [], False: []}
    for pair in range(PAIRS):
        for paused in (False, True) if pair % 2 else (True, False):
            dl.barrier()
            timeline.pause(paused)
            begin = time.perf_counter()
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            dl.gradients(optimizer)
            optimizer.step()
            times[paused].append(time.perf_counter() - begin)
    recorded, plain = times[False][100:], times[True][100:]
    more = statistics.median(a - b for a, b in zip(recorded, plain, strict=True)) / statistics.median(plain)
    medians = [1e3 * statistics.median(some) for some in (recorded, plain)]
    dl.print("recorded {:.3f} ms, not recorded {:.3f} ms a step".format(*medians))
    dl.print(f"recording costs {100 * more:+.2f} % of a step")


if __name__ == "__main__":
    dl.init()
    main()
    dl.finalize()
