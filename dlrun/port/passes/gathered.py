"""Part of step "metrics": what a training loop gathers of its samples, and what is made of that after the loop."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from dlrun.port.edits import Doubt
from dlrun.port.facts import Facts
from dlrun.port.facts.computed import computed
from dlrun.port.facts.scalars import Scalars
from dlrun.port.facts.scalars_called import ALL
from dlrun.port.facts.summed import listed_by
from dlrun.port.passes.counters import innermost, runs_inside
from dlrun.port.passes.returned import gets_shares
from dlrun.port.passes.writes import METHODS, WRITES
from dlrun.port.program.script import Script, calls_method, children, dotted, walk

# What a function is called that shows or keeps what it is given.
_SHOWS = re.compile(r"plot|show|draw|save|write|log|print|display|visuali", re.IGNORECASE)
# Packages of metrics.
_JUDGES = ("sklearn.metrics.", "scipy.stats.", "seqeval.metrics.", "torchmetrics.functional.",
           "torcheval.metrics.functional.")  # fmt: skip
# What no mean over the ranks gives, of NumPy, PyTorch and Python.
_SPREADS = ("percentile", "quantile", "median", "std", "var", "stdev", "histogram", "histc", "bincount", "unique",
            "sorted", "sort", "argsort", "topk")  # fmt: skip
_LISTS = ("tolist", "numpy", "ravel", "flatten")  # what makes numbers of a tensor, one of each sample


class Gathered:
    """Knows the lists that training loops fill with what belongs to their samples, and not with single numbers."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.script = facts.script
        self._scalar = Scalars(facts.kinds, [*(step.node for step in facts.steps), *facts.runs])
        nodes = [*facts.script.calls, *facts.script.of(cst.AugAssign)]
        self._loops = {(self.script.function_of(loop), name): loop for n in nodes for loop, name in self._gathers(n)
                       if not runs_inside(facts, loop.body)}  # fmt: skip

    def __call__(self, node: cst.CSTNode) -> bool:
        """Tell whether ``node`` is such a list, read after the loop that fills it, or by a name the array of one."""
        if isinstance(node, cst.Name) and (box := listed_by(self.script, node)) is not None:
            return self(box)
        loop = self._loops.get((self.script.function_of(node), dotted(node)))
        return loop is not None and not self.script.inside(node, loop)

    def extreme(self, node: cst.CSTNode) -> bool:
        """Tell whether ``node`` is the least or the greatest of a list of numbers: ``max(errors)``."""
        made = [o.node for o in self.facts.flow.origins(node)] if isinstance(node, cst.Name) else [node]
        node = made[0] if len(made) == 1 else node
        box = node.args[0].value if isinstance(node, cst.Call) and of_one_list(self.script, node) else None
        fills = [c.args[0].value for c in self.script.calls if isinstance(box, cst.Name) and c.args
                 and dotted(c.func) == f"{box.value}.extend"]  # fmt: skip
        return box is not None and self(box) and bool(fills) and all(calls_method(v, *_LISTS) for v in fills)

    def held(self, node: cst.CSTNode, depth: int = 2) -> Iterator[cst.Name]:
        """Yield the lists of which ``node`` holds the entries themselves, or what is made of each."""
        judged = isinstance(node, cst.Call) and (
            self.facts.flow.targets(node) or self.script.name_of(node.func).startswith(_JUDGES))  # fmt: skip
        if judged or self._scalar(node):
            return
        for b in self.script.bindings_of(node) if isinstance(node, cst.Name) and depth else ():
            yield from self.held(b.value, depth - 1) if b.value is not None and b.how == "assign" else ()
        if isinstance(node, cst.Name):
            yield from [node] if self(node) else ()
        else:
            yield from (name for n in children(node) for name in self.held(n, depth))

    def _gathers(self, node: cst.CSTNode) -> Iterator[tuple[cst.For, str]]:
        """Yield the training loop and the list that ``node`` fills in it with predictions."""
        match node:
            case cst.Call(func=cst.Attribute(value=into, attr=cst.Name("append" | "extend")),
                          args=[cst.Arg(value=value)]):  # fmt: skip
                pass
            case cst.AugAssign(target=into, operator=cst.AddAssign(), value=cst.Call(func=cst.Attribute(
                    attr=cst.Name("tolist"))) | cst.Call(func=cst.Name("list")) as value):  # fmt: skip
                pass
            case _:
                return
        loop = next((up for up in self.script.above(node) if isinstance(up, (cst.For, cst.While))), None)
        parts = [e.value for e in value.elements] if isinstance(value, (cst.List, cst.Tuple)) else [value]
        name = dotted(into.value if isinstance(into, cst.Subscript) else into)  # tracker["found"], too
        if isinstance(loop, cst.For) and loop in self.facts.loops and self.facts.trained(value) and name:
            yield from () if all(map(self._scalar, parts)) else [(loop, name)]  # [step, loss.item()]


