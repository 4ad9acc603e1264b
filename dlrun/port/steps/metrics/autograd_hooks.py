"""Part of step "metrics": buffers that functions of autograd change in passing, and what hooks tell optimizers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import libcst as cst

from dlrun.port.edits import Doubt
from dlrun.port.facts import Facts
from dlrun.port.program.script import calls_method, dotted, walk
from dlrun.port.steps.metrics.in_place import is_buffer

_FUNCTION = "torch.autograd.Function"
_OPTIMIZER = re.compile(r"^torch\.optim(\.\w+)*\.Optimizer$")
_HOOKS = re.compile(r"^register_(full_)?(forward|backward)(_pre)?_hook$")
_IN_PLACE = re.compile(r"^[a-z]\w*[a-z0-9]_$")
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
