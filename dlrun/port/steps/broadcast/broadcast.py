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
    yield from at_tops(facts, "torch", f"{facts.alias}.broadcast")


def at_tops(facts: Facts, framework: str, broadcast: str) -> Iterator[Edit | Doubt]:
    """Yield the lines before each outermost training loop; what is made on a condition is ``broadcast`` on the same."""
    for top in facts.tops:
        begin, *rest = statements(f"{framework}/broadcast", dl=facts.alias, things=top.things)
        asked = [some for some in top.conditional if some.again]
        also = [
            statements(
                "broadcast_made", broadcast=broadcast, test=facts.script.code(some.test.test), things=some.things
            )
            for some in asked
        ]
        things = ", ".join((*top.things, *(thing for some in asked for thing in some.things)))
        lines = (begin, *(line for made in also for line in made), *rest)
        yield Edit(top.loop, f"{things}: the same on all ranks before the first step", before=lines)
        for some in (some for some in top.conditional if not some.again):
            names = ", ".join(some.things)
            yield Doubt(
                some.test,
                f"{names}: made on a condition, and not broadcast: where chance makes them, each "
                "rank begins with others",
                "high",
                f"{broadcast}({names}) at the end of what this condition leads to",
                name="ranks-diverge",
            )
