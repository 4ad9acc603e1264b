"""Part of step "metrics": moving statistics of a Keras model that a tape trains, which each rank keeps of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from dlrun.port.edits import Doubt, Edit
from dlrun.port.facts.models.kinds_tensorflow import plain
from dlrun.port.facts.tensorflow import TensorFlowFacts
from dlrun.port.facts.updates.session import SessionGradients
from dlrun.port.insert import statements
from dlrun.port.program.ends import ends
from dlrun.port.program.script import calls_method, dotted, walk

_WITH_LAYERS = ("keras.applications.", "tensorflow_hub.", "keras_cv.", "efficientnet.", "segmentation_models.")
_NORMALIZES = re.compile(r"(^|\.)(layers\.batch_norm(alization)?|slim\.batch_norm|BatchNormalization)$")
_SAVES = ("save", "save_weights", "write", "export", "save_model")
_WHY = "all ranks evaluate and save one model: the statistics of BatchNormalization are of all ranks' samples"


def tape(facts: TensorFlowFacts) -> Iterator[Edit | Doubt]:
    """Average the statistics behind the loop that trains, and in it before an evaluation or a save.

    Before:
        model = keras.Sequential([keras.layers.BatchNormalization(), keras.layers.Dense(1)])
        for epoch in range(9):
            for x, y in data:
                with tf.GradientTape() as tape:
                    loss = keras.losses.mse(y, model(x, training=True))
                grads = tape.gradient(loss, model.trainable_variables)
                opt.apply_gradients(zip(grads, model.trainable_variables))
            model.save_weights("last.weights.h5")

    After:
        model = keras.Sequential([keras.layers.BatchNormalization(), keras.layers.Dense(1)])
        for epoch in range(9):
            for x, y in data:
                with tf.GradientTape() as tape:
                    loss = keras.losses.mse(y, model(x, training=True))
                grads = tape.gradient(loss, model.trainable_variables)
                opt.apply_gradients(zip(grads, model.trainable_variables))
            dl.average(model)  # BatchNorm's statistics: of all ranks' samples
            model.save_weights("last.weights.h5")
    """
    layer = _layer(facts)
    if layer is None or facts.style != "tape":
        return
    if facts.options.batch == "global":
        yield Doubt(
            layer,
            "BatchNormalization takes its statistics from a rank's 1/n of the batch, unlike the serial run",
            "medium",
            "keras.layers.BatchNormalization(synchronized=True) does not reach over ranks: keep a rank's batch",
            name="batchnorm-statistics",
        )
    found = False
    for loop in (n for n in facts.innermost if isinstance(n, (cst.For, cst.While))):
        if models := _models(facts, loop):
            found = True
            yield from _behind(facts, loop, models)
            yield from _inside(facts, loop)
    if not found:
        model = next((t for top in facts.tops for t in top.things if t not in top.optimizers), "model")
        yield Doubt(
            layer,
            "each rank's BatchNormalization keeps statistics of its own samples; saved are rank 0's",
            "low",
            f"{facts.alias}.average({model}) before evaluating or saving",
            name="batchnorm-statistics",
        )


def session(facts: TensorFlowFacts) -> Iterator[Edit]:
    """Average the statistics that a session holds: behind the loop that trains, in it before an evaluation or a save.

    Before:
        normed = tf.layers.batch_normalization(tf.layers.dense(x, 4), training=True)
        train_op = tf.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(normed))
        for rows in range(0, len(data), 8):
            sess.run(train_op, {x: data[rows:rows + 8]})
        saver.save(sess, "last")

    After:
        normed = tf.layers.batch_normalization(tf.layers.dense(x, 4), training=True)
        train_op = tf.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(normed))
        for rows in range(0, len(data), 8):
            sess.run(train_op, {x: data[rows:rows + 8]})
        dl.average(sess)  # BatchNorm's statistics: of all ranks' samples
        saver.save(sess, "last")
    """
    gradients = facts.gradients
    normalizes = any(_NORMALIZES.search(plain(facts.script.name_of(c.func))) for c in facts.script.calls)
    if not isinstance(gradients, SessionGradients) or not normalizes:
        return
    steps = [run for run, _ in gradients.step_calls]
    lines: set[cst.CSTNode] = set()
    for loop in (n for n in facts.innermost if isinstance(n, (cst.For, cst.While))):
        runs = [r for r in steps if facts.script.inside(r, loop.body) and isinstance(r.func, cst.Attribute)]
        name = dotted(runs[0].func.value) if runs else ""  # type: ignore[attr-defined]
        if not name or not all(facts.script.function_of(r) is facts.script.function_of(loop) for r in runs):
            continue
        yield from _behind(facts, loop, [name])
        for call in (n for n in walk(loop.body) if isinstance(n, cst.Call) and n not in steps):
            given = [dotted(a.value) for a in call.args[:1]]
            saves = calls_method(call, "save") and given == [name]
            evaluates = calls_method(call, "run") and dotted(call.func.value) == name
            line = _below_test(facts, call, loop)
            if (saves or evaluates) and line is not None and line not in lines and not _is_unequal(facts, line):
                lines.add(line)
                yield Edit(line, _WHY, before=_lines(facts, [name]))


def _below_test(facts: TensorFlowFacts, node: cst.CSTNode, loop: cst.CSTNode) -> cst.CSTNode | None:
    """Return the first line below the ``if`` in ``loop`` under which ``node`` is; None where it is always run."""
    below: cst.CSTNode | None = None
    for up in facts.script.above(node):
        if up is loop:
            return None
        if isinstance(up, cst.If) and below is not None and isinstance(up.body, cst.IndentedBlock):
            return up.body.body[0] if below in up.body.body else None
        if isinstance(up, (cst.SimpleStatementLine, cst.BaseCompoundStatement)):
            below = up
    return None


def _behind(facts: TensorFlowFacts, loop: cst.CSTNode, models: list[str]) -> Iterator[Edit]:
    """Average the statistics of ``models`` where ``loop`` ends."""
    left = ends(loop)
    for end in left:
        yield Edit(end, _WHY, before=_lines(facts, models))
    if not left:
        yield Edit(loop, _WHY, after=_lines(facts, models))


def _lines(facts: TensorFlowFacts, models: list[str]) -> tuple[cst.CSTNode, ...]:
    return statements("torch/statistics", dl=facts.alias, model=", ".join(models))


def _layer(facts: TensorFlowFacts) -> cst.Call | None:
    """Return what makes a BatchNormalization layer, or a model that holds some."""
    for call in facts.script.calls:
        if any("BatchNorm" in n or n.startswith(_WITH_LAYERS) for n in facts.kinds.names(call.func)):
            return call
    return None


def _inside(facts: TensorFlowFacts, loop: cst.CSTNode) -> Iterator[Edit]:
    """Yield the edits in a loop that trains: before what evaluates there, and what saves."""
    bodies = facts.flow.bodies(loop.body)  # type: ignore[attr-defined]
    lines: set[cst.CSTNode] = set()
    places: list[tuple[cst.CSTNode, cst.CSTNode]] = [(e.loop, e.loop) for e in facts.evaluations]
    for call in facts.script.calls:
        name = call.func.attr.value if isinstance(call.func, cst.Attribute) else ""
        if name in _SAVES and facts.kinds.of(call.func.value) in ("module", "", "checkpoint"):  # type: ignore[attr-defined]
            places.append((call, facts.script.line_of(facts.script.statement_of(call))))
    for node, line in places:
        if line in lines or not any(facts.script.inside(node, body) for body in bodies):
            continue
        home = facts.script.function_of(node)
        models = _models(facts, line) or _models(facts, loop if home is facts.script.function_of(loop) else home)
        if models and not _is_unequal(facts, line):
            lines.add(line)
            yield Edit(line, _WHY, before=_lines(facts, models))


def _is_unequal(facts: TensorFlowFacts, node: cst.CSTNode) -> bool:
    tests = [up.test for up in facts.script.above(node) if isinstance(up, cst.If)]
    return any(facts.unequal(n) for test in tests for n in walk(test) if isinstance(n, (cst.Name, cst.Call)))


def _models(facts: TensorFlowFacts, node: cst.CSTNode | None) -> list[str]:
    """Return how the models that ``node`` runs are called where it stands; none that another function alone knows."""
    if node is None or isinstance(node, cst.Module):
        return []
    found: dict[str, None] = {}
    home = facts.script.function_of(node)
    inner = getattr(node, "body", None)
    for body in (node, *facts.flow.bodies(inner if isinstance(inner, cst.BaseSuite) else node)):
        for call in (n for n in walk(body) if isinstance(n, cst.Call)):
            here = facts.script.function_of(call) is home
            for model in (call.func, *(a.value for a in call.args)) if here else (call.func,):
                text = dotted(model)
                if text and facts.kinds.of(model) == "module" and (here or _is_known(facts, model, node)):
                    found[text] = None
    return [name for name in found if not any(name.startswith(f"{other}.") for other in found)]


def _is_known(facts: TensorFlowFacts, model: cst.BaseExpression, node: cst.CSTNode) -> bool:
    """Tell whether a model of another function is known by the same name at ``node``: a global one, or ``self``'s."""
    root = dotted(model).partition(".")[0]
    if root == "self":
        cls = facts.script.class_of(model)
        return cls is not None and cls is facts.script.class_of(node)
    name = next((n for n in walk(model) if isinstance(n, cst.Name)), None)
    bound = facts.script.bindings_of(name) if name is not None else []
    return bool(bound) and all(facts.script.function_of(b.node) is facts.script.module for b in bound)
