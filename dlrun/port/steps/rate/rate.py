"""Step "rate": n ranks make the global batch n times as large; the learning rate follows (arXiv 1706.02677)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from dlrun.port.edits import Doubt, Edit
from dlrun.port.facts import Facts, Options
from dlrun.port.facts.updates.keywords import keywords, starred
from dlrun.port.facts.updates.rates import ends, is_zero, mixed, resets, scaled_already, text_of
from dlrun.port.insert import expression
from dlrun.port.program.script import argument, walk
from dlrun.port.steps.rate import group_rates, recipe, shown_rates

# Learning rates that torch.optim takes when none is given.
DEFAULTS = {
    "SGD": "0.001",
    "Adam": "0.001",
    "AdamW": "0.001",
    "Adamax": "0.002",
    "NAdam": "0.002",
    "RAdam": "0.001",
    "RMSprop": "0.01",
    "Adagrad": "0.01",
    "Adadelta": "1.0",
    "ASGD": "0.01",
    "Rprop": "0.01",
    "SparseAdam": "0.001",
    "Adafactor": "0.01",
    "Muon": "0.001",
}
# Schedulers that set absolute rates, with the positions and names of those.
ABSOLUTE = {
    "OneCycleLR": ((1, "max_lr"),),
    "CyclicLR": ((1, "base_lr"), (2, "max_lr")),
    "CosineAnnealingLR": ((2, "eta_min"),),
    "CosineAnnealingWarmRestarts": ((3, "eta_min"),),
    "ReduceLROnPlateau": ((7, "min_lr"),),
    "SWALR": ((1, "swa_lr"),),
}
_RATE_KEYS = ("lr", "learning_rate", "init_lr")


def torch(facts: Facts) -> Iterator[Edit | Doubt]:
    """Scale where a rate enters an optimizer: its constructor, its groups, and every absolute reset later.

    Before:
        opt = torch.optim.SGD(model.parameters(), lr=args.lr)
        for epoch in range(9):
            for group in opt.param_groups:
                group["lr"] = args.lr * 0.1 ** epoch
            for x, y in DataLoader(data, shuffle=True):
                (model(x) - y).pow(2).mean().backward()
                opt.step()

    After:
        opt = torch.optim.SGD(model.parameters(), lr=dl.lr_scale(args.lr))
        for epoch in range(9):
            for group in opt.param_groups:
                group["lr"] = dl.lr_scale(args.lr * 0.1 ** epoch)
            for x, y in DataLoader(data, shuffle=True):
                (model(x) - y).pow(2).mean().backward()
                opt.step()
    """
    yield from recipe.in_loops(facts)
    if facts.options.keeps_rate or facts.full_batch:
        return

    def scale(node: cst.BaseExpression) -> cst.BaseExpression:
        return expression("torch/rate", {"lr": node}, dl=facts.alias, rule=facts.options.lr_scaling)

    done: set[cst.CSTNode] = set()
    for call in facts.optimizers:
        for found in _constructor(facts, call, scale):
            if found.node not in done:
                done.add(found.node)
                yield found
    for value in group_rates.rates(facts):
        if value not in done:
            done.add(value)
            yield Edit(value, "the linear scaling rule (a group's own rate)", scale)
    for call in facts.script.calls:
        for given in _absolute(facts, call):
            if given not in done and not is_zero(given) and not group_rates.read(facts, given, done):
                done.add(given)
                yield Edit(given, "the scheduler sets this rate itself", scale)
    for value in dict.fromkeys(shown_rates.source(facts, value) for value in resets(facts)):
        yield Edit(value, "an absolute rate would undo the scaling", scale)
    for value in list(mixed(facts))[:1]:
        yield Doubt(
            value,
            f"{value.value} is at first a rate of the script, not scaled, and later the optimizer's, which is",
            "high",
            f"{value.value} = {facts.alias}.lr_scale(...) where the script sets it",
            name="rate-not-scaled",
        )
    for value in ends(facts):
        yield Edit(value, "the rate that is set against this one is scaled", scale)
    yield from group_rates.by_hand(facts)
    named = ((call, next(iter(facts.kinds.names(call.func)), "")) for call in facts.optimizers)
    yield from suits(facts.options, named)


def suits(options: Options, optimizers: Iterable[tuple[cst.CSTNode, str]]) -> Iterator[Doubt]:
    """Yield a doubt, once, where the linear rule meets an optimizer, by its name, that it was not found for."""
    for node, name in optimizers if options.lr_scaling == "linear" else ():
        last = name.rsplit(".", 1)[-1]
        if last.lower().startswith(("ada", "nadam", "radam", "lion", "rmsprop", "sparseadam")):
            yield Doubt(
                node,
                f"the linear scaling rule was found for SGD; {last} mostly wants less",
                "low",
                "port with --lr-scaling sqrt (or none), and compare the accuracy",
                name="rate-may-not-suit",
            )
            return


def _absolute(facts: Facts, call: cst.Call) -> Iterator[cst.BaseExpression]:
    """Yield the rates that the scheduler which ``call`` makes sets itself."""
    for name in facts.kinds.names(call.func) or [facts.script.name_of(call.func)]:
        own = ABSOLUTE.get(name.rsplit(".", 1)[-1], ())
        if name == "torch.optim.lr_scheduler.?":  # one of them, chosen by its name
            own = tuple((len(call.args), keyword) for each in ABSOLUTE.values() for _, keyword in each)
        yield from (v for position, keyword in own if (v := argument(call, keyword, position)) is not None)
        yield from (value for given, value in keywords(facts, call) if given in {keyword for _, keyword in own})


def _constructor(facts: Facts, call: cst.Call, scale) -> Iterator[Edit | Doubt]:  # type: ignore[no-untyped-def]
    names = facts.kinds.names(call.func) or [facts.script.name_of(call.func)]
    last = names[0].rsplit(".", 1)[-1]
    if last == "LBFGS":
        return
    stock = names[0].startswith("torch.optim.")
    why = "the linear scaling rule: n times the batch, n times the rate"
    if facts.options.lr_scaling == "sqrt":
        why = "n times the batch, sqrt(n) times the rate"
    groups = [n for n in walk(call) if isinstance(n, cst.DictElement) and text_of(n.key) == "lr"]
    for origin in facts.flow.origins(call.args[0].value) if call.args and not call.args[0].star else ():
        if isinstance(origin.node, (cst.List, cst.Tuple)) and origin.node is not call.args[0].value:
            groups.extend(n for n in walk(origin.node) if isinstance(n, cst.DictElement) and text_of(n.key) == "lr")
    for group in groups:
        if not is_zero(group.value):
            yield Edit(group.value, f"{why} (a group's own rate)", scale)
    value = next((v for k in _RATE_KEYS if (v := argument(call, k)) is not None), None)
    if value is None and stock:
        value = argument(call, "lr", 1)
    if value is not None:
        if not scaled_already(facts, value) and not is_zero(value):
            yield Edit(value, why, scale)
        return
    if starred(call):
        rates = [rate for name, rate in keywords(facts, call) if name == "lr"]
        yield from (Edit(rate, why, scale) for rate in rates)
        if not rates:
            given = next(facts.script.code(arg.value) for arg in call.args if arg.star == "**")
            yield Doubt(
                call,
                "the learning rate is somewhere in these keyword arguments, and is not scaled",
                "high",
                f'**{{**{given}, "lr": {facts.alias}.lr_scale({given}["lr"])}}',
                name="rate-not-scaled",
            )
        return
    if group_rates.of_their_own(facts, call):
        return
    if stock and last in DEFAULTS and call.args:
        rate = cst.Arg(scale(cst.Float(DEFAULTS[last])), keyword=cst.Name("lr"), equal=_EQUAL)

        def give(node: cst.Call) -> cst.Call:
            first = node.args[0]
            comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
            if len(node.args) == 1:
                return node.with_changes(args=[first.with_changes(comma=comma), rate.with_changes(comma=first.comma)])
            if any(a.keyword is None for a in node.args[1:]):
                return node
            return node.with_changes(args=[first, rate.with_changes(comma=comma), *node.args[1:]])

        yield Edit(call, f"{why} ({last}'s default, now written out)", give)
    elif facts.steps:
        made = last or facts.script.code(call.func)
        yield Doubt(
            call,
            f"{made}: no learning rate to scale was found here",
            "medium",
            f"lr={facts.alias}.lr_scale(...)",
            name="rate-not-scaled",
        )


_EQUAL = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
