"""Lists that a loop goes through beside a loader: of batches, or of numbers that go with them."""

from __future__ import annotations

import libcst as cst

from dlrun.port.facts.kinds import Kinds
from dlrun.port.feeds.positions import mentions
from dlrun.port.program.script import argument, dotted, names_in, walk

_CUTS = ("split", "chunk", "tensor_split", "array_split", "unbind")


def goes_in(kinds: Kinds, loop: cst.CSTNode | None, zipped: cst.Call, part: cst.BaseExpression) -> bool:
    """Tell whether the entries of ``part``, one of those that ``loop`` runs over in step, are batches.

    They go into a model or a loss, or are pieces of an array.
    """
    made = [o.node for o in kinds.flow.origins(part)]
    if any(isinstance(n, cst.Call) and dotted(n.func).rsplit(".", 1)[-1] in _CUTS for m in made for n in walk(m)):
        return True
    at = next((i for i, arg in enumerate(zipped.args) if part in walk(arg)), 0)
    target = loop.target if isinstance(loop, cst.For) else None
    if isinstance(target, cst.Tuple) and len(target.elements) == 2 and isinstance(target.elements[1].value, cst.Tuple):
        target = target.elements[1].value if "enumerate" in names_in(loop.iter) else target  # type: ignore[union-attr]
    if not isinstance(target, cst.Tuple) or len(target.elements) != len(zipped.args) or not isinstance(loop, cst.For):
        return False
    names = names_in(target.elements[at].value)
    calls = [n for n in walk(loop.body) if isinstance(n, cst.Call)]
    lists = any(isinstance(m, (cst.List, cst.ListComp)) for m in made)
    return lists and any(mentions(a, names) for c in calls if kinds.of(c.func) in ("module", "loss") for a in c.args)


def keeps_order(made: cst.Call) -> bool:
    """Tell whether the loader that ``made`` makes goes through its samples in their order, by itself."""
    shuffle = argument(made, "shuffle", 2)
    given = [argument(made, name) for name in ("sampler", "batch_sampler")]
    return (shuffle is None or dotted(shuffle) == "False") and given == [None, None] and not any(
        arg.star for arg in made.args)  # fmt: skip
