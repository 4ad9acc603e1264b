"""Part of step "output": a job that is told to end has its checkpoint written, and ends."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

import libcst as cst

from dlrun.port.edits import Doubt, Edit
from dlrun.port.facts import Facts, ScriptFacts
from dlrun.port.facts.keras import KerasFacts
from dlrun.port.facts.models.kinds import to_an_end
from dlrun.port.facts.models.kinds_tensorflow import plain
from dlrun.port.facts.numbers.computed import computed
from dlrun.port.facts.tensorflow import TensorFlowFacts
from dlrun.port.facts.torch import LOOPS
from dlrun.port.facts.updates.rates import ORDER
from dlrun.port.insert import expression, in_brackets, statements
from dlrun.port.placement.interpret import Interpreter
from dlrun.port.placement.rules import Row, of_function
from dlrun.port.placement.torch import interpreted, interpreted_keras
from dlrun.port.program.script import calls_method, dotted, names_in, walk
from dlrun.port.steps.metrics import environments


def torch(facts: Facts) -> Iterator[Edit | Doubt]:
    """Ask, where the outermost training loop saves its checkpoint, whether the job was told to stop.

    What saves every so many epochs, or where a clock or a signal says so, saves then, too:
    ``if dl.should_stop() or epoch % 10 == 0:``. What saves where a number is good enough does not.

    Before:
        model = torch.nn.Linear(2, 1)
        opt = torch.optim.SGD(model.parameters())
        for epoch in range(9):
            for x, y in DataLoader(data, shuffle=True):
                (model(x) - y).pow(2).mean().backward()
                opt.step()
            torch.save(model.state_dict(), "model.pt")

    After:
        model = torch.nn.Linear(2, 1)
        opt = torch.optim.SGD(model.parameters())
        for epoch in range(9):
            for x, y in DataLoader(data, shuffle=True):
                (model(x) - y).pow(2).mean().backward()
                opt.step()
            torch.save(model.state_dict(), "model.pt")
            if dl.should_stop():  # the scheduler ends the job: this was its last checkpoint
                break
    """
    if environments.uneven(facts) is None:  # else the ranks do not come to the end of an iteration together
        yield from _asked(facts, [top.loop for top in facts.tops], lambda: interpreted(facts))


def keras(facts: KerasFacts) -> Iterator[Edit | Doubt]:
    """Ask likewise in loops around ``fit()`` and ``train_on_batch()`` that save; inside a ``fit()`` it asks by itself.

    Before:
        model.compile(opt)
        for epoch in range(9):
            model.fit(x, y)
            model.save("model.keras")

    After:
        model.compile(opt)
        for epoch in range(9):
            model.fit(x, y)
            model.save("model.keras")
            if dl.should_stop():  # the scheduler ends the job: this was its last checkpoint
                break
    """
    by_hand = [c for c in facts.script.calls if calls_method(c, "train_on_batch") and not facts.flow.targets(c)]
    loops = _outermost(facts, (*facts.fits, *by_hand), [call for call, _ in facts.compiled])
    if not any(to_an_end(facts.kinds, loop) for loop in loops):
        yield from _asked(facts, loops, lambda: interpreted_keras(facts))


def tensorflow(facts: TensorFlowFacts) -> Iterator[Edit | Doubt]:
    """Ask likewise in loops around tapes and sessions that save a checkpoint or a model.

    Before:
        checkpoint = tf.train.Checkpoint(model=model)
        for epoch in range(9):
            for x, y in data:
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean(model(x) - y)
                opt.apply_gradients(zip(tape.gradient(loss, model.variables), model.variables))
            checkpoint.save("weights")

    After:
        checkpoint = tf.train.Checkpoint(model=model)
        for epoch in range(9):
            for x, y in data:
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean(model(x) - y)
                opt.apply_gradients(zip(tape.gradient(loss, model.variables), model.variables))
            checkpoint.save("weights")
            if dl.should_stop():  # the scheduler ends the job: this was its last checkpoint
                break
    """
    if facts.episodes:
        return
    if facts.style == "tape":
        yield from _asked(facts, [top.loop for top in facts.tops], lambda: interpreted(facts))
    elif facts.style == "session":
        begun = [c for c in facts.script.calls if _BEGINS.search(facts.script.name_of(c.func))]
        loops = _outermost(facts, facts.loops, begun)
        yield from _asked(facts, [loop for loop in loops if not _ends_by_queue(loop)], None)


def _outermost(facts: ScriptFacts, updates: Iterable[cst.CSTNode], begun: Iterable[cst.CSTNode]) -> list[cst.CSTNode]:
    """Return the outermost loops around ``updates``, across calls; none over folds: those with ``begun`` inside."""
    script, flow = facts.script, facts.flow
    made = {frame for node in begun for frame in flow.frames(node)}
    loops: dict[cst.CSTNode, None] = {}
    for frame in (frame for node in updates for frame in flow.frames(node)):
        around = [n for n in (frame, *script.above(frame)) if isinstance(n, LOOPS) and _is_in_function(facts, n, frame)]
        loops.update(dict.fromkeys([n for n in around if not any(script.inside(m, n) for m in made)][-1:]))
    frames = {loop: flow.frames(loop) for loop in loops}
    return [a for a in loops if not any(script.inside(f, b) for b in loops if b is not a for f in frames[a])]


def _is_in_function(facts: ScriptFacts, loop: cst.CSTNode, node: cst.CSTNode) -> bool:
    return facts.script.function_of(loop) is facts.script.function_of(node)


def _ends_by_queue(loop: cst.CSTNode) -> bool:
    """Tell whether ``loop`` goes on until a queue is empty, on each rank at another iteration."""
    return isinstance(loop, cst.While) and any(calls_method(n, "should_stop") for n in walk(loop.test))


def _asked(
    facts: ScriptFacts, loops: Iterable[cst.CSTNode], run: Callable[[], Interpreter] | None
) -> Iterator[Edit | Doubt]:
    """Yield the questions behind the last statement of each loop that saves."""
    for loop in loops:
        saving = [s for s in facts.script.block_of(loop) if _saves(facts, s)]
        line = facts.script.parents[saving[-1]] if saving else None
        if not isinstance(line, (cst.SimpleStatementLine, cst.IndentedBlock)):
            continue  # one beside others: for e in n: f(); g()
        last: cst.CSTNode = line if isinstance(line, cst.SimpleStatementLine) else saving[-1]
        if isinstance(last, cst.If) and last.orelse is None and _is_due(facts, last.test, run):
            yield Edit(
                last.test,
                "a job that is told to end saves, too, before it leaves",
                lambda test: expression("torch/stop_or_due", {"due": _as_operand(test)}, dl=facts.alias),
            )
            if any(isinstance(n, cst.Break) for n in walk(last.body)):
                continue
            # Within the branch: told between the two questions, it leaves with the next checkpoint.
            end = last.body.body[-1] if isinstance(last.body, cst.IndentedBlock) else None
            last = last if end is None or _leaves(end) else end
        yield Edit(
            last,
            "a job that is told to end leaves after its checkpoint",
            after=statements("torch/should_stop", dl=facts.alias),
        )


def _leaves(statement: cst.CSTNode) -> bool:
    """Tell whether no line behind ``statement`` is reached."""
    return any(isinstance(n, (cst.Continue, cst.Return, cst.Raise)) for n in walk(statement))


def _is_due(facts: ScriptFacts, test: cst.BaseExpression, run: Callable[[], Interpreter] | None) -> bool:
    """Tell whether ``test`` asks for nothing but the number of an epoch or a step, or goes by a clock or a signal.

    So not ``epoch % 10 == 0 and score > best``: a file of the best model would get another one.
    """
    handled = {name for _, name in run().at_any_time} if run is not None else set()  # what handlers of signals set

    def by_clock(node: cst.BaseExpression) -> bool:
        made = (n for n in computed(facts.flow, [node]).nodes if isinstance(n, cst.Call))
        return any(of_function(facts.script.name_of(call.func)) is Row.CLOCK for call in made)

    counted = {name for n in walk(test) if (divided := _divided(n)) is not None for name in names_in(divided)}
    flags = [n for n in walk(test) if isinstance(n, (cst.Name, cst.Attribute)) and dotted(n).split(".")[-1] in handled]
    ordered = [n for n in walk(test) if isinstance(n, cst.Comparison) and isinstance(n.comparisons[0].operator, ORDER)]
    asks = bool(counted or flags) or by_clock(test)
    return asks and all(counted & set(names_in(n)) or by_clock(n) for n in ordered)


def _divided(node: cst.CSTNode) -> cst.BaseExpression | None:
    """Return what ``node`` is the rest of: ``epoch`` of ``epoch % 10``, and of ``np.mod(epoch, 10)``."""
    if isinstance(node, cst.BinaryOperation):
        return node.left if isinstance(node.operator, cst.Modulo) else None
    named = isinstance(node, cst.Call) and dotted(node.func).rpartition(".")[2] in ("mod", "fmod")
    return node.args[0].value if named and isinstance(node, cst.Call) and len(node.args) == 2 else None


def _as_operand(test: cst.BaseExpression) -> cst.BaseExpression:
    """Return ``test`` as it stands behind ``or``."""
    loose = isinstance(test, (cst.IfExp, cst.Lambda, cst.NamedExpr)) and not test.lpar
    return in_brackets(test) if loose else test


def _saves(facts: ScriptFacts, node: cst.CSTNode) -> bool:
    """Tell whether running ``node`` may save a checkpoint or a model."""
    inside = (n for body in facts.flow.bodies(node) for n in walk(body) if isinstance(n, cst.Call))
    return any(_is_save(facts, call) for call in inside)


def _is_save(facts: ScriptFacts, call: cst.Call) -> bool:
    name = plain(facts.script.name_of(call.func))
    if name in _SAVES or not calls_method(call, "save", "save_weights", "write") or facts.framework == "torch":
        return name in _SAVES
    assert isinstance(call.func, cst.Attribute)
    of = call.func.value
    if facts.flow.targets(call):
        return False
    made = {origin.node for origin in facts.flow.origins(of)}
    model = facts.kinds.of(of) == "module" or not made.isdisjoint(_compiled(facts))
    makers = [facts.script.name_of(n.func) for n in made if isinstance(n, cst.Call)]
    method = call.func.attr.value
    return method == "save_weights" or (method == "save" and model) or any(map(_KEEPERS.search, makers))


def _compiled(facts: ScriptFacts) -> set[cst.CSTNode]:
    """Return what makes the models that are compiled."""
    calls = [call for call, _ in facts.compiled] if isinstance(facts, KerasFacts) else []
    models = [call.func.value for call in calls if isinstance(call.func, cst.Attribute)]
    return {origin.node for model in models for origin in facts.flow.origins(model)}


_SAVES = ("torch.save", "tensorflow.saved_model.save", "keras.models.save_model", "keras.saving.save_model")
_BEGINS = re.compile(r"(global_variables_initializer|initialize_all_variables)$")
_KEEPERS = re.compile(r"^tensorflow\.(\w+\.)*train\.(Checkpoint|CheckpointManager|Saver)$")
