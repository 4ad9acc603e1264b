"""The steps of a port of an Estimator: it makes graph, session and loop itself, so it is told in its arguments."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

import libcst as cst

from dlrun.port.edits import Doubt, Edit
from dlrun.port.facts.tensorflow import TensorFlowFacts
from dlrun.port.facts.updates.estimators import Estimators
from dlrun.port.insert import expression, with_argument
from dlrun.port.program.script import argument, calls_method, dotted
from dlrun.port.steps.shard import order, seeds

_NORMALIZES = re.compile(r"batch_norm|BatchNorm")


def broadcast(facts: TensorFlowFacts) -> Iterator[Edit | Doubt]:
    """Yield the hook that makes all ranks start from rank 0's variables, and a folder of its own for each rank."""
    assert facts.estimators is not None
    for call in facts.estimators.trains:
        yield hooked(facts, call)
    for node in facts.script.nodes:
        keyword = node.keyword.value if isinstance(node, cst.Arg) and node.keyword is not None else ""
        if keyword == "train_distribute" and facts.script.code(node.value) != "None":  # type: ignore[attr-defined]
            yield Edit(
                node.value,  # type: ignore[attr-defined]
                "the ranks take the place of a strategy",
                lambda _: cst.Name("None"),
            )
    for folder in facts.estimators.folders():
        yield Edit(
            folder,
            "rank 0 writes here; the others begin from what is there, in folders of their own",
            lambda f: expression("tensorflow/model_dir", {"path": f}, dl=facts.alias),
        )


def hooked(facts: TensorFlowFacts, call: cst.Call) -> Edit:
    """Return the Edit that adds the hook to the ``hooks`` of ``call``."""
    given = argument(call, "hooks")
    why = "all variables: the same on all ranks before the first step"
    dl = facts.alias
    if given is None:
        return Edit(call, why, lambda c: with_argument(c, "hooks", expression("tensorflow/hooks", dl=dl)))
    if isinstance(given, cst.List):
        # First: what the others read at the start, such as the global step, is then the same on all ranks.
        def longer(node: cst.List) -> cst.List:
            hook = cst.Element(expression("tensorflow/hook", dl=dl))
            if node.elements:
                hook = hook.with_changes(comma=cst.Comma(whitespace_after=cst.SimpleWhitespace(" ")))
            return node.with_changes(elements=[hook, *node.elements])

        return Edit(given, why, longer)
    return Edit(given, why, lambda node: expression("tensorflow/hooks_more", {"hooks": node}, dl=dl))


def gradients(facts: TensorFlowFacts) -> Iterator[Edit | Doubt]:
    """Yield optimizers that average in place of those that ready-made Estimators make of a name, or unasked."""
    assert facts.estimators is not None
    for call in facts.estimators.ready:
        kind, rule = facts.script.code(call.func), facts.options.lr_scaling
        for parameter, name in facts.estimators.named_of(call):
            text = facts.script.code(name) if name is not None else ""
            made = expression(
                "tensorflow/default_optimizer", dl=facts.alias, kind=kind, parameter=parameter, name=text, rule=rule
            )
            why = f"{text or 'the optimizer that it makes unasked'}: averaged, at n times its rate"
            if name is not None:
                yield Edit(name, why, partial(_instead, made))
            else:
                yield Edit(call, why, partial(_with, parameter, made))


def _instead(new: cst.BaseExpression, old: cst.BaseExpression) -> cst.BaseExpression:
    return new


def _with(parameter: str, made: cst.BaseExpression, call: cst.Call) -> cst.Call:
    return with_argument(call, parameter, made)


def shard(facts: TensorFlowFacts) -> Iterator[Edit | Doubt]:
    """Yield the shares of the data sets and arrays that the training's input functions make."""
    assert facts.estimators is not None
    yield from order.torch(facts)
    yield from seeds.torch(facts)
    dl, done = facts.alias, set[cst.CSTNode]()
    if facts.options.batch == "global":
        yield from _parts(facts, facts.estimators)
        return
    for kind, node in facts.estimators.inputs():
        if node in done:
            continue
        done.add(node)
        if kind == "data":
            yield Edit(
                node,
                "training takes this rank's share",
                lambda n: expression("torch/shard", {"loader": n}, dl=dl, batch="local"),
            )
        elif kind == "handed":
            yield from _handed(facts, facts.estimators, node, done)
        else:
            share = partial(_shared, dl, ", ".join(facts.estimators.parameters(node)))
            yield Edit(node, "training takes this rank's share, evaluation all", share)


