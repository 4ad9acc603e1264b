"""Lists that a loop goes through beside a loader: of batches, or of numbers that go with them."""

from __future__ import annotations

import re

import libcst as cst

from dlrun.port.facts.models.kinds import Kinds
from dlrun.port.facts.numbers.lists import Lists
from dlrun.port.feeds.foreign import COUNTS
from dlrun.port.feeds.positions.positions import mentions, names_of
from dlrun.port.program.flow import Flow
from dlrun.port.program.script import Script, argument, calls_method, dotted, names_in, walk

_CUTS = ("split", "chunk", "tensor_split", "array_split", "unbind")
_LISTS = ("builtins.list", "builtins.tuple", "builtins.range", "builtins.zip", "builtins.open")

_IN_ORDER = re.compile(r"(^|\.)(randperm|permutation|arange)$")


def cuts_order(script: Script, flow: Flow, node: cst.CSTNode) -> bool:
    """Tell whether ``node`` is an order of samples cut into batches: ``np.array_split(rng.permutation(9), 3)``."""
    made = [o.node for o in flow.origins(node)]
    cuts = [n for n in made if isinstance(n, cst.Call) and calls_method(n, *_CUTS, "view", "reshape")]
    if not made or len(cuts) < len(made):
        return False
    cut = [n.args[0].value if _from_library(script, n) and n.args else n.func.value for n in cuts]
    orders = [[o.node for o in flow.origins(c)] for c in cut]
    return all(found and all(_draws(script, n) for n in found) for found in orders)


def cuts_batches(script: Script, flow: Flow, node: cst.CSTNode) -> bool:
    """Tell whether the entries of ``node`` are pieces of arrays: ``x.split(8)``, ``zip(x.chunk(4), y.chunk(4))``."""
    made = [o.node for o in flow.origins(node)]
    for n in made:
        if not isinstance(n, cst.Call):
            return False
        if script.name_of(n.func) in ("builtins.zip", "builtins.list", "builtins.tuple"):
            if not n.args or not all(not a.star and cuts_batches(script, flow, a.value) for a in n.args):
                return False
        elif not calls_method(n, "split", "chunk", "tensor_split", "array_split") or not n.args:
            return False
        elif isinstance(n.args[0].value, (cst.SimpleString, cst.FormattedString)):
            return False  # of a text
    return bool(made)


def _from_library(script: Script, call: cst.Call) -> bool:
    return script.name_of(call.func).startswith(("numpy.", "torch."))


def _draws(script: Script, node: cst.CSTNode) -> bool:
    """Tell whether ``node`` numbers samples: ``torch.randperm(9)``, ``rng.permutation(9)``."""
    return isinstance(node, cst.Call) and bool(_IN_ORDER.search(script.name_of(node.func) or dotted(node.func)))


def goes_in(kinds: Kinds, loop: cst.CSTNode | None, zipped: cst.Call, part: cst.BaseExpression) -> bool:
    """Tell whether the entries of ``part``, one of those that ``loop`` runs over in step, are batches.

    They go into a model or a loss, or are pieces of an array.
    """
    made = [o.node for o in kinds.flow.origins(part)]
    if any(map(is_cut, made)):
        return True
    at = next((i for i, arg in enumerate(zipped.args) if part in walk(arg)), 0)
    target = loop.target if isinstance(loop, cst.For) else None
    if isinstance(target, cst.Tuple) and len(target.elements) == 2 and isinstance(target.elements[1].value, cst.Tuple):
        target = target.elements[1].value if "enumerate" in names_in(loop.iter) else target  # type: ignore[union-attr]
    if not isinstance(target, cst.Tuple) or len(target.elements) != len(zipped.args) or not isinstance(loop, cst.For):
        return False
    names = names_in(target.elements[at].value)
    for n in walk(loop.body):  # x = torch.cat([x, other])
        if isinstance(n, cst.Assign) and mentions(n.value, names):
            names |= names_of(n.targets[0].target)
    calls = [n for n in walk(loop.body) if isinstance(n, cst.Call)]
    given: list[cst.CSTNode] = [a for c in calls if kinds.of(c.func) in ("module", "loss") for a in c.args]
    given += [c.func for c in calls if calls_method(c, "backward")]
    return any(mentions(value, names) for value in given) and not any(_numbers(kinds, m) for m in made)


def is_cut(made: cst.CSTNode) -> bool:
    """Tell whether ``made`` cuts an array into batches: ``x.split(8)``, ``list(x.chunk(4))``."""
    return any(calls_method(n, *_CUTS) for n in walk(made))


def holds_batches(kinds: Kinds, made: cst.CSTNode) -> bool:
    """Tell whether ``made`` is a list, or pairs, that may hold batches: no numbers, texts, models or loaders."""
    if isinstance(made, cst.Call):
        return kinds.script.name_of(made.func) == "builtins.zip"
    if not isinstance(made, (cst.List, cst.ListComp, cst.GeneratorExp, cst.Tuple)) or _numbers(kinds, made):
        return False
    held = [o.node for o in kinds.flow.origins(made, ("each",)) if o.node is not made]
    if any(isinstance(n, cst.Call) and kinds.flow.targets(n) for n in held):
        return False  # objects, or generators
    texts = bool(held) and all(isinstance(n, cst.SimpleString) for n in held)
    return not texts and not any(isinstance(n, cst.Call) and kinds.of_call(n) for n in held)


def _numbers(kinds: Kinds, made: cst.CSTNode) -> bool:
    """Tell whether ``made`` holds numbers, or counts: ``[0.9 ** k for k in range(9)]``."""
    if isinstance(made, cst.Call):
        return _counts(kinds, made)
    held = [made.elt] if isinstance(made, (cst.ListComp, cst.GeneratorExp)) else [made]
    if isinstance(made, (cst.List, cst.Tuple)):
        held = [e.value for e in made.elements] or [c.args[0].value for c in Lists(kinds.flow).filled(made)]
    made_of = [o for value in held for o in kinds.flow.origins(value)]
    entries = [o.node for o in made_of if o.whole or not _counts(kinds, o.node)]  # k in range(9)
    parts = [n for entry in entries for n in walk(entry)]
    named = [kinds.script.name_of(n.func) for n in parts if isinstance(n, cst.Call)]
    picks = not held or any(isinstance(n, (cst.Subscript, cst.Tuple, cst.ListComp)) for n in parts)
    return not picks and all(name.startswith(("builtins.", "math.")) and name not in _LISTS for name in named)


def _counts(kinds: Kinds, made: cst.CSTNode) -> bool:
    return isinstance(made, cst.Call) and kinds.script.name_of(made.func).startswith(COUNTS)


def keeps_order(made: cst.Call) -> bool:
    """Tell whether the loader that ``made`` makes goes through its samples in their order, by itself."""
    shuffle = argument(made, "shuffle", 2)
    given = [argument(made, name) for name in ("sampler", "batch_sampler")]
    return (
        (shuffle is None or dotted(shuffle) == "False")
        and given == [None, None]
        and not any(arg.star for arg in made.args)
    )
