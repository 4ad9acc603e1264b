"""Step "broadcast": all ranks begin from rank 0's weights and optimizer state."""

from __future__ import annotations

from collections.abc import Iterator

from dlrun.port.edits import Doubt, Edit
from dlrun.port.facts import Facts
from dlrun.port.insert import statements


def torch(facts: Facts) -> Iterator[Edit | Doubt]:
    """Put broadcast() right before the outermost training loop: after weights are made, loaded and moved.

    Before:
        model = torch.nn.Linear(2, 1)
        opt = torch.optim.SGD(model.parameters(), momentum=0.9)
        for x, y in DataLoader(data, shuffle=True):
            (model(x) - y).pow(2).mean().backward()
            opt.step()

    After:
        model = torch.nn.Linear(2, 1)
        opt = torch.optim.SGD(model.parameters(), momentum=0.9)
        dl.broadcast(model, opt)  # every rank starts from rank 0's state
        dl.reseed()  # from here on each rank draws random numbers of its own
        for x, y in DataLoader(data, shuffle=True):
            (model(x) - y).pow(2).mean().backward()
            opt.step()
    """
    for top in facts.tops:
        lines = statements("torch/broadcast", dl=facts.alias, things=top.things)
        yield Edit(top.loop, f"{', '.join(top.things)}: the same on all ranks before the first step", before=lines)
