"""Step "rate" for Keras and TensorFlow: n ranks make the global batch n times as large; the learning rate follows."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from functools import partial

import libcst as cst

from dlrun.port.edits import Doubt, Edit
from dlrun.port.facts import ScriptFacts
from dlrun.port.facts.keras import KerasFacts
from dlrun.port.facts.updates.keywords import keywords, starred
from dlrun.port.facts.updates.rates import absolute, is_zero
from dlrun.port.insert import expression, inside, statements
from dlrun.port.program.script import argument, calls_method, dotted, walk
from dlrun.port.steps.rate import callback_rates, schedules
from dlrun.port.steps.rate.rate import suits
from dlrun.port.steps.rate.schedules import WHY
from dlrun.port.steps.start.start import last_import

# The rates that Keras 2.15 and 3 take when none is given, for optimizers that are named by a string.
DEFAULTS = {
    "sgd": ("SGD", "0.01"),
    "adam": ("Adam", "0.001"),
    "rmsprop": ("RMSprop", "0.001"),
    "adamw": ("AdamW", "0.001"),
    "nadam": ("Nadam", "0.001"),
    "adamax": ("Adamax", "0.001"),
    "adagrad": ("Adagrad", "0.001"),
    "adadelta": ("Adadelta", "0.001"),
}
RESET = "an absolute rate would undo the scaling"


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
    yield from constructors(facts, facts.optimizers)
    imported = False
    for call, _ in facts.compiled:
        for found in _by_name(facts, call):
            if isinstance(found, Doubt) or not (found.before or found.after):
                yield found
            elif not imported or found.node is facts.script.line_of(facts.script.statement_of(call)):
                imported = True
                yield found
    for node, model in facts.loaded:
        yield Doubt(
            node,
            f"{model} keeps the rate that its file has: that of a serial run is not scaled",
            "medium",
            f"port the script that saves it, or {model}.optimizer.learning_rate.assign({facts.alias}."
            "lr_scale(...)) after this line",
            name="rate-not-scaled",
        )
    yield from assigned(facts)
    yield from resets(facts)
    yield from callback_rates.rates(facts)
    texts = [v for call, _ in facts.compiled if isinstance(v := argument(call, "optimizer", 0), cst.SimpleString)]
    if not facts.optimizers:
        yield from suits(facts.options, ((text, str(text.evaluated_value)) for text in texts))


def constructors(facts: ScriptFacts, optimizers: Iterable[cst.Call]) -> Iterator[Edit | Doubt]:
    """Yield the scaling of the rates that optimizers are made with, or of the schedules behind them."""
    schedulers = {f for _, given in _schedules(facts) if (f := _schedule(facts, given)) is not None}
    done: set[cst.CSTNode] = set()
    for call in optimizers:
        if schedules.wraps(facts, call):
            continue
        values = schedules.rates_of(facts, call)
        if not values:
            yield from _default(facts, call)
            continue
        calls = (n for value in values for n in walk(value) if isinstance(n, cst.Call))
        if any(facts.flow.definition(made.func) in schedulers for made in calls):
            continue  # the schedule's own return value is scaled
        for rate in (*values, schedules.decay_of(facts, call)):
            for given in (schedules.rates(facts, rate) or [rate]) if rate is not None else ():
                if given not in done and not is_zero(given):
                    done.add(given)
                    yield Edit(given, WHY, schedules.scaling(facts))
    yield from suits(facts.options, ((call, facts.script.name_of(call.func)) for call in facts.optimizers))


def _default(facts: ScriptFacts, call: cst.Call) -> Iterator[Edit | Doubt]:
    """Yield the optimizer's own rate, written out and scaled; a doubt where it may be given out of sight."""
    if starred(call) and not keywords(facts, call):
        yield Doubt(
            call,
            "the learning rate may be among these keyword arguments, and is not scaled",
            "high",
            f"learning_rate={facts.alias}.lr_scale(...)",
            name="rate-not-scaled",
        )
        return
    last = dotted(call.func).rsplit(".", 1)[-1]
    default = DEFAULTS.get(last.lower().removesuffix("optimizer"))  # TensorFlow 1's have the same
    if default is None:
        yield Doubt(
            call,
            f"{last} takes its default rate, which is not scaled",
            "medium",
            f"learning_rate={facts.alias}.lr_scale(...)",
            name="rate-not-scaled",
        )
        return
    scaled = partial(_first, keyword="learning_rate", value=schedules.scaling(facts)(cst.Float(default[1])))
    yield Edit(call, f"{WHY} ({last}'s default, now written out)", partial(inside, func=call.func, change=scaled))


