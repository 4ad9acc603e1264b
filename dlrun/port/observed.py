"""What a run showed and reading did not, or the other way round: each difference is a Doubt."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from dlrun.port.edits import Doubt, Edit
from dlrun.port.facts import Facts
from dlrun.port.observing import Observed

_STEP_OF = {"optimizer": "rate", "loader": "shard", "module": "broadcast"}


def differences(facts: Facts, observed: Observed, edits: list[Edit]) -> Iterator[Doubt]:
    """Yield a doubt for each place at which reading and the run say different things."""
    yield from _made(facts, observed)
    yield from _steps(facts, observed)
    touched = {facts.script.statement_of(e.node) for e in edits if e.step == "output"}
    for call, _ in observed.calls(facts.script, "save"):
        if facts.script.name_of(call.func) != "torch.save" and facts.script.statement_of(call) not in touched:
            yield Doubt(
                call,
                "the run saved a file inside this call: every rank would write it",
                "high",
                f"{facts.alias}.rank0({facts.script.code(call.func)})(...)",
                step="output",
                name="several-writers",
            )


def _made(facts: Facts, observed: Observed) -> Iterator[Doubt]:
    for what, step in _STEP_OF.items():
        for call, _ in observed.calls(facts.script, what):
            read = facts.kinds.of_call(call)
            if read and read != what and (read, what) != ("loss", "module"):  # a loss is a module, too
                yield Doubt(
                    call,
                    f"reading takes this for a {read}, the run made a {what} here",
                    "high",
                    step=step,
                    name="run-disagrees",
                )
    known = {id(c) for c in facts.optimizers}
    for call, _ in observed.calls(facts.script, "optimizer"):
        if id(call) not in known:
            yield Doubt(
                call,
                "the run made an optimizer here, and its rate is not scaled",
                "high",
                f"lr={facts.alias}.lr_scale(...)",
                step="rate",
                name="rate-not-scaled",
            )


def _steps(facts: Facts, observed: Observed) -> Iterator[Doubt]:
    stepped = {call for call, _ in observed.calls(facts.script, "step")}
    known = {s.node for s in facts.steps}
    for call in stepped - known:
        yield Doubt(
            call,
            "the run stepped an optimizer inside this call, where nothing is averaged",
            "high",
            f"{facts.alias}.gradients(optimizer) right before that step",
            step="gradients",
            name="not-averaged",
        )
    for step in facts.steps:
        if step.optimizer is not None and isinstance(step.node, cst.Call) and step.node not in stepped:
            why = f"did not run in the {observed.steps} steps that were observed"
            yield Doubt(step.node, why, "low", step="gradients", name="run-disagrees")