def of_one_list(script: Script, call: cst.Call) -> bool:
    """Tell whether ``call`` returns an extreme, or a number such as the median, of the one list that it is told."""
    name = script.name_of(call.func)
    return bool(call.args) and (name in ALL or (name in ("builtins.min", "builtins.max") and len(call.args) == 1))


def both(facts: Facts) -> Iterator[Doubt]:
    """Yield the doubts about predictions for samples that were dealt out, and judged; one a function."""
    script = facts.script
    judged: dict[tuple[cst.CSTNode, bool], list[cst.Call]] = {}
    for call in _judging(facts):
        judged.setdefault((script.function_of(call), _of_whole(facts, call)), []).append(call)
    write = f"evaluate with a loader that stays whole, without {facts.alias}.shard: every rank then sees all samples"
    for call in list(_saving(facts))[:1]:
        yield Doubt(call, "what is saved here was gathered over a rank's share: rank 0's holds 1/n of the samples",
                    "medium", write)  # fmt: skip
    for (_, whole), calls in judged.items():
        names = list(dict.fromkeys(dotted(call.func).rsplit(".", 1)[-1] for call in calls))
        sees = f"{', '.join(names)} {'sees' if len(names) == 1 else 'see'} this rank's samples alone"
        if whole:
            yield Doubt(calls[0], f"{sees}, beside what the data set holds of all: they are taken for others", "high",
                        write)  # fmt: skip
        else:
            yield Doubt(calls[0], f"{sees}: the mean over the ranks is near that of all samples, not equal to it",
                        "medium", write)  # fmt: skip


def _judging(facts: Facts) -> Iterator[cst.Call]:
    """Yield the calls that judge predictions: of scikit-learn and the like, of what a loop gathers, and its spread."""
    script = facts.script
    gathered = Gathered(facts)
    for call in script.calls:
        judges = script.name_of(call.func).startswith(_JUDGES) and any(map(facts.trained, call.args))
        judges = judges and not _between_epochs(facts, call)
        last = dotted(call.func).rsplit(".", 1)[-1]
        given = [arg.value for arg in call.args] if facts.flow.targets(call) and not _SHOWS.search(last) else []
        if last.removeprefix("nan") in _SPREADS and not facts.flow.targets(call):
            given = [n for n in walk(call) if isinstance(n, (cst.Name, cst.Attribute))]
        if judges or any(map(gathered, given)):
            yield call


def _between_epochs(facts: Facts, call: cst.Call) -> bool:
    """Tell whether ``call`` judges what a model makes beside the batches, once an epoch: of samples that all hold."""
    made = computed(facts.flow, [arg.value for arg in call.args]).nodes
    loops = [innermost(facts, n) for n in made if isinstance(n, cst.Call) and facts.kinds.of(n.func) == "module"]
    return bool(loops) and all(
        isinstance(loop, (cst.For, cst.While)) and loop in facts.loops and runs_inside(facts, loop.body)
        for loop in loops)  # fmt: skip


def _of_whole(facts: Facts, call: cst.Call) -> bool:
    """Tell whether ``call`` is also given something of a data set, all of which every rank holds."""
    return any(isinstance(n, cst.Attribute) and (n.attr.value == "dataset" or facts.kinds.of(n.value) == "dataset")
               for arg in call.args for n in walk(arg))  # fmt: skip


def _saving(facts: Facts) -> Iterator[cst.Call]:
    """Yield the calls that write a file of what a training loop gathers, if its function goes through shares alone."""
    gathered = Gathered(facts)
    for call in (c for c in facts.script.calls if _writes(facts, c)):
        callers = facts.flow.callers(facts.script.function_of(call))
        if any(True for part in children(call) for _ in gathered.held(part)) and all(
                gets_shares(facts, c) for c in callers):  # fmt: skip
            yield call


def _writes(facts: Facts, call: cst.Call) -> bool:
    name = facts.script.name_of(call.func)
    return bool(WRITES.search(name)) or name == "torch.save" or dotted(call.func).rsplit(".", 1)[-1] in METHODS