def assigned(facts: ScriptFacts) -> Iterator[Edit | Doubt]:
    """Yield the scaling of absolute rates that are set later: ``opt.learning_rate = x``, ``opt.lr.assign(x)``."""
    for node in facts.script.nodes:
        value: cst.BaseExpression | None = None
        if isinstance(node, cst.Assign) and isinstance(node.targets[0].target, cst.Attribute):
            target = node.targets[0].target
            if target.attr.value in schedules.RATES and facts.kinds.is_optimizer(target.value):
                value = node.value
        elif calls_method(node, "assign"):
            held = node.func.value if isinstance(node.func.value, cst.Attribute) else None
            if held is not None and held.attr.value in schedules.RATES and facts.kinds.is_optimizer(held.value):
                value = node.args[0].value if node.args else None
        for part in absolute(facts, value) if value is not None else ():
            if not is_zero(part):
                yield Edit(part, RESET, schedules.scaling(facts))


def _first(call: cst.Call, keyword: str, value: cst.BaseExpression) -> cst.Call:
    """Return ``call`` with one more argument, before the others that have names."""
    tight = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    arg = cst.Arg(value, keyword=cst.Name(keyword), equal=tight)
    comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    if any(a.star or a.keyword is None for a in call.args):
        return call.with_changes(args=[*call.args[:-1], call.args[-1].with_changes(comma=comma), arg])
    return call.with_changes(args=[arg.with_changes(comma=comma), *call.args] if call.args else [arg])


def _replaced(value: cst.BaseExpression, _: cst.CSTNode) -> cst.BaseExpression:
    return value


def _by_name(facts: KerasFacts, call: cst.Call) -> Iterator[Edit | Doubt]:
    """Yield the optimizer that a string stands for, written out so that its rate can be scaled."""
    value = argument(call, "optimizer", 0)
    if value is None:
        yield from _by_none(facts, call)
    elif not isinstance(value, cst.SimpleString):
        yield from _out_of_sight(facts, call, value)
    elif (made := (yield from _written_out(facts, name := str(value.evaluated_value).lower()))) is not None:
        yield Edit(value, f"{WHY} ({name}'s default, now written out)", partial(_replaced, made))
    else:
        yield Doubt(
            value,
            f"the rate of {name!r} is not scaled",
            "medium",
            f"optimizer=keras.optimizers....(learning_rate={facts.alias}.lr_scale(...))",
            name="rate-not-scaled",
        )


def _by_none(facts: KerasFacts, call: cst.Call) -> Iterator[Edit | Doubt]:
    """Yield the optimizer that Keras takes where ``compile()`` is given none, written out.

    A model of the script's own that sets its optimizers in its own ``compile()`` takes none there.
    """
    home = facts.script.function_of(call)
    own = isinstance(home, cst.FunctionDef) and home.name.value == "compile"
    if own or argument(call, "loss", 1) is None or any(arg.star for arg in call.args) or facts.flow.targets(call):
        return
    if (made := (yield from _written_out(facts, "rmsprop"))) is not None:
        why = f"{WHY} (that of the optimizer that compile() takes, now written out)"
        yield Edit(call, why, partial(_first, keyword="optimizer", value=made))


def _written_out(facts: KerasFacts, name: str) -> Generator[Edit | Doubt, None, cst.BaseExpression | None]:
    """Return the optimizer called ``name`` with its default rate, scaled; yield the import that it needs."""
    module = _keras_module(facts)
    if not module and name in DEFAULTS and "keras" not in facts.script.root.names:
        module = "keras.optimizers"
        yield from _import_keras(facts)
    if name not in DEFAULTS or not module:
        return None
    return expression(
        "keras/optimizer",
        module=module,
        name=DEFAULTS[name][0],
        dl=facts.alias,
        rate=DEFAULTS[name][1],
        rule=facts.options.lr_scaling,
    )


def _out_of_sight(facts: KerasFacts, call: cst.Call, value: cst.BaseExpression) -> Iterator[Edit | Doubt]:
    """Yield the scaling of the compiled model's rate, where a name that comes from elsewhere chose the optimizer."""
    known = {id(c) for c in facts.optimizers}
    made = [o.node for o in facts.flow.origins(value)]
    if not made or any(id(m) in known for m in made):
        if any(isinstance(m, cst.SimpleString) for m in made):
            yield Doubt(
                value,
                "where this is a text, the rate it stands for is not scaled",
                "high",
                "make an optimizer of each text",
                name="rate-not-scaled",
            )
        for other in (m for m in made if isinstance(m, cst.Call) and id(m) not in known):
            yield Doubt(
                other,
                "the rate of this optimizer of another kind is not scaled",
                "high",
                f"give it {facts.alias}.lr_scale(...)",
                name="rate-not-scaled",
            )
        return
    named = [m for m in made if isinstance(m, cst.Call) and facts.script.name_of(m.func).endswith("optimizers.get")]
    foreign = [m for m in made if isinstance(m, cst.Call) and m not in named]
    if foreign:
        yield Doubt(
            value,
            "the rate of this optimizer, which is made elsewhere, is not scaled",
            "medium",
            f"learning_rate={facts.alias}.lr_scale(...) where it is made",
            name="rate-not-scaled",
        )
        return
    model = next((text for c, text in facts.compiled if c is call), "")
    lines = statements("keras/rate_of_model", dl=facts.alias, model=model, rule=facts.options.lr_scaling)
    yield Edit(
        facts.script.line_of(facts.script.statement_of(call)), f"{WHY} (the rate that a name stands for)", after=lines
    )


