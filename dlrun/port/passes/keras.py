"""The steps of a port of Keras: ``distribute`` does at run time what is one step each in a loop of one's own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

import libcst as cst

from dlrun.port.edits import Doubt, Edit
from dlrun.port.facts_keras import KerasFacts
from dlrun.port.insert import expression, statements
from dlrun.port.passes import output as torch_output
from dlrun.port.passes import start as torch_start
from dlrun.port.passes.rate import argument
from dlrun.port.script import dotted, walk

# The rates that Keras 2.15 and 3 take when none is given, for optimizers that are named by a string.
DEFAULTS = {"sgd": ("SGD", "0.01"), "adam": ("Adam", "0.001"), "rmsprop": ("RMSprop", "0.001"),
            "adamw": ("AdamW", "0.001"), "nadam": ("Nadam", "0.001"), "adamax": ("Adamax", "0.001"),
            "adagrad": ("Adagrad", "0.001"), "adadelta": ("Adadelta", "0.001")}  # fmt: skip
_SCHEDULES = re.compile(r"keras\.optimizers\.schedules\.\w+$")
_SAVES = ("save", "save_weights", "save_model", "to_disk")
_LOADS = re.compile(r"keras\.datasets\.\w+\.load_data$|keras\.utils\.(get_file|data_utils\.get_file)$|get_file$")
_PLOTS = re.compile(r"keras\.utils\.(plot_model|vis_utils\.plot_model)$|keras\.models\.save_model$")


def start(facts: KerasFacts) -> Iterator[Edit | Doubt]:
    """Import dl_comm beside the others and join the ranks before Keras does any work.

    Before:
        import keras
        model.compile("sgd")
        model.fit(x, y)

    After:
        import keras
        import dl_comm.keras as dl  # averages gradients over the ranks; without a launcher: one rank

        dl.init()  # join the other ranks; this rank's GPU becomes the visible one
        model.compile("sgd")
        model.fit(x, y)
    """
    yield from torch_start.beside_imports(facts, ("keras", "tensorflow"))


def gradients(facts: KerasFacts) -> Iterator[Edit | Doubt]:
    """Distribute the model right after compile(): fit() then shares, averages, and starts from rank 0's weights.

    Before:
        model.compile(optimizer=opt, loss="mse")
        model.fit(x, y)

    After:
        model.compile(optimizer=opt, loss="mse")
        dl.distribute(model)  # average gradients and metrics, start alike, share the samples
        model.fit(x, y)
    """
    for call, model in facts.compiled:
        place = facts.script.line_of(facts.script.statement_of(call))
        yield Edit(place, f"{model}: fit() shares the samples and averages from here on",
                   after=statements("keras/distribute", dl=facts.alias, model=model))  # fmt: skip
    for call in facts.dealt:
        yield Edit(call, "the ranks take the batches of the serial run in turn",
                   lambda c: expression("torch/shard", {"loader": c}, dl=facts.alias))  # fmt: skip
    for loop in {facts.script.outermost_loop(call): None for call in facts.dealt}:
        if loop is not None and not any(_permutes(facts, n) for n in walk(loop)):
            yield Edit(loop, "noise is each rank's own", before=statements("keras/reseed", dl=facts.alias))
    for loop in facts.drawn:
        yield Edit(loop, "the loop draws its own batches, other ones on each rank",
                   before=statements("keras/reseed", dl=facts.alias))  # fmt: skip


def _permutes(facts: KerasFacts, node: cst.CSTNode) -> bool:
    """Tell whether ``node`` draws an order of the samples, which must be one on all ranks."""
    return isinstance(node, cst.Call) and facts.script.name_of(node.func).endswith((".permutation", ".shuffle"))


def rate(facts: KerasFacts) -> Iterator[Edit | Doubt]:
    """Scale the rate where the optimizer gets it, also behind a string, and where a callback sets it.

    Before:
        import keras
        model.compile(optimizer="adam", loss="mse")
        model.fit(x, y)

    After:
        import keras
        model.compile(optimizer=keras.optimizers.Adam(learning_rate=dl.lr_scale(0.001)), loss="mse")
        model.fit(x, y)
    """
    if facts.options.lr_scaling == "none":
        return
    rule, why = facts.options.lr_scaling, "n times the batch, n times the rate"

    def scale(node: cst.BaseExpression) -> cst.BaseExpression:
        return expression("torch/rate", {"lr": node}, dl=facts.alias, rule=rule)

    schedulers = {f for c in facts.script.calls if (f := _schedule(facts, c)) is not None}
    for call in facts.optimizers:
        value = next((v for k in ("learning_rate", "lr") if (v := argument(call, k)) is not None), None)
        value = value if value is not None else argument(call, "", 0)
        if value is None:
            last = dotted(call.func).rsplit(".", 1)[-1]
            default = DEFAULTS.get(last.lower())
            if default is None:
                yield Doubt(call, f"{last} takes its default rate, which is not scaled", "medium",
                            f"learning_rate={facts.alias}.lr_scale(...)")  # fmt: skip
                continue
            given = scale(cst.Float(default[1]))
            yield Edit(call, f"{why} ({last}'s default, now written out)",
                       partial(_first, keyword="learning_rate", value=given))  # fmt: skip
            continue
        if any(isinstance(n, cst.Call) and facts.flow.definition(n.func) in schedulers for n in walk(value)):
            continue  # the schedule's own return value is scaled
        schedules = [o.node for o in facts.flow.origins(value) if isinstance(o.node, cst.Call)
                     and _SCHEDULES.search(facts.script.name_of(o.node.func))]  # fmt: skip
        if not schedules:
            yield Edit(value, why, scale)
        for schedule in schedules:
            initial = argument(schedule, "initial_learning_rate", 0)
            if initial is not None:
                yield Edit(initial, why, scale)
            decay = argument(schedule, "decay_steps", 1)
            if decay is not None and not any(isinstance(n, cst.Call) for n in walk(decay)):
                yield Edit(decay, "decay_steps counts batches, and each rank sees 1/n of them",
                           lambda n: expression("torch/steps", {"count": n}, dl=facts.alias))  # fmt: skip
    for call, _ in facts.compiled:
        yield from _by_name(facts, call, why)
    yield from _resets(facts, scale)


def _first(call: cst.Call, keyword: str, value: cst.BaseExpression) -> cst.Call:
    tight = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    arg = cst.Arg(value, keyword=cst.Name(keyword), equal=tight)
    comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    if any(a.star or a.keyword is None for a in call.args):
        return call.with_changes(args=[*call.args[:-1], call.args[-1].with_changes(comma=comma), arg])
    return call.with_changes(args=[arg.with_changes(comma=comma), *call.args] if call.args else [arg])


def _replaced(value: cst.BaseExpression, _: cst.CSTNode) -> cst.BaseExpression:
    return value


def _by_name(facts: KerasFacts, call: cst.Call, why: str) -> Iterator[Edit | Doubt]:
    """Yield the optimizer that a string stands for, written out so that its rate can be scaled."""
    value = argument(call, "optimizer", 0)
    if value is None:
        return
    texts = [o.node for o in facts.flow.origins(value) if isinstance(o.node, cst.SimpleString)]
    for text in texts:
        name = str(text.evaluated_value).lower()
        module = _keras_module(facts)
        if name in DEFAULTS and module:
            made = expression("keras/optimizer", module=module, name=DEFAULTS[name][0], dl=facts.alias,
                              rate=DEFAULTS[name][1], rule=facts.options.lr_scaling)  # fmt: skip
            yield Edit(text, f"{why} ({name}'s default, now written out)", partial(_replaced, made))
        else:
            yield Doubt(text, f"the rate of {name!r} is not scaled", "medium",
                        f"optimizer=keras.optimizers....(learning_rate={facts.alias}.lr_scale(...))")  # fmt: skip


def _keras_module(facts: KerasFacts) -> str:
    """Return how the script can name the module ``optimizers``, or an empty string."""
    ways = {"keras": "{}.optimizers", "tensorflow.keras": "{}.optimizers", "tensorflow": "{}.keras.optimizers",
            "keras.optimizers": "{}", "tensorflow.keras.optimizers": "{}"}  # fmt: skip
    for name, bindings in facts.script.root.names.items():
        for binding in bindings:
            if binding.how == "import" and binding.target in ways:
                return ways[binding.target].format(name)
    return ""


def _schedule(facts: KerasFacts, call: cst.Call) -> cst.FunctionDef | None:
    """Return the function of this script that a LearningRateScheduler calls."""
    if not facts.script.name_of(call.func).endswith("LearningRateScheduler") or not call.args:
        return None
    function = facts.flow.definition(call.args[0].value)
    return function if isinstance(function, cst.FunctionDef) else None


def _resets(facts: KerasFacts, scale) -> Iterator[Edit | Doubt]:  # type: ignore[no-untyped-def]
    """Yield the absolute rates that LearningRateScheduler functions return and set_value() sets."""
    script = facts.script
    why = "an absolute rate would undo the scaling"
    for call in script.calls:
        name = script.name_of(call.func)
        if name.endswith("LearningRateScheduler") and call.args:
            schedule = call.args[0].value
            if isinstance(schedule, cst.Lambda):
                if len(schedule.params.params) == 1:
                    yield Edit(schedule.body, why, scale)
                continue
            function = _schedule(facts, call)
            if function is None:
                yield Doubt(call, f"{script.code(schedule)} may return absolute rates, unscaled", "high",
                            f"return {facts.alias}.lr_scale(...)")  # fmt: skip
                continue
            current = function.params.params[1].name.value if len(function.params.params) > 1 else ""
            for value in facts.flow.returns(function):
                names = {n.value for n in walk(value) if isinstance(n, cst.Name)}
                if not current or current not in names:
                    yield Edit(value, why, scale)
        elif name.endswith("backend.set_value") and len(call.args) == 2:
            target = dotted(call.args[0].value)
            reads = any(isinstance(n, cst.Attribute) and n.attr.value in ("lr", "learning_rate", "get_value")
                        for n in walk(call.args[1].value))  # fmt: skip
            if target.endswith((".lr", ".learning_rate")) and not reads:
                yield Edit(call.args[1].value, why, scale)


def steps(facts: KerasFacts) -> Iterator[Edit | Doubt]:
    """Divide the loops that draw one batch a turn; fit() divides steps_per_epoch by itself.

    Before:
        model.compile(opt)
        for step in range(1000):
            model.train_on_batch(*draw(np.random.randint(9)))

    After:
        model.compile(opt)
        for step in range(dl.steps(1000)):
            model.train_on_batch(*draw(np.random.randint(9)))
    """
    for loop in facts.drawn:
        inner = [n for n in walk(loop.body) if isinstance(n, (cst.For, cst.While))]
        turns = next((n for n in inner if "train_on_batch" in facts.script.code(n)), loop)
        call = turns.iter if isinstance(turns, cst.For) else None
        if isinstance(call, cst.Call) and facts.script.name_of(call.func).endswith("range") and call.args:
            yield Edit(call.args[min(1, len(call.args) - 1)].value, "the loop counts steps: n ranks make n batches",
                       lambda n: expression("torch/steps", {"count": n}, dl=facts.alias))  # fmt: skip


def output(facts: KerasFacts) -> Iterator[Edit | Doubt]:
    """Save, plot and write on rank 0; download there first. Callbacks that write are distribute()'s to handle.

    Before:
        model.compile(opt)
        model.fit(x, y)
        model.save("model.keras")

    After:
        model.compile(opt)
        model.fit(x, y)
        dl.rank0(model.save)("model.keras")
    """
    script, dl = facts.script, facts.alias
    models = {model for _, model in facts.compiled} | {script.code(f.func.value) for f in facts.fits}  # type: ignore[attr-defined]
    for call in script.calls:
        name = script.name_of(call.func)
        if (
            isinstance(call.func, cst.Attribute)
            and call.func.attr.value in _SAVES
            and (
                script.code(call.func.value) in models
                or (call.func.attr.value != "save" and (not name or name[0] == "."))
                or "model" in dotted(call.func.value).lower()
            )
        ) or _PLOTS.search(name):
            yield Edit(call.func, "rank 0 writes", lambda f: expression("torch/rank0", {"call": f}, dl=dl))
        elif _LOADS.search(name):
            yield Edit(call.func, "rank 0 downloads, the others wait and read",
                       lambda f: expression("torch/rank0_first", {"call": f}, dl=dl))  # fmt: skip
        else:
            yield from torch_output.one(facts, call)


def finish(facts: KerasFacts) -> Iterator[Edit | Doubt]:
    """Put finalize() at the end of the main guard, or of the script.

    Before:
        model.compile(opt)
        model.fit(x, y)

    After:
        model.compile(opt)
        model.fit(x, y)
        dl.finalize()  # leave together
    """
    from dlrun.port.passes import finish as torch_finish

    yield from torch_finish.torch(facts)
