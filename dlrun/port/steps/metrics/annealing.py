"""Part of step "metrics": what training makes of a batch by the number of steps so far: annealed weights, chances that
fall, losses that set in late."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Set
from functools import cache

import libcst as cst

from dlrun.port.edits import Doubt, Edit
from dlrun.port.facts import Facts, ScriptFacts
from dlrun.port.facts.models.kinds_tensorflow import plain
from dlrun.port.facts.numbers.computed import Reaches, Tells, computed, reaching
from dlrun.port.facts.taint import chances
from dlrun.port.facts.tensorflow import TensorFlowFacts
from dlrun.port.facts.updates.rates import ORDER
from dlrun.port.feeds.iterated import Iterated
from dlrun.port.insert import expression
from dlrun.port.program.script import calls_method, dotted, walk
from dlrun.port.steps.counts import decays, steps, unseen_schedules
from dlrun.port.steps.counts.counters import attributes, counters, each_update, passes, tells, this_included
from dlrun.port.steps.counts.counts import is_length_of_share
from dlrun.port.steps.counts.update_counts import steps_so_far
from dlrun.port.steps.metrics import phases
from dlrun.port.steps.rate import rate_tables, schedules

FOLLOWS = "what is made of a batch follows the serial steps, of which n ranks take 1/n"
_TAKES = ("torch.nn.functional.", "tensorflow.nn.", "tensorflow.random.")
_DRAWS = re.compile(
    r"^((time|datetime|random|numpy\.random)\.|torch\.(rand|bernoulli)|keras\.random\.uniform|"
    r"tensorflow\.(compat\.v1\.)?random(\.(stateless_)?|_)uniform)"
)
COMPARES = re.compile(r"^tensorflow\.(compat\.v1\.)?(math\.)?(less|greater)(_equal)?$")
_MINIMIZES = ("minimize", "compute_gradients")
_GROWS = (cst.Divide, cst.Power)


def torch(facts: Facts) -> Iterator[Edit | Doubt]:
    """Let what follows the steps so far follow the serial steps, of which n ranks take 1/n: the annealing of a VAE.

    Before:
        for step, x in enumerate(loader):
            loss = (model(x) - x).pow(2).mean() + min(1.0, step / 500) * model(x).pow(2).mean()
            loss.backward()
            opt.step()

    After:
        for step, x in enumerate(loader):
            loss = (model(x) - x).pow(2).mean() + min(1.0, dl.serial_steps(step) / 500) * model(x).pow(2).mean()
            loss.backward()
            opt.step()
    """
    if not facts.keeps_steps:
        divided = {e.node for e in steps.torch(facts) if isinstance(e, Edit)}
        followed = dict.fromkeys(n for n in made_serial(facts, divided) if not _is_left_serial(facts, n))
        for read in followed:
            yield Edit(read, FOLLOWS, lambda n: expression("torch/serial_steps", {"step": n}, dl=facts.alias))
        yield from unseen_schedules.weighing(facts, weights(facts), {*divided, *followed})
        yield from rate_tables.kept_inside(facts, followed)
        yield from list(phases.torch(facts, followed))[:3]
        yield from _paced(facts)
        evaluations = set(passes(facts))
        evaluates = tells(facts, evaluations)
        for read in [n for n in _followed(facts, evaluates, divided) if evaluates(n)][:1] if evaluations else ():
            count = facts.script.code(read)
            yield Doubt(
                read,
                f"{count} counts the batches of evaluations, too, of which each rank sees all, and of "
                "the training's 1/n: what follows it goes its way more slowly",
                "high",
                f"if self.training: {count} += 1, and port again",
            )


def _is_left_serial(facts: Facts, read: cst.CSTNode) -> bool:
    """Tell whether the loop that counts ``read`` leaves the serial count: summed over the ranks behind it."""
    from dlrun.port.placement.torch import interpreted
    from dlrun.port.steps.metrics import environments

    return environments.uneven(facts) is None and interpreted(facts).left_serial.get(read, False)


def made_serial(facts: Facts, divided: Collection[cst.CSTNode]) -> dict[cst.BaseExpression, None]:
    """Return the counts of steps that what is made of a batch follows; ``divided`` are those that stay local."""
    counted = tells(facts, {*counters(facts), *attributes(facts)})
    return dict.fromkeys(_followed(facts, counted, divided))


def tensorflow(facts: TensorFlowFacts, divided: Set[cst.CSTNode]) -> Iterator[Edit | Doubt]:
    """Likewise for TensorFlow, what a session is fed included; ``divided`` are nodes that follow the ranks already.

    Before:
        model, opt = keras.Sequential([keras.layers.Dense(1)]), keras.optimizers.SGD(0.1)
        for step, x in enumerate(tf.data.Dataset.from_tensor_slices(data).batch(8)):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(x)) + min(1.0, step / 500) * tf.reduce_mean(model(x) ** 2)
            opt.apply_gradients(zip(tape.gradient(loss, model.variables), model.variables))

    After:
        model, opt = keras.Sequential([keras.layers.Dense(1)]), keras.optimizers.SGD(0.1)
        for step, x in enumerate(tf.data.Dataset.from_tensor_slices(data).batch(8)):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(x)) + min(1.0, dl.serial_steps(step) / 500) * tf.reduce_mean(model(x) ** 2)
            opt.apply_gradients(zip(tape.gradient(loss, model.variables), model.variables))
    """
    counted = steps_so_far(facts)
    found = () if facts.keeps_steps else (*_followed(facts, counted, divided), *_in_graph(facts, counted, divided))
    followed = dict.fromkeys(found)
    for read in followed:
        yield Edit(read, FOLLOWS, lambda n: expression("torch/serial_steps", {"step": n}, dl=facts.alias))
    yield from rate_tables.kept_inside(facts, followed)
    if not facts.keeps_steps:
        yield from list(phases.tensorflow(facts, followed))[:3]
        yield from _paced(facts)


def _paced(facts: Facts | TensorFlowFacts) -> Iterator[Doubt]:
    """Yield a doubt where a schedule hands out its next number at every step: ``next(betas)``, ``rates.next()``."""
    for call in facts.paced:
        iterator = Iterated(facts.flow).advanced(call)
        if iterator is not None:
            name = facts.script.code(iterator)
            write = f"{name} = itertools.islice({name}, 0, None, {facts.alias}.get_nranks()) where it is made"
        else:
            write = (
                f"pick by {facts.alias}.serial_steps(i) in {dotted(call.func)}(), i the calls so far, up to its last"
            )
        yield Doubt(
            call,
            "the next number of a schedule, one a step, and n ranks take 1/n of the steps: the schedule "
            "goes n times more slowly in epochs",
            "high",
            write,
        )


def _followed(facts: Facts, counted: Tells, divided: Collection[cst.CSTNode]) -> Iterator[cst.BaseExpression]:
    """Yield the counts of steps that a part of the loss, or a chance, follows: not those that are told by fewer."""
    done = set(divided)
    sharded = {name for feed in facts.feeds if feed.how in ("named", "arrays") for name in feed.names}
    iterations = [loop for loop, _ in facts.counted if isinstance(loop, cst.For)]

    @cache
    def reads(node: cst.CSTNode) -> bool:
        named = (dotted(loop.target) == dotted(node) and facts.script.inside(node, loop.body) for loop in iterations)
        return counted(node) or (isinstance(node, cst.Name) and any(named))

    def of_batch(node: cst.CSTNode) -> bool:
        return isinstance(node, cst.Name) and facts.local(node) and not reads(node)

    weighing = set(weights(facts))
    for value in dict.fromkeys((*weighing, *steered(facts))):
        alike = [v for v in _returned(facts, value) if not facts.local(v)]
        made = computed(facts.flow, alike, reads, of_batch) if alike else None
        if made is None or not done.isdisjoint(made.nodes) or any(is_length_of_share(facts, n) for n in made.nodes):
            continue
        if any(isinstance(n, cst.Name) and n.value in sharded for n in made.nodes):
            continue  # samples, which lie where a rank's share has them
        picked = [read for read in made.reads if value in weighing and rate_tables.picks(facts.script, read)]
        if picked or any(grows(facts, n) for n in made.nodes):
            yield from (
                r if r in picked else this_included(facts.script, r)
                for r in made.reads
                if r in picked or not picks(facts, r)
            )


def _returned(facts: Facts, value: cst.BaseExpression) -> list[cst.BaseExpression]:
    """Return ``value``, or what functions return for it beside local values: ``loss, w = parts(model(x), step)``."""
    calls = _returning(facts, value) if isinstance(value, cst.Name) and facts.local(value) else []
    return [end for _, ends in calls for end in ends] or [value]


def _in_graph(facts: TensorFlowFacts, counted: Tells, divided: Set[cst.CSTNode]) -> Iterator[cst.BaseExpression]:
    """Yield the counts of steps that losses of a graph follow: ``tf.cast(global_step, tf.float32) / 1000``."""
    script = facts.script
    made = [
        c
        for c in script.calls
        if c.args
        and (
            any(calls_method(c, name) for name in _MINIMIZES) or plain(script.name_of(c.func)) == "tensorflow.gradients"
        )
    ]
    losses = [call.args[0].value for call in made if facts.style != "tape"]

    given = {step for call in script.calls if (step := decays.step_of(facts, call)) is not None}
    steps = {step for step in given if computed(facts.flow, [step], counted).reads}

    def follows(node: cst.CSTNode) -> bool:
        if isinstance(node, cst.Call) and schedules.follows_steps(facts, node):
            return not divided.isdisjoint(computed(facts.flow, [node]).nodes)
        return node in divided

    reads = computed(facts.flow, losses, lambda node: node in steps or counted(node), follows).reads
    yield from (read for read in reads if not picks(facts, read))


def picks(facts: ScriptFacts, read: cst.CSTNode) -> bool:
    """Tell whether ``read`` picks an entry, or single iterations: ``x[step]``, ``step % 5``, ``step == 9``."""
    for up in facts.script.above(read):
        match up:
            case cst.Index() | cst.BinaryOperation(operator=cst.Modulo()):
                return True
            case cst.Comparison():
                return not all(isinstance(c.operator, ORDER) for c in up.comparisons)
            case cst.BaseCompoundStatement() | cst.SimpleStatementLine():
                return False
    return False


def weights(facts: Facts) -> Iterator[cst.BaseExpression]:
    """Yield what is set beside parts of each batch's loss: what multiplies or divides these, and margins."""
    shown = Reaches(facts.flow, lambda n: _is_number(n) and each_update(facts, n, which=any, often=True))
    for node in facts.script.nodes:
        sides: list[tuple[cst.BaseExpression, cst.BaseExpression]] = []
        match node:
            case cst.BinaryOperation(operator=cst.Multiply() | cst.Add() | cst.Subtract()):  # by a weight, or a margin
                sides = [(node.left, node.right), (node.right, node.left)]
            case cst.BinaryOperation(operator=cst.Divide()):
                sides = [(node.right, node.left)]
            case cst.AugAssign(operator=cst.MultiplyAssign() | cst.DivideAssign()):
                sides = [(node.value, node.target)]
        sides = [(weight, part) for weight, part in sides if facts.local(part)]
        if sides and each_update(facts, node, which=any, often=True):
            yield from (weight for weight, part in sides if not shown.of(part))


