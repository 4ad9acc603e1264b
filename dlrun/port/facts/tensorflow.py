"""Reads a TensorFlow script: a tape loop, the runs of a session, or an Estimator."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import libcst as cst

from dlrun.errors import DlrunError
from dlrun.port.facts import Evaluation, Facts, Options
from dlrun.port.facts.evaluated import Evaluations
from dlrun.port.facts.loops import Loops
from dlrun.port.facts.models.keras_models import beside_loops
from dlrun.port.facts.models.kinds_tensorflow import plain
from dlrun.port.facts.outermost_loops import Tops
from dlrun.port.facts.taint import Taint, chances, made_of
from dlrun.port.facts.updates.estimators import Estimators
from dlrun.port.facts.updates.session import SESSIONS, SessionGradients, runs_session
from dlrun.port.facts.updates.tape import TapeGradients
from dlrun.port.feeds import Feeds, global_batches, local_samples
from dlrun.port.feeds.evaluations import evaluations
from dlrun.port.feeds.tensorflow import SessionFeeds, TapeFeeds
from dlrun.port.program.flow import Flow
from dlrun.port.program.script import Script, argument, calls_method, dotted, walk
from dlrun.port.refusals import main_guard
from dlrun.port.unshared import nothing_to_share
from dlrun.port.untrained import nothing_trains, rather, uncalled

Style = Literal["tape", "session", "estimator"]
_MONITORED, _SUPERVISOR = SESSIONS[2], SESSIONS[5]
# What trains, or makes an optimizer, out of sight, and what to write in its place.
_HIDDEN = {
    "slim.learning.train": "the loop: while not sess.should_stop(): sess.run(train_op), in a MonitoredTrainingSession, "
    "with train_op = optimizer.minimize(loss)",
    "slim.learning.create_train_op": "optimizer.minimize(loss, global_step)",
    "layers.optimize_loss": "optimizer.minimize(loss, global_step), with an optimizer such as "
    "tf.compat.v1.train.GradientDescentOptimizer(0.01)",
    "optimizer.lbfgs_minimize": "a loop with tape.gradient() and optimizer.apply_gradients()",
    "optimizer.bfgs_minimize": "a loop with tape.gradient() and optimizer.apply_gradients()",
}
_COMPUTED = (cst.Call, cst.BinaryOperation, cst.UnaryOperation)
_HOOK = re.compile(r"\.(\w+Hook|SessionRun\w+)$")  # of any session, under the name of estimators, too
_FITS = ("fit", "fit_generator", "train_on_batch")


@dataclass(frozen=True, eq=False)
class TensorFlowFacts(Facts):
    """All that the passes of TensorFlow decide on, beside what they share with PyTorch's."""

    framework = "tensorflow"
    style: Style = "tape"
    gradients: TapeGradients | None = None
    averages: tuple[cst.Call, ...] = ()  # calls that compute the gradients of updates
    clipped: tuple[cst.BaseExpression, ...] = ()  # gradients that variables added up, where they are clipped
    wrapped: tuple[cst.Call, ...] = ()  # constructors of optimizers whose gradients are not in sight
    estimators: Estimators | None = None
    monitored: tuple[cst.Call, ...] = ()  # calls that make a session which takes hooks
    supervised: tuple[cst.Call, ...] = ()  # calls that make a Supervisor, which closes the graph and makes sessions
    queues: tuple[cst.Call, ...] = ()  # input by queue runners
    fed: tuple[tuple[cst.BaseExpression, cst.BaseExpression], ...] = ()  # placeholders of training runs, and values
    fitted: tuple[cst.Call, ...] = ()  # fit() and the like of compiled models, beside loops that train
    unclear: tuple[cst.CSTNode, ...] = ()  # data that may feed the training or not


def style_of(script: Script) -> Style | None:
    """Return how a script trains with TensorFlow; None where it has neither tape, session nor Estimator."""
    names = {plain(script.name_of(n)) for n in script.nodes if isinstance(n, (cst.Name, cst.Attribute))}
    made = [n for n in names if not _HOOK.search(n)]
    if any(n.startswith(("tensorflow.estimator.", "tensorflow.contrib.learn.Estimator")) for n in made):
        return "estimator"
    if names & set(SESSIONS) or any(n.endswith(".managed_session") for n in names):
        return "session"
    if "tensorflow.GradientTape" in names:
        return "tape"
    return "session" if any(runs_session(c) for c in script.calls) else None  # one that an argument brings