def _parts(facts: TensorFlowFacts, estimators: Estimators) -> Iterator[Edit]:
    """Yield what lets the training take a part of each batch that its input function makes."""
    why, dl = "training takes this rank's part of each batch, evaluation all", facts.alias
    for call in estimators.trains:
        value = argument(call, "input_fn", 0)
        if isinstance(value, cst.Lambda):
            yield Edit(value.body, why, lambda n: expression("tensorflow/part", {"made": n}, dl=dl))
        elif value is not None:
            given = ", ".join(estimators.parameters(value))
            part = partial(expression, "tensorflow/part_input", dl=dl, parameters=given)
            yield Edit(value, why, lambda n, part=part: part({"input_fn": n}))  # type: ignore[misc]


def _handed(
    facts: TensorFlowFacts, estimators: Estimators, node: cst.BaseExpression, done: set[cst.CSTNode]
) -> Iterator[Edit]:
    """Yield what has a function that evaluation calls, too, share its data set where ``node``, the training, asks."""
    why, dl = "training takes this rank's share, evaluation all", facts.alias
    if isinstance(node, cst.Call):
        share = expression("tensorflow/share", dl=dl)
        yield Edit(node, why, lambda c: with_argument(c, "share", share))
    else:
        parameters = ", ".join(estimators.parameters(node))
        yield Edit(
            node, why, lambda f: expression("tensorflow/shard_inside", {"input_fn": f}, dl=dl, parameters=parameters)
        )
    function = estimators.maker(node)
    if function is None or function in done:
        return
    done.add(function)
    yield Edit(function.params, why, _with_share)
    for data in estimators.iterated_in(function):
        yield Edit(data, why, lambda d: expression("tensorflow/shared_data", {"data": d}, share="share"))


def _with_share(params: cst.Parameters) -> cst.Parameters:
    """Return ``params`` with one more, ``share=lambda data: data``."""
    tight = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    more = cst.Param(cst.Name("share"), default=expression("tensorflow/whole"), equal=tight)
    comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    if isinstance(params.star_arg, cst.MaybeSentinel) and not params.kwonly_params:
        before = [p.with_changes(comma=comma) for p in params.params[-1:]]
        return params.with_changes(params=[*params.params[:-1], *before, more])
    before = [p.with_changes(comma=comma) for p in params.kwonly_params[-1:]]
    return params.with_changes(kwonly_params=[*params.kwonly_params[:-1], *before, more])


def _shared(dl: str, parameters: str, input_fn: cst.BaseExpression) -> cst.BaseExpression:
    return expression("tensorflow/shard_input", {"input_fn": input_fn}, dl=dl, parameters=parameters)


def steps(facts: TensorFlowFacts) -> Iterator[Edit | Doubt]:
    """Yield the step counts, divided."""
    assert facts.estimators is not None
    for count in facts.estimators.counts():
        yield Edit(
            count,
            "it counts steps, and n ranks together take n batches a step",
            lambda n: expression("torch/steps", {"count": n}, dl=facts.alias),
        )


def metrics(facts: TensorFlowFacts) -> Iterator[Edit | Doubt]:
    """Yield a doubt where a hook may end the training on one rank, and means of what the ranks evaluate each by itself.

    They evaluate one model, but for the statistics of batch normalization, which every rank has of its own samples.
    """
    for call in facts.script.calls:
        name = facts.script.name_of(call.func)
        if "stop_if" in name or name.endswith("make_early_stopping_hook"):
            why = "each rank decides by its own evaluation when to stop: one that stops leaves the others waiting"
            yield Doubt(
                call, why, "high", f"stop on a value that is {facts.alias}.average(...) of the ranks'", name="may-hang"
            )
        used = calls_method(call, "evaluate") and not isinstance(facts.script.parents[call], cst.Expr)
        if used and _normalizes(facts) and _is_trained(facts, call.func.value):  # type: ignore[attr-defined]
            yield Edit(
                call,
                "the ranks' models differ in the statistics of batch normalization: all see the mean",
                lambda c: expression("torch/average", {"value": c}, dl=facts.alias),
            )


def _normalizes(facts: TensorFlowFacts) -> bool:
    return any(_NORMALIZES.search(dotted(call.func)) for call in facts.script.calls)


def _is_trained(facts: TensorFlowFacts, owner: cst.BaseExpression) -> bool:
    """Tell whether ``owner`` is an Estimator that the script trains."""
    assert facts.estimators is not None
    trained = [c.func.value for c in facts.estimators.trains if isinstance(c.func, cst.Attribute)]
    made = {o.node for one in trained for o in facts.flow.origins(one)}
    return any(o.node in made for o in facts.flow.origins(owner))