def steered(facts: Facts) -> Iterator[cst.BaseExpression]:
    """Yield what else steers the making of each batch's loss: chances, and what models and losses are given beside the
    samples."""
    drawn = set(chances(facts.script))
    for node in facts.script.nodes:
        yield from compared_with_draws(facts, node)
        match node:
            case cst.Call() if node in drawn:
                yield from (arg.value for arg in node.args)
            case cst.Assign(targets=[cst.AssignTarget(target=cst.Attribute(value=owner))]):  # drop.p, model.beta
                yield from [node.value] if facts.kinds.of(owner) in ("module", "loss") else []
            case cst.Call() if facts.kinds.of(node.func) in ("module", "loss") and each_update(facts, node, often=True):
                yield from (arg.value for arg in node.args)
            case cst.Call() if plain(facts.script.name_of(node.func)).startswith(_TAKES):
                yield from (arg.value for arg in node.args)
    yield from (value for _, value in getattr(facts, "fed", ()))


def compared_with_draws(facts: ScriptFacts, node: cst.CSTNode) -> list[cst.BaseExpression]:
    """Return the sides of the comparison ``node`` where one of them is drawn at random: a chance."""
    sides: list[cst.BaseExpression] = []
    if isinstance(node, cst.Comparison):
        sides = [node.left, *(c.comparator for c in node.comparisons)]
    elif isinstance(node, cst.Call) and COMPARES.search(facts.script.name_of(node.func)):
        sides = [arg.value for arg in node.args]
    calls = [n for side in sides for n in walk(side) if isinstance(n, cst.Call)]
    return sides if any(_DRAWS.search(facts.script.name_of(c.func)) for c in calls) else []


