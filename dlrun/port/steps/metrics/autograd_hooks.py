"""Part of step "metrics": buffers that functions of autograd change in passing, what hooks tell optimizers, and what
hooks of weights make of their gradients."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import libcst as cst

from dlrun.port.edits import Doubt
from dlrun.port.facts import Facts
from dlrun.port.program.script import calls_method, dotted, names_in, walk
from dlrun.port.steps.metrics.in_place import is_buffer

_FUNCTION = "torch.autograd.Function"
_OPTIMIZER = re.compile(r"^torch\.optim(\.\w+)*\.Optimizer$")
_HOOKS = re.compile(r"^register_(full_)?(forward|backward)(_pre)?_hook$")
_IN_PLACE = re.compile(r"^[a-z]\w*[a-z0-9]_$")
_OF_WEIGHTS = ("register_hook", "register_post_accumulate_grad_hook")
_LINEAR = (  # the mean of what they make of gradients is what they make of the mean
    *("clone", "detach", "to", "float", "double", "half", "mul", "mul_", "div", "div_", "neg", "contiguous", "view"),
    *("reshape", "masked_fill", "masked_fill_", "zeros_like", "zero_", "where", "t", "transpose"),
)
_KEEPS = ("append", "extend", "add", "update", "print", "info", "debug", "put")
_ALIKE = ("requires_grad_", "resize_as_", "detach_", "zero_")


def torch(facts: Facts) -> Iterator[Doubt]:
    """Yield a doubt about each buffer that a function of autograd changes, and each optimizer that hooks tell batches.

    ``Lookup.apply(x, y, self.memory)``, whose ``backward()`` puts the features of its samples into ``memory``.
    """
    done: set[tuple[cst.ClassDef, str]] = set()
    for call in facts.script.calls:
        if not calls_method(call, "apply") or not isinstance(call.func, cst.Attribute):
            continue
        cls = facts.flow.definition(call.func.value)
        if not isinstance(cls, cst.ClassDef) or not _is_a(facts, cls, lambda name: name == _FUNCTION):
            continue
        for state, wholly in _changed(facts, call, cls):
            name, dl = facts.script.code(state), facts.alias
            if (cls, name) in done:
                continue
            done.add((cls, name))
            made = f"{dl}.broadcast({name} + ({dl}.total({name} - was) - ({name} - was)))"
            before = "" if wholly else f"was = {name}.clone() before backward(), "
            yield Doubt(
                call,
                f"{cls.name.value} moves {name} with this rank's samples: each rank trains with another {name}",
                "high",
                f"{dl}.broadcast({name}) before the training, {before}and {name}.copy_("
                f"{f'{dl}.average({name})' if wholly else made}) after it",
            )
    for cls in facts.script.of(cst.ClassDef):
        if _is_a(facts, cls, lambda name: bool(_OPTIMIZER.search(name))):
            hooks = [
                n
                for n in walk(cls)
                if isinstance(n, cst.Call) and isinstance(n.func, cst.Attribute) and _HOOKS.search(n.func.attr.value)
            ]
            for hook in hooks[:1]:
                yield Doubt(
                    hook,
                    f"{cls.name.value} goes by what layers take and give, which is local: each "
                    "rank makes another update of the same gradients",
                    "high",
                    f"{facts.alias}.average() of what it keeps of that, before it is used",
                )
    yield from _of_weights(facts)


def _of_weights(facts: Facts) -> Iterator[Doubt]:
    """Yield a doubt about each hook that makes of the gradient of a weight what is no multiple of it."""
    for call in facts.script.calls:
        if not calls_method(call, *_OF_WEIGHTS) or len(call.args) != 1 or facts.local(call.func.value):
            continue
        if any(_bends(function) for function in _functions(facts, call.args[0].value)):
            yield Doubt(
                call,
                "it changes gradients of a rank's samples before they are averaged: what it clips is not the mean",
                "medium" if facts.keeps_steps else "low",
                f"clip behind {facts.alias}.gradients(), before the update",
                name="not-averaged",
            )


def _functions(facts: Facts, hook: cst.BaseExpression) -> list[cst.Lambda | cst.FunctionDef]:
    made = [hook, *(o.node for o in facts.flow.origins(hook)), *facts.flow.definitions(hook)]
    return [n for n in dict.fromkeys(made) if isinstance(n, (cst.Lambda, cst.FunctionDef))]


def _bends(function: cst.Lambda | cst.FunctionDef) -> bool:
    """Tell whether what a hook makes of its gradient, or of ``p.grad``, is no multiple of it: it clips, say."""
    made = {p.name.value for p in function.params.params[-1:]}
    body = list(walk(function.body))
    for node in body:
        if isinstance(node, cst.Assign) and made & names_in(node.value):
            made |= {t.target.value for t in node.targets if isinstance(t.target, cst.Name)}
    if isinstance(function, cst.Lambda):
        kept = isinstance(function.body, cst.Call) and _called(function.body) in _KEEPS  # which returns nothing
        changed = [] if kept else body
    else:
        ends = [n.value for n in body if isinstance(n, cst.Return) and n.value is not None]
        in_place = [n for n in body if isinstance(n, cst.Call) and _IN_PLACE.search(_called(n))]
        ends += [n for n in in_place if _root(n.func) in made]
        ends += [n.value for n in body if isinstance(n, cst.Assign) and _sets_grad(n, made)]
        changed = [n for end in ends for n in walk(end)]
    return any(_is_bent(node, made) for node in changed)


def _sets_grad(node: cst.Assign, made: set[str]) -> bool:
    return any(isinstance(t.target, cst.Attribute) and _root(t.target) in made for t in node.targets)


def _called(call: cst.Call) -> str:
    return dotted(call.func).rpartition(".")[2] or (
        call.func.attr.value if isinstance(call.func, cst.Attribute) else ""
    )


def _is_bent(node: cst.CSTNode, made: set[str]) -> bool:
    """Tell whether ``node`` makes something of one of ``made`` that is no multiple of it."""
    match node:
        case cst.Call():
            return _called(node) not in _LINEAR and bool(made & names_in(node))
        case cst.BinaryOperation(left=left, right=right, operator=cst.Multiply()):
            return bool(made & names_in(left)) and bool(made & names_in(right))
        case cst.BinaryOperation(right=right, operator=cst.Divide() | cst.Power()):
            return bool(made & names_in(right)) or (
                isinstance(node.operator, cst.Power) and bool(made & names_in(node))
            )
    return False


def _is_a(facts: Facts, cls: cst.ClassDef, known: Callable[[str], bool]) -> bool:
    return any(known(facts.script.name_of(base.value)) for base in cls.bases)


def _changed(facts: Facts, call: cst.Call, cls: cst.ClassDef) -> Iterator[tuple[cst.BaseExpression, bool]]:
    """Yield the buffers that ``call`` hands to ``cls``, and that its methods change by the names they have there.

    And whether that is one number of them: ``params[2] = z.mean()``, and not entries for some samples.
    """
    methods = {f.name.value: f for f in walk(cls) if isinstance(f, cst.FunctionDef)}
    forward = methods.get("forward")
    names = [p.name.value for p in forward.params.params[1:]] if forward is not None else []
    for name, arg in zip(names, call.args, strict=False):
        found = [n for n in walk(cls) if _changes(n, name)]
        if arg.keyword is None and found and is_buffer(facts, arg.value):
            yield arg.value, all(isinstance(n, cst.AssignTarget) and _is_number(n.target) for n in found)


def _is_number(target: cst.BaseExpression) -> bool:
    """Tell whether ``target`` is the entry of a number that is written out."""
    at = target.slice[0].slice if isinstance(target, cst.Subscript) else None
    return isinstance(at, cst.Index) and isinstance(at.value, cst.Integer)


def _changes(node: cst.CSTNode, name: str) -> bool:
    """Tell whether ``node`` changes what is called ``name`` in place."""
    match node:
        case cst.Call(func=cst.Attribute(value=value, attr=cst.Name(how))):
            return bool(_IN_PLACE.search(how)) and how not in _ALIKE and _root(value) == name
        case cst.AugAssign(target=target):
            return _root(target) == name
        case cst.AssignTarget(target=cst.Subscript() as target):
            return _root(target) == name
    return False


def _root(node: cst.BaseExpression) -> str:
    while isinstance(node, (cst.Subscript, cst.Attribute)):
        node = node.value
    return dotted(node)
