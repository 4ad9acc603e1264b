"""Part of step "gradients" for Keras: what each rank does by itself, and an edit does not mend."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from dlrun.port.edits import Doubt
from dlrun.port.facts.keras import KerasFacts
from dlrun.port.facts.models.keras_models import trains
from dlrun.port.facts.models.kinds import plays
from dlrun.port.facts.updates.reductions import Reductions
from dlrun.port.program.script import argument, walk

_POOLS = re.compile(r"^(joblib|dask|concurrent\.futures|multiprocess(ing)?|threading|ray|pathos)\.")
_TUNERS = re.compile(r"^(keras_tuner|kerastuner)\.([\w.]*\.)?(RandomSearch|Hyperband|BayesianOptimization|GridSearch)$")


def by_itself(facts: KerasFacts) -> Iterator[Doubt]:
    """Yield doubts about what each rank would do by itself: play an environment, restore, search."""
    for node in [n for n in facts.script.nodes if plays(facts.kinds, n)][:1]:
        yield Doubt(
            node,
            "every rank plays episodes of its own: with one seed they begin alike, and a rank that "
            "trains less often leaves the others waiting for ever",
            "high",
            f"seed with {facts.alias}.get_rank(), and train equally often on all ranks",
            name="may-hang",
        )
    for call in [c for c in facts.script.calls if facts.script.name_of(c.func).endswith("callbacks.BackupAndRestore")]:
        yield Doubt(
            call,
            "it restores on one rank what the others lack: fit() refuses it on several ranks",
            "high",
            "save with ModelCheckpoint, and load the weights before distribute()",
            name="may-hang",
        )
    for call in list(_at_once(facts))[:1]:
        yield Doubt(
            call,
            "trainings that run at once, in threads or processes of each rank: each waits for the same one on other "
            "ranks, which may come to another",
            "high",
            "train one after the other, in a loop that all ranks go through alike",
            name="may-hang",
        )
    for call in [c for c in facts.script.calls if _TUNERS.search(facts.script.name_of(c.func))]:
        yield Doubt(
            call,
            "each rank searches by itself, and writes what it tries into one folder: it may go on from "
            "what another has written there, and try another model",
            "high",
            f"a directory with {facts.alias}.get_rank() in its name, overwrite=True, and seed=0",
            name="ranks-diverge",
        )


def _at_once(facts: KerasFacts) -> Iterator[cst.Call]:
    """Yield the calls that hand a function which trains to a pool: ``pool.map(train, widths)``, ``delayed(train)``."""
    script, flow = facts.script, facts.flow
    trained = set(trains(flow))
    for call in script.calls:
        owner = call.func.value if isinstance(call.func, cst.Attribute) else None
        made = [o.node for o in flow.origins(owner)] if owner is not None else []
        names = [script.name_of(call.func), *(script.name_of(m.func) for m in made if isinstance(m, cst.Call))]
        if not any(map(_POOLS.search, names)):
            continue
        given = (flow.definition(arg.value) for arg in call.args if isinstance(arg.value, (cst.Name, cst.Attribute)))
        bodies = (body for f in given if isinstance(f, cst.FunctionDef) for body in flow.bodies(f.body, 3))
        if any(n in trained for body in bodies for n in walk(body)):
            yield call


def normalizing(facts: KerasFacts) -> Iterator[Doubt]:
    """Yield the doubts about layers that look at all rows of a batch, of which a rank has a part."""
    for call in facts.script.calls:
        if any("BatchNorm" in name for name in facts.kinds.names(call.func)):
            yield Doubt(
                call,
                "BatchNormalization takes its statistics from a rank's 1/n of the batch, unlike the serial run",
                "medium",
                "keep each rank's batch, --batch local, or GroupNormalization",
                name="batchnorm-statistics",
            )
            return


def of_parts(facts: KerasFacts) -> Iterator[Doubt]:
    """Yield doubts about the first loss, and the first metric, of the script's own that is no mean over the samples.

    Each rank computes it of its part of a batch, and the mean of that over the ranks is another number.
    """
    other = "is no mean over the samples of a batch: what n ranks make of their parts of it has another mean"
    whole = "keep each rank's batch, --batch local"
    for node, sums in _no_means(facts, "loss", 1):
        code = facts.script.code(node)
        if sums:
            why = "this loss is a sum over the samples of a batch, of which a rank has 1/n: so is its gradient"
            write = f"{facts.alias}.partial_sum({code}) where fit() alone computes it; or a mean"
            yield Doubt(node, why, "high", write, name="loss-scale")
        else:
            yield Doubt(node, f"this loss {other}", "high", whole, name="coupled-samples")
    for node, _ in _no_means(facts, "metrics", 2):
        yield Doubt(node, f"this metric {other}", "medium", whole, name="unknown-placement")


def _no_means(facts: KerasFacts, keyword: str, at: int) -> Iterator[tuple[cst.BaseExpression, bool]]:
    """Yield what is no mean over the samples in the first such function that ``compile()`` is given; is it a sum?"""
    given = (value for call, _ in facts.compiled if (value := argument(call, keyword, at)) is not None)
    for function in dict.fromkeys(found for value in given for found in _own_functions(facts, value)):
        names = [p.name.value for p in function.params.params if p.name.value != "self"][:2]

        def data(node: cst.CSTNode, names: list[str] = names, function: cst.CSTNode = function) -> str | None:
            named = isinstance(node, cst.Name) and node.value in names and facts.script.inside(node, function)
            return node.value if named and isinstance(node, cst.Name) else None

        ends = [function.body] if isinstance(function, cst.Lambda) else facts.flow.returns(function)
        how = Reductions(facts.kinds, ends, data, lambda node: True)
        cut = [n for n in walk(function.body) if isinstance(n, cst.Subscript) and _cuts(how, n)]
        odd = [n for n in (*how.coupled, *how.odd, *how.spread, *cut) if isinstance(n, cst.BaseExpression)]
        if odd or how.sums:
            yield (odd or how.sums)[0], not odd
            return


def _own_functions(facts: KerasFacts, value: cst.BaseExpression) -> Iterator[cst.FunctionDef | cst.Lambda]:
    """Yield the functions of the script's own that ``compile()`` is given, in lists and dicts, too."""
    flow, todo = facts.flow, [value]
    while todo:
        for made in (o.node for o in flow.origins(todo.pop(0))):
            ends: list[cst.CSTNode | None] = [made]
            if isinstance(made, (cst.List, cst.Tuple, cst.Dict)):
                todo += [e.value for e in made.elements if isinstance(e, (cst.Element, cst.DictElement))]
            elif isinstance(made, cst.Attribute):
                ends += [flow.method(cls, made.attr.value) for cls in flow.classes(made.value)]  # self.distance
            elif isinstance(made, cst.Call):
                ends = [end for target in flow.targets(made) for end in flow.returns(target)]
                ends += [flow.method(cls, "call") for cls in flow.classes(made)]
            for end in ends:
                own = end if isinstance(end, (cst.FunctionDef, cst.Lambda)) or end is None else flow.definition(end)
                yield from [own] if isinstance(own, (cst.FunctionDef, cst.Lambda)) else []


def _cuts(how: Reductions, node: cst.Subscript) -> bool:
    """Tell whether ``node`` takes the first, or last, samples of a batch: ``y_pred[:size]``."""
    at = node.slice[0].slice
    bounded = isinstance(at, cst.Slice) and (at.lower is not None or at.upper is not None)
    return bounded and how.of(node.value).kind == "each"