def _import_keras(facts: KerasFacts) -> Iterator[Edit]:
    """Yield the import of the module that the written-out optimizer comes from."""
    anchor = last_import(facts.script.module, ("keras", "tensorflow"))
    parent = next((b.target for b in facts.script.imports() if b.target.startswith("tensorflow")), "")
    if anchor is not None:
        lines = statements("keras/import_keras", parent="tensorflow" if parent else "")
        yield Edit(anchor, "for the optimizer that a string stood for", before=lines)


def _keras_module(facts: KerasFacts) -> str:
    """Return how the script can name the module ``optimizers``, or an empty string."""
    ways = {
        "keras": "{}.optimizers",
        "tensorflow.keras": "{}.optimizers",
        "tensorflow": "{}.keras.optimizers",
        "keras.optimizers": "{}",
        "tensorflow.keras.optimizers": "{}",
    }
    for name, bindings in facts.script.root.names.items():
        for binding in bindings:
            if binding.how == "import" and binding.target in ways:
                return ways[binding.target].format(name)
    return ""


def _schedules(facts: ScriptFacts) -> Iterator[tuple[cst.Call, cst.BaseExpression]]:
    """Yield the calls that hand Keras' LearningRateScheduler a schedule, with it.

    Also through a class that derives from it, where its own ``__init__`` does so: ``super().__init__(self.halved)``.
    """
    flow, script = facts.flow, facts.script
    for call in script.calls:
        local, own = flow.definition(call.func), script.class_of(call)
        names = [script.name_of(call.func)]
        if isinstance(local, cst.ClassDef):
            names = flow.bases(local) if flow.method(local, "__init__") is None else []
        elif own is not None and flow.begins_base(call):
            names = flow.bases(own) if flow.inherited(call.func) is None else []
        given = argument(call, "schedule", 0)
        if given is not None and any(name.endswith("LearningRateScheduler") for name in names):
            yield call, given


def _schedule(facts: ScriptFacts, given: cst.BaseExpression) -> cst.FunctionDef | None:
    """Return the function of this script that ``given`` to a LearningRateScheduler is.

    By its name, a method, or made by another.
    """
    flow = facts.flow
    made = [given, *(o.node for o in flow.origins(given))]
    made += [r for n in made if isinstance(n, cst.Call) for t in flow.targets(n) for r in flow.returns(t)]
    found: list[object] = [flow.definition(n) for n in made]
    for n in made:
        if isinstance(n, cst.Attribute):
            own = facts.script.class_of(n) if dotted(n.value) == "self" else None
            found += [flow.method(c, n.attr.value) for c in ([own] if own is not None else flow.classes(n.value))]
        found += [flow.method(c, "__call__") for c in flow.classes(n)]
    return next((f for f in found if isinstance(f, cst.FunctionDef)), None)


def resets(facts: ScriptFacts) -> Iterator[Edit | Doubt]:
    """Yield the absolute rates that LearningRateScheduler functions return and set_value() sets."""
    script, scale, done = facts.script, schedules.scaling(facts), set[cst.CSTNode]()
    for call, schedule in _schedules(facts):
        given = [schedule, *(o.node for o in facts.flow.origins(schedule))]
        made = next((n for n in given if isinstance(n, cst.Lambda)), None) or _schedule(facts, schedule)
        if made is None:
            yield Doubt(
                call,
                f"{script.code(schedule)} may return absolute rates, unscaled",
                "high",
                f"return {facts.alias}.lr_scale(...)",
                name="rate-not-scaled",
            )
            continue
        taken = [p for p in made.params.params if p.name.value != "self"]
        returned = [made.body] if isinstance(made, cst.Lambda) else facts.flow.returns(made)
        for value in (part for r in returned for part in absolute(facts, r, taken[1] if len(taken) > 1 else None)):
            if value not in done:
                done.add(value)
                yield Edit(value, RESET, scale)
    for call in script.calls:
        if script.name_of(call.func).endswith("backend.set_value") and len(call.args) == 2:
            target = dotted(call.args[0].value)
            for value in absolute(facts, call.args[1].value) if target.endswith((".lr", ".learning_rate")) else ():
                if value not in done:
                    done.add(value)
                    yield Edit(value, RESET, scale)
