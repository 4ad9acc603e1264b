"""What code out of sight makes, and a training loop runs over: whether it may be batches, and where it is named."""

from __future__ import annotations

import re

import libcst as cst

from dlrun.port.facts import Feed
from dlrun.port.facts.models.kinds import Kinds
from dlrun.port.feeds.iterated import WRAPPERS
from dlrun.port.feeds.positions.positions import mentions
from dlrun.port.feeds.uses import Uses
from dlrun.port.program.flow import Flow
from dlrun.port.program.script import Binding, Scope, dotted

_NONE = (".parameters", ".children", ".modules", ".items", ".values", ".keys", "trange")
COUNTS = ("builtins.", "numpy.arange", "numpy.linspace", "torch.arange", "itertools.count")
_BATCHES = r"loader|batches|_dl$|_iter$|iterator|dataset|train(ing)?_(data|set|pairs)$|samples$|sentences$|corpus$"
_GOES_THROUGH = ("len", "next", "zip", *WRAPPERS)
_ARRAYS = ("numpy.", "torch.", "sklearn.")


def may_be_batches(kinds: Kinds, made: cst.CSTNode, iterated: cst.BaseExpression) -> bool:
    """Tell whether ``made``, which a loop runs over as ``iterated``, may be batches, by the call or the name."""
    if isinstance(made, cst.Call):
        called = kinds.script.name_of(made.func) or f".{dotted(made.func)}"
        if kinds.of_call(made) in ("module", "optimizer", "loss", "scheduler"):
            return False
        return not called.startswith(COUNTS) and not called.endswith(_NONE)
    name = dotted(iterated.value if isinstance(iterated, cst.Subscript) else iterated)
    return bool(re.search(_BATCHES, name, re.IGNORECASE))


def where_assigned(flow: Flow, uses: Uses, made: cst.CSTNode, iterated: cst.BaseExpression) -> Feed | None:
    """Return the feed at the assignment of a loader that foreign code makes, so that its len() is right too."""
    script = flow.script
    if isinstance(iterated, cst.Name):  # arrays are cut where the loop takes them: others are made of them
        given = script.bindings_of(iterated)
        if any(b.value is not None and mentions(b.value, {iterated.value}) for b in given):
            return None
    if not isinstance(made, cst.Call) or script.name_of(_first_of_chain(made).func).startswith(_ARRAYS):
        return None
    if flow.definition(made.func) is not None or uses.looked_at(made, iterated):
        return None
    holders: list[Binding] = []
    for scope in {id(s): s for s in script.scopes.values()}.values():
        held = [b for bs in scope.names.values() for b in bs if b.value is made and b.how == "assign"]
        if any(_is_read(flow, b.name, scope) for b in held):
            return None  # something else is made of all samples: a vocabulary
        holders.extend(held)
    if len(holders) == 1 and not holders[0].path:
        return Feed(made, "loader")
    mine = [b for b in holders if len(b.path) == 1 and b.name == dotted(iterated)]
    if len(mine) == 1 and isinstance(mine[0].node, cst.Assign):
        return Feed(mine[0].node, "named", (mine[0].name,))
    return None


def _first_of_chain(call: cst.Call) -> cst.Call:
    """Return the call that a chain of methods begins with: ``randperm(96)`` of ``randperm(96).view(-1, 8)``."""
    while isinstance(call.func, cst.Attribute) and isinstance(call.func.value, cst.Call):
        call = call.func.value
    return call


def _is_read(flow: Flow, name: str, scope: Scope, depth: int = 3) -> bool:
    """Tell whether something but a loop reads the entries of what ``name`` holds: ``set(words)``, ``words[0]``."""
    script = flow.script
    for use in script.names_of(name, scope):
        up = script.parents[use]
        call = script.parents[up] if isinstance(up, cst.Arg) else None
        if isinstance(up, cst.Subscript) and up.value is use:
            return True
        if not isinstance(call, cst.Call) or dotted(call.func).rsplit(".", 1)[-1] in _GOES_THROUGH:
            continue
        functions = [f for f in flow.targets(call) if isinstance(f, cst.FunctionDef)] if depth else []
        params = [
            (p.name.value, f)
            for f in functions
            for p in (*f.params.params, *f.params.kwonly_params)
            if flow.argument(call, f, p.name.value) is use
        ]
        if not functions or any(_is_read(flow, n, script.scopes[f.body], depth - 1) for n, f in params):
            return True
    return False