def trains_by_hand(script: Script) -> bool:
    """Tell whether updates are made outside of ``fit``: not only in the ``train_step`` of a model that is fitted."""
    style = style_of(script)
    if style is None:
        return False
    trained = any(calls_method(c, method) for c in script.calls for method in _FITS)
    if style == "estimator" or not trained or not any(calls_method(c, "compile") for c in script.calls):
        return True
    if style == "session":  # it may be there only to say how much of the GPU is taken
        return bool(SessionGradients(Flow(script)).step_calls)
    flow = Flow(script)
    return not all(_in_train_step(flow, c) for c, _ in TapeGradients(flow).step_calls)


def _makes(script: Script, call: cst.Call, name: str) -> bool:
    return plain(script.name_of(call.func)) == name


def _in_train_step(flow: Flow, node: cst.CSTNode, depth: int = 9) -> bool:
    """Tell whether ``node`` runs only in a model's ``train_step`` that the script leaves to ``fit()`` to call.

    Also in a method that this calls, and ``test_step``, if it is told to train. Not in the ``train_step`` of a class
    which derives from nothing.
    """
    function = flow.script.function_of(node)
    if not isinstance(function, cst.FunctionDef) or not depth:
        return False
    if callers := flow.callers(function):
        return all(_in_train_step(flow, call, depth - 1) for call in callers)
    cls = flow.script.class_of(function) if function.name.value in ("train_step", "test_step") else None
    return cls is not None and any(base != "builtins.object" for base in flow.bases(cls))


def read(script: Script, options: Options) -> TensorFlowFacts:
    """Return what is known about ``script``; raises DlrunError where it is not one to port."""
    for call in script.calls:
        name = plain(script.name_of(call.func)).replace("tf_slim.", "slim.")
        instead = next((line for hidden, line in _HIDDEN.items() if name.endswith(hidden)), None)
        if instead is not None:
            raise DlrunError(
                f"{script.place(call)}: {script.code(call.func)}() trains out of sight, where no rank can "
                "average. Nothing was written.",
                f"Write {instead}.",
            )
    style = style_of(script)
    flow = Flow(script)
    if style == "estimator":
        if options.batch == "global":
            gradients = TapeGradients(flow)
            undivided = Estimators(script, flow, gradients.kinds).undivided()
            if undivided is not None:
                raise DlrunError(
                    f"{script.place(undivided[0])}: --batch global divides the batches of an Estimator whose loss is a "
                    f"mean over the samples; {undivided[1]}. Nothing was written.",
                    "Port it with --batch local.",
                )
        return gather(script, options, style, TapeGradients(flow), None, None)
    gradients = SessionGradients(flow) if style == "session" else TapeGradients(flow)
    loops = Loops(gradients)
    if not loops.ends:
        if made := gradients.builders:
            place = script.place(made[0][0])
            raise DlrunError(f"{place}: makes an update that nothing in this file runs.", rather(script))
        what = "run of a training operation" if style == "session" else "apply_gradients() or minimize()"
        looked = "The loop may be in a module that this file imports: port the script with it."
        raise nothing_trains(script, f"found no {what}", looked)
    if (function := loops.unreached()) is not None and not _is_entry(style, loops):
        raise uncalled(script, function)
    for call in script.calls if style == "session" else ():
        chief = argument(call, "is_chief", 3) if _makes(script, call, _SUPERVISOR) else None
        if chief is not None and dotted(chief) != "True":
            raise DlrunError(
                f"{script.place(chief)}: already distributed, over TensorFlow's own servers: {script.code(chief)} "
                "tells which of them leads. Nothing was written.",
                "Port the serial version of this script instead; on ranks of dl_comm every one leads itself.",
            )
    if (update := gradients.unaveraged()) is not None:
        raise DlrunError(
            f"{script.place(update)}: nothing in sight computes the gradients of this update, nor makes its optimizer: "
            "found no place to average them. Nothing was written.",
            "Compute them with tape.gradient(...), or make the optimizer in this file.",
        )
    feeds = SessionFeeds(loops) if style == "session" else TapeFeeds(loops)
    if not (isinstance(feeds, SessionFeeds) and feeds.queues) and (reason := nothing_to_share(feeds)) is not None:
        raise reason
    if options.batch == "global":
        if isinstance(feeds, SessionFeeds):
            global_batches.fed(feeds)
        else:
            global_batches.divided(feeds, feeds.compiled)
    return gather(script, options, style or "tape", gradients, loops, feeds)


