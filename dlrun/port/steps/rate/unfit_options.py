"""Which options do not go with a script, and why: an option is never left out silently."""

from __future__ import annotations

import libcst as cst

from dlrun.errors import DlrunError
from dlrun.port.facts import Facts, ScriptFacts
from dlrun.port.facts.keras import KerasFacts
from dlrun.port.facts.updates.rates import changes
from dlrun.port.program.script import argument


def words(facts: ScriptFacts) -> list[str]:
    """Return those of the options about the rate that were given, as the command line calls them."""
    options = facts.options
    given = {
        "--warmup-steps": options.warmup_steps,
        "--warmup-epochs": options.warmup_epochs,
        "--lr-decay": options.lr_decay,
        "--lars": options.lars,
    }
    return [word for word, value in given.items() if value]


def refuse_in_loops(facts: Facts) -> None:
    """Raise DlrunError where an option makes no sense in a loop by hand (PyTorch, TensorFlow)."""
    script, asked = facts.script, words(facts)
    where = script.place(facts.steps[0].node) if facts.steps else script.name
    style = getattr(facts, "style", "")
    if style in ("session", "estimator"):
        whose = "an Estimator's own loop" if style == "estimator" else "the graph of a session"
        raise refused(where, asked, f"the rate lives in {whose}, where nothing changes it from outside")
    if facts.full_batch:
        raise refused(where, asked, "each step takes all samples, so neither the global batch nor the rate grows")
    for step in facts.steps:
        if step.optimizer is None:
            raise refused(script.place(step.node), asked, "the weights are updated by hand: there is no optimizer")
        if step.closure is not None and facts.options.lars:
            raise refused(script.place(step.node), ["--lars"], "the gradients are made within the step, by a closure")
    blind = next((script.place(top.loop) for top in facts.tops if not top.optimizers), None)
    if blind or not facts.tops:
        raise refused(blind or where, asked, "the optimizer is not in sight before this loop")
    for call in facts.optimizers:
        _only_sgd(facts, call, (facts.kinds.names(call.func) or [script.name_of(call.func)])[0])
    _unscheduled(facts)


def refuse_in_fit(facts: KerasFacts) -> None:
    """Raise DlrunError where an option makes no sense for models that Keras trains."""
    asked = words(facts)
    where = facts.script.place([*facts.compiled, *facts.loaded][0][0])
    by_callback = [word for word in asked if word != "--lars"]
    if by_callback and not facts.fits:
        raise refused(where, by_callback, "this script trains with train_on_batch(), where no callback runs")
    if facts.own:
        raise refused(where, asked, "the model has optimizers of its own beside the compiled one")
    for call in facts.optimizers:
        _only_sgd(facts, call, facts.script.name_of(call.func))
    for call, _ in facts.compiled:
        value = argument(call, "optimizer", 0)
        name = str(value.evaluated_value) if isinstance(value, cst.SimpleString) else "rmsprop" if value is None else ""
        if facts.options.lars and name and name.lower() != "sgd":
            raise refused(facts.script.place(call), ["--lars"], f"it changes the update of SGD, not of {name}")
    _unscheduled(facts)


def _only_sgd(facts: ScriptFacts, call: cst.Call, name: str) -> None:
    last = name.rsplit(".", 1)[-1]
    if facts.options.lars and last and last != "SGD":
        raise refused(facts.script.place(call), ["--lars"], f"it changes the update of SGD, not of {last}")


def _unscheduled(facts: ScriptFacts) -> None:
    """Raise DlrunError where the script has a schedule that warm-up and decay would have to be part of."""
    options = facts.options
    if facts.framework != "torch" and (options.warmup_steps or options.warmup_epochs or options.lr_decay):
        for call in facts.script.calls:
            if "optimizers.schedules." in facts.script.name_of(call.func):
                asked = [word for word in words(facts) if word != "--lars"]
                raise refused(facts.script.place(call), asked, "the rate is a schedule: put it in there")
    if options.lr_decay is not None and (found := next(changes(facts), None)) is not None:
        raise refused(facts.script.place(found), ["--lr-decay"], "the script changes its rate itself")


def refused(where: str, asked: list[str], reason: str) -> DlrunError:
    """Return the error that says which options do not go with the script at ``where``."""
    what = " and ".join(asked)
    return DlrunError(f"{where}: {what}: {reason}. Nothing was written.", f"Port it without {what}.")