def grows(facts: ScriptFacts, node: cst.CSTNode) -> bool:
    """Tell whether ``node`` makes something gradual of a count: a part of it, a power, a multiple by a fraction."""
    if not isinstance(node, cst.BinaryOperation):
        return isinstance(node, cst.Call) and facts.script.name_of(node.func) == "numpy.interp"
    times = isinstance(node.operator, cst.Multiply) and (
        isinstance(node.left, cst.Float) or isinstance(node.right, cst.Float)
    )
    return times or isinstance(node.operator, _GROWS)


def _is_number(node: cst.CSTNode) -> bool:
    """Tell whether ``node`` makes a number to keep for show, as a mean so far, and no part of a loss."""
    func = node.func if isinstance(node, cst.Call) else None
    return isinstance(func, cst.Attribute) and func.attr.value in ("item", "numpy")


def _returning(facts: Facts, name: cst.Name) -> list[tuple[cst.Call, list[cst.BaseExpression]]]:
    """Return the calls from which alone ``name`` comes, each with what its functions return for it; none of others."""
    found: list[tuple[cst.Call, list[cst.BaseExpression]]] = []
    for binding in reaching(facts.script, name, facts.script.bindings_of(name)):
        call, at = binding.value, binding.path[0] if len(binding.path) == 1 else None
        targets = facts.flow.targets(call) if isinstance(call, cst.Call) else []
        ends = [end for target in targets for end in facts.flow.returns(target)]
        if isinstance(at, int):
            ends = [e.elements[at].value if isinstance(e, cst.Tuple) and at < len(e.elements) else e for e in ends]
        if not isinstance(call, cst.Call) or not ends or len(binding.path) > 1:
            return []
        found.append((call, ends))
    return found