def _is_entry(style: Style | None, loops: Loops) -> bool:
    """Tell whether functions that nothing here calls hold whole loops, with all that they update made in sight."""
    gradients = loops.gradients
    looped = all(
        any(loops.script.outermost_loop(n) is not None for n in way) for e in loops.ends for way in loops.ways(e)
    )
    return looped and (gradients.makes_all() if isinstance(gradients, SessionGradients) else style == "tape")


def gather(
    script: Script, options: Options, style: Style, gradients: TapeGradients, loops: Loops | None, feeds: Feeds | None
) -> TensorFlowFacts:
    """Return the facts that were found, be they enough for a port or not."""
    flow, kinds = gradients.flow, gradients.kinds
    updates = {call for call, _ in gradients.builders}  # optimizer = optimizer.apply_gradients(...) is none
    optimizers = {o.node: None for _, opt in gradients.builders for o in flow.origins(opt) if o.node not in updates}
    local = _forwards(gradients, loops, everywhere=True)
    estimators = Estimators(script, flow, kinds) if style == "estimator" else None
    samples = [*local_samples.samples(feeds)] if isinstance(feeds, TapeFeeds) else []
    runs: tuple[cst.Call, ...] = ()
    if isinstance(gradients, SessionGradients) and isinstance(feeds, SessionFeeds) and loops is not None:
        runs = Evaluations(gradients, loops, feeds).found()
    made = made_of(script, Taint(script, kinds, samples), loops.in_training) if loops is not None else []
    sharded = [feed.node for feed in (feeds.found.values() if feeds is not None else ()) if feed.how == "iterable"]
    return TensorFlowFacts(
        kinds=kinds,
        options=options,
        guard=main_guard(script, flow, loops.ends if loops is not None else ()),
        uncalled=loops.unreached() if loops is not None else None,
        steps=gradients.steps(),
        runs=runs,
        by_hand=gradients.by_hand(),
        tops=Tops(loops).found() if loops is not None else (),
        feeds=tuple(feeds.found.values()) if feeds is not None else (),
        states=tuple(feeds.carried.by_loop.values()) if feeds is not None else (),
        carries=tuple(feeds.carried.sharded) if feeds is not None else (),
        sampled=tuple(samples),
        permutations=tuple(feeds.permutations()) if feeds is not None else (),
        orders=tuple(feeds.late_orders()) if feeds is not None else (),
        paced=tuple(feeds.paced) if feeds is not None else (),
        seeds=tuple(feeds.orders.seeds()) if feeds is not None and not feeds.episodes else (),
        optimizers=tuple(
            c for c in script.calls if not kinds.gives_class(c) and (c in optimizers or kinds.of_call(c) == "optimizer")
        ),
        loops=tuple(loops.turning) if loops is not None else (),
        innermost=tuple(feeds.innermost) if feeds is not None else (),
        evaluations=tuple(_evaluations(style, options, feeds)),
        accumulating=tuple(loops.accumulating) if loops is not None else (),
        counted=feeds.ranges() if feeds is not None else (),
        full_batch=feeds.full_batch if feeds is not None else False,
        episodes=feeds.episodes if feeds is not None else False,
        local=Taint(script, kinds, [*local, *runs, *made]),
        unequal=Taint(script, kinds, [*local, *runs, *made, *chances(script), *sharded]),
        trained=_trained(gradients, loops, [*made, *runs]),
        style=style,
        gradients=gradients,
        averages=gradients.averages,
        clipped=tuple(dict.fromkeys(node for nodes in gradients.clipped.values() for node in nodes)),
        wrapped=gradients.wrapped(),
        estimators=estimators,
        monitored=tuple(c for c in script.calls if _makes(script, c, _MONITORED)),
        supervised=tuple(c for c in script.calls if _makes(script, c, _SUPERVISOR)),
        fitted=tuple(beside_loops(flow)),
        queues=tuple(feeds.queues) if isinstance(feeds, SessionFeeds) else (),
        fed=tuple(pair for run, _ in gradients.step_calls for pair in gradients.fed_pairs(run))
        if isinstance(gradients, SessionGradients)
        else (),
        unclear=tuple(feeds.unclear if isinstance(feeds, SessionFeeds) else getattr(feeds, "compiled", ())),
    )


