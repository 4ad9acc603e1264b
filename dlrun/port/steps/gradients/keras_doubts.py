"""Part of step "gradients" for Keras: what each rank does by itself, and an edit does not mend."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from dlrun.port.edits import Doubt
from dlrun.port.facts.keras import KerasFacts
from dlrun.port.facts.models.keras_models import trains
from dlrun.port.facts.models.kinds import plays
from dlrun.port.program.script import walk

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
