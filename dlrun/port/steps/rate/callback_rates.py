"""Part of steps "rate" and "steps" for Keras: callbacks of libraries that set the rate by numbers they are given."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from dlrun.port.edits import Doubt, Edit
from dlrun.port.facts.keras import KerasFacts
from dlrun.port.facts.updates.rates import is_zero
from dlrun.port.insert import expression
from dlrun.port.program.script import argument
from dlrun.port.steps.counts.changing_rates import MULTIPLIES, compound
from dlrun.port.steps.rate.schedules import Schedule, rates_of, scaling

# CyclicLR is that of Keras' contributions, and its many copies.
_KNOWN = {
    "ReduceLROnPlateau": Schedule(((7, "min_lr"),), ()),
    "CyclicLR": Schedule(((0, "base_lr"), (1, "max_lr")), ((2, "step_size"),)),
}
_OWN = re.compile(r"^(tensorflow|keras|sklearn|torch)\.")
_SETS_RATES = re.compile(r"(^|[a-z])LR([A-Z]|$)|^CLR$|LearningRate|SGDR|Cyclic|Annealing|Warm[Uu]p[A-Z]")


def rates(facts: KerasFacts) -> Iterator[Edit | Doubt]:
    """Scale the rates between which a callback moves, and the least one.

    Before:
        model.compile(opt)
        model.fit(x, y, callbacks=[keras.callbacks.ReduceLROnPlateau(min_lr=1e-4)])

    After:
        model.compile(opt)
        model.fit(x, y, callbacks=[keras.callbacks.ReduceLROnPlateau(min_lr=dl.lr_scale(1e-4))])
    """
    for call, known in _callbacks(facts):
        for value in (argument(call, name, at) for at, name in known.rates):
            if value is not None and not is_zero(value):
                yield Edit(value, "the callback sets this rate itself", scaling(facts))
        if known.counts and any(argument(call, name, at) is None for at, name in (*known.rates, *known.counts)):
            yield Doubt(
                call,
                "it sets rates that it has by itself, which are not scaled, and counts batches, of which "
                "each rank sees 1/n",
                "high",
                "give it all of them",
            )
    for call in _others(facts):
        yield Doubt(
            call,
            "it may set rates of its own, which are not scaled, and count batches, of which each rank sees 1/n",
            "high",
            f"give it {facts.alias}.lr_scale() and {facts.alias}.steps()",
        )


def counts(facts: KerasFacts) -> Iterator[Edit]:
    """Divide the counts of batches after which such a callback turns, and what it multiplies with at each of them.

    Before:
        from keras_contrib.callbacks import CyclicLR
        model.compile(opt)
        model.fit(x, y, callbacks=[CyclicLR(1e-4, 5e-4, 2000, "exp_range", 0.99)])

    After:
        from keras_contrib.callbacks import CyclicLR
        model.compile(opt)
        model.fit(x, y, callbacks=[CyclicLR(1e-4, 5e-4, dl.steps(2000), "exp_range", dl.compound(0.99))])
    """
    for call, known in _callbacks(facts):
        for value in (argument(call, name, at) for at, name in known.counts):
            if value is not None:
                yield Edit(
                    value,
                    "it counts batches, and each rank sees 1/n of them",
                    lambda n: expression("torch/steps", {"count": n}, dl=facts.alias),
                )
        gamma = argument(call, "gamma", 4) if known.counts else None
        if gamma is not None:
            yield compound(facts, gamma, MULTIPLIES)


def _callbacks(facts: KerasFacts) -> Iterator[tuple[cst.Call, Schedule]]:
    """Yield the calls that make a callback which is known, and what its arguments are."""
    for call in facts.script.calls:
        known = _KNOWN.get(_name(facts, call))
        if known is not None:
            yield call, known


def _others(facts: KerasFacts) -> Iterator[cst.Call]:
    """Yield the calls that make a callback of another library which, by its name, may set rates.

    What an optimizer is given as its rate is none.
    """
    rates = (rate for call in facts.optimizers for rate in rates_of(facts, call))
    schedules = {o.node for rate in rates for o in facts.flow.origins(rate)}
    if any(argument(fit, "callbacks", 5) is not None for fit in facts.fits):
        for call in (c for c in facts.script.calls if c not in schedules):
            name = _name(facts, call)
            if _SETS_RATES.search(name) and name not in _KNOWN and not _OWN.search(facts.script.name_of(call.func)):
                yield call


def _name(facts: KerasFacts, call: cst.Call) -> str:
    """Return the name of the foreign class that ``call`` makes an object of, without its modules."""
    return "" if facts.flow.definition(call.func) is not None else facts.script.name_of(call.func).rsplit(".", 1)[-1]