def _evaluations(style: Style, options: Options, feeds: Feeds | None) -> Iterator[Evaluation]:
    """Yield the loops that evaluate, where the ranks take batches of the serial script, too."""
    if style != "tape" or feeds is None:
        return
    if options.batch == "local" and not feeds.full_batch and not feeds.episodes:
        yield from evaluations(feeds)


def _trained(gradients: TapeGradients, loops: Loops | None, made: Iterable[cst.CSTNode]) -> Taint:
    """Return what comes from training batches: also the results of metrics that are told it, by whatever loop."""
    seeds = [*_forwards(gradients, loops, everywhere=False), *made]
    values = Taint(gradients.script, gradients.kinds, seeds)
    results = _results(gradients, lambda call: any(values(arg.value) for arg in call.args))
    return Taint(gradients.script, gradients.kinds, [*seeds, *results]) if results else values


def _forwards(gradients: TapeGradients, loops: Loops | None, everywhere: bool) -> list[cst.CSTNode]:
    """Return the calls that compute local values: models, losses, metrics that see training batches, runs."""
    script, kinds = gradients.script, gradients.kinds

    def here(node: cst.CSTNode) -> bool:
        return everywhere or (loops is not None and loops.in_training(node))

    found: list[cst.CSTNode] = [c for c, _ in gradients.step_calls if isinstance(gradients, SessionGradients)]
    for call in (c for c in script.calls if isinstance(c.func, (cst.Name, cst.Attribute))):
        computes = plain(script.name_of(call.func)).startswith(("tensorflow.nn.", "keras.losses."))
        if (computes or kinds.of(call.func) in ("module", "loss")) and here(call):
            found.append(call)
    return [*found, *_led_back(gradients), *_results(gradients, here)]


def _results(gradients: TapeGradients, told: Callable[[cst.Call], bool]) -> list[cst.CSTNode]:
    """Return the results of the metrics that calls update for which ``told`` holds."""
    kinds, origins = gradients.kinds, gradients.flow.origins
    metrics: set[cst.CSTNode] = set()
    results: list[tuple[cst.Call, cst.BaseExpression]] = []
    for call in (c for c in gradients.script.calls if isinstance(c.func, (cst.Name, cst.Attribute))):
        if isinstance(call.func, cst.Attribute) and kinds.of(call.func.value) == "metric":
            if call.func.attr.value == "result":
                results.append((call, call.func.value))
            elif call.func.attr.value in ("update_state", "__call__") and told(call):
                metrics.update(o.node for o in origins(call.func.value))
        elif kinds.of(call.func) == "metric" and told(call):
            metrics.update(o.node for o in origins(call.func))
    return [call for call, metric in results if any(o.node in metrics for o in origins(metric))]


def _led_back(gradients: TapeGradients) -> Iterator[cst.CSTNode]:
    """Yield what gives the losses their names that tapes differentiate: ``loss, parts = loss_of(model, x)``."""
    script = gradients.script
    for call in gradients.averages if not isinstance(gradients, SessionGradients) else ():
        for name in (n for arg in call.args[:1] for n in walk(arg.value) if isinstance(n, cst.Name)):
            bound = script.bindings_of(name)
            yield from (b.value for b in bound if b.how == "assign" and isinstance(b.value, _COMPUTED))
