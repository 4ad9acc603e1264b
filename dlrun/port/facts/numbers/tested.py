"""Outcomes of tests that become numbers: arrays of them, and what is counted under tests sample by sample."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from dlrun.port.program.script import Script, children, names_in

# What a comparison stands in that is no condition: also another comparison, as in ``((out > 0) == (y > 0)).sum()``.
_TAKES_OUTCOMES = (
    cst.Arg,
    cst.Attribute,
    cst.BinaryOperation,
    cst.Comparison,
    cst.ComparisonTarget,
    cst.Index,
    cst.ListComp,
    cst.GeneratorExp,
)
_OF_ARRAYS = ("sum", "float", "double", "int", "long", "mean", "astype", "to", "cpu", "view", "type")
_COMPREHENSIONS = (cst.ListComp, cst.SetComp, cst.GeneratorExp)


def is_value(script: Script, outcome: cst.Comparison) -> bool:
    """Tell whether ``outcome`` is an array of outcomes, which are counted or averaged, and no condition."""
    return isinstance(script.parents.get(outcome), _TAKES_OUTCOMES) or _is_array(script, outcome)


def _is_array(script: Script, outcome: cst.Comparison) -> bool:
    """Tell whether the name that ``outcome`` gets stands for an array: ``right = out == y; right.float()``."""
    line = script.parents.get(outcome)
    target = line.targets[0].target if isinstance(line, cst.Assign) else None
    if not isinstance(target, cst.Name):
        return False
    return any(
        isinstance(n.value, cst.Name)
        and n.value.value == target.value
        and n.attr.value in _OF_ARRAYS
        and script.bindings_of(n.value) == script.bindings_of(target)
        for n in script.of(cst.Attribute)
    )


def tested(script: Script, node: cst.CSTNode) -> list[cst.CSTNode]:
    """Return what decides, in each iteration of the loop (or comprehension) around ``node``, whether it counts.

    ``for found, label in zip(predicted, y): if found == label: right += 1``.
    Only tests of what the iterations see: ``if epoch < 3`` and ``if loss < best`` are decided, by all ranks alike.
    """
    if isinstance(node, _COMPREHENSIONS):
        return [p for i in node.for_in.ifs for p in _of(i.test, names_in(node.for_in.target))]
    tests = [node.test] if isinstance(node, cst.IfExp) else []
    for up in script.above(node):
        match up:
            case cst.If():
                tests.append(up.test)
            case cst.ListComp() | cst.SetComp() | cst.GeneratorExp():
                return [p for test in tests for p in _of(test, names_in(up.for_in.target))]
            case cst.For():
                return [p for test in tests for p in _of(test, names_in(up.target))]
            case cst.While() | cst.FunctionDef() | cst.Lambda():
                return []
    return []


def _of(test: cst.BaseExpression, iterations: set[str]) -> Iterator[cst.CSTNode]:
    """Yield the values that ``test`` asks for, if those are among the numbers of a loop's ``iterations``."""
    match test:
        case cst.BooleanOperation(left=left, right=right):
            yield from (*_of(left, iterations), *_of(right, iterations))
        case cst.UnaryOperation(expression=inner):
            yield from _of(inner, iterations)
        case cst.Comparison(comparisons=[cst.ComparisonTarget(operator=cst.Is() | cst.IsNot())]):
            return
        case _ if names_in(test) & iterations:
            yield from children(test) if isinstance(test, cst.Comparison) else (test,)
