"""A hidden state that one batch hands on to the next, and the streams that such loops go through."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import libcst as cst

from dlrun.port.facts import Feed
from dlrun.port.facts.loops import Loops
from dlrun.port.facts.models.kinds import Kinds
from dlrun.port.facts.updates.reductions import Reductions
from dlrun.port.feeds.positions.positions import mentions
from dlrun.port.feeds.streams.cursors import generated
from dlrun.port.feeds.streams.readers import read
from dlrun.port.feeds.streams.streams import Streams, UncutError
from dlrun.port.program.script import Binding, argument, dotted, names_in, walk

_GONE_THROUGH = ("builtins.zip", "builtins.enumerate", "builtins.list", "tqdm.tqdm")


def hands_on(kinds: Kinds, loop: cst.For | cst.While) -> cst.CSTNode | None:
    """Return what hands a model's state from batch to batch, if anything does: an assignment, or the model's call."""
    for n in walk(loop.body):
        if isinstance(n, cst.Call) and kinds.of(n.func) == "module" and _keeps(kinds, n, loop):
            return n
        match n:
            case cst.Expr(cst.Call(func=cst.Attribute(value=held, attr=cst.Name("detach")), args=[]) as call):
                if kinds.of(held) == "module":  # memory.detach(): it keeps a state, and cuts where that came from
                    return call
        if isinstance(n, cst.Assign) and isinstance(n.value, cst.Call) and kinds.of(n.value.func) == "module":
            given = {m.value for a in n.value.args for m in walk(a.value) if isinstance(m, cst.Name)}
            got = names_in(n.targets[0].target)
            for name in given & (got | _parts_of(got, loop)):
                bindings, _ = kinds.script.scopes[n].lookup(name)
                inside = [b for b in bindings if kinds.script.inside(b.node, loop)]
                own = [b for b in inside if b.value is not None and mentions(b.value, {name} | got)]
                if len(inside) < len(bindings) and all(b in own or _at_times(kinds, b, loop) for b in inside):
                    return n
    return None


def along_entries(kinds: Kinds, body: cst.CSTNode, how: Reductions) -> cst.CSTNode | None:
    """Return what hands a model's state on, in a loop below ``body``, from one entry of a whole array to the next."""
    for loop in (n for n in walk(body) if isinstance(n, cst.For)):
        entries = [loop.iter]
        while any(isinstance(e, cst.Call) and kinds.script.name_of(e.func) in _GONE_THROUGH for e in entries):
            entries = [a.value for e in entries for a in (e.args if isinstance(e, cst.Call) else [cst.Arg(e)])]
        named = any(isinstance(e, (cst.Name, cst.Attribute)) and how.of(e).kind == "each" for e in entries)
        if (named or how.of(loop.iter).kind == "count") and (state := hands_on(kinds, loop)) is not None:
            return state
    return None


def _parts_of(got: set[str], loop: cst.For | cst.While) -> set[str]:
    """Return the names that ``loop`` gives parts of what a model returned: ``memory`` in ``memory = out[1:]``."""
    found: set[str] = set()
    for line in (n for n in walk(loop.body) if isinstance(n, cst.Assign)):
        target, value = line.targets[0].target, line.value
        if isinstance(target, cst.Tuple) and isinstance(value, cst.Tuple):
            pairs = [(t.value, v.value) for t, v in zip(target.elements, value.elements, strict=False)]
        else:
            pairs = [(target, value)]
        found.update(dotted(t) for t, v in pairs if dotted(_whole(v)) in got and _whole(v) is not v)
    return found - {""}


def _whole(part: cst.BaseExpression) -> cst.BaseExpression:
    """Return ``out`` for its parts: ``out[1:]``, ``detach(out.state)``, ``[h.detach() for h in out[1:]]``."""
    while True:
        match part:
            case cst.Attribute(value=within) | cst.Subscript(value=within) | cst.Call(func=cst.Attribute(value=within)):
                part = within
            case cst.Call(args=[cst.Arg(value=within), *_]):
                part = within
            case cst.ListComp(for_in=loop) | cst.GeneratorExp(for_in=loop):
                part = loop.iter
            case _:
                return part


def _keeps(kinds: Kinds, call: cst.Call, loop: cst.For | cst.While) -> bool:
    """Tell whether the model that is called keeps its state itself: ``y, self.state = self.rnn(x, self.state)``."""
    script, models = kinds.script, kinds.flow.classes(call.func)
    for (owner, name), bindings in script.attributes.items() if models else ():
        if owner not in models:
            continue
        fed = [
            b
            for b in bindings
            if b.path
            and isinstance(b.value, cst.Call)
            and _reads(b.value, f"self.{name}")
            and kinds.of(b.value.func) == "module"
        ]
        for b in fed:
            anew = [c for c in bindings if c.value is not None and not _reads(c.value, f"self.{name}")]
            sets = {script.function_of(c.node) for c in anew}
            places = [("self", script.function_of(b.node)), (dotted(call.func), loop)]
            if not any(_resets(kinds, n, model, name, sets, at) for model, at in places for n in walk(at)):
                return True
    return False


def _resets(
    kinds: Kinds,
    node: cst.CSTNode,
    model: str,
    name: str,
    sets: set[cst.FunctionDef | cst.Module],
    outer: cst.CSTNode,
) -> bool:
    """Tell whether ``node`` gives ``model`` a new state whenever ``outer`` runs: ``model.reset()``."""
    if isinstance(node, cst.Assign):
        targets = [dotted(t.target) for t in node.targets]
        fresh = f"{model}.{name}" in targets and not _reads(node.value, f"{model}.{name}")
    elif isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and dotted(node.func.value) == model:
        fresh = any(target in sets for target in kinds.flow.targets(node))
    else:
        return False
    return fresh and _always(kinds, node, outer)


def _reads(node: cst.CSTNode, name: str) -> bool:
    return any(isinstance(n, cst.Attribute) and dotted(n) == name for n in walk(node))


def _always(kinds: Kinds, node: cst.CSTNode, outer: cst.CSTNode) -> bool:
    """Tell whether ``node`` runs whenever ``outer`` does: under no condition in it."""
    around = (up for up in kinds.script.above(node) if up is not outer and kinds.script.inside(up, outer))
    return not any(isinstance(up, (cst.If, cst.For, cst.While, cst.Try)) for up in around)


def _at_times(kinds: Kinds, binding: Binding, loop: cst.For | cst.While) -> bool:
    """Tell whether the state is set anew at certain positions only: ``if start >= len(text): state = zeros()``."""
    targets = [n.target for n in walk(loop) if isinstance(n, (cst.AugAssign, cst.For))]
    moved = {m.value for target in targets for m in walk(target) if isinstance(m, cst.Name)}
    around = (up for up in kinds.script.above(binding.node) if kinds.script.inside(up, loop))
    return any(isinstance(up, cst.If) and mentions(up.test, moved) for up in around)


class Carried:
    """The training loops that hand a state on, and how what they go through is cut into stretches."""

    def __init__(self, loops: Loops, by_loop: Mapping[cst.For | cst.While, cst.CSTNode]) -> None:
        """Answer for the loops of ``by_loop``, each with the statement that hands its state on."""
        self.loops, self.by_loop = loops, by_loop
        self.streams: set[cst.CSTNode] = set()  # the loops that go through data by positions of their own
        self.counted: list[cst.For | cst.While] = []  # loops that go through a stream by a number of steps
        self.sharded: list[cst.CSTNode] = []  # states that are handed on though the batches are sharded
        self.uncut: tuple[cst.CSTNode, UncutError] | None = None

    def cut(self, loop: cst.For | cst.While, feeds: Sequence[Feed]) -> dict[cst.CSTNode, Feed]:
        """Return ``feeds``, what ``loop`` runs over, cut into stretches, or the streams that it slices."""
        loaded = [feed for feed in feeds if feed.how in ("loader", "named", "iterable")]
        try:
            if loaded:
                return {cut.node: cut for feed in loaded for cut in self._of_feed(feed, loop)}
            found, readers = read(self.loops.flow, loop)
            streams = Streams(self.loops, loop, readers)
            found = found or streams.find()
            self.streams.add(loop)
            self.counted.extend([loop] if streams.counts() else [])
            return found
        except UncutError as why:
            self.uncut = self.uncut or (self.by_loop[loop], why)
        return {}

    def _trained(self, loop: cst.For | cst.While, given: cst.BaseExpression) -> list[cst.BaseExpression]:
        """Return what the calls that train pass for ``given``, where others hand it data to evaluate on."""
        trains, evaluates = self.loops.sites.split(loop, given)
        return trains if evaluates else [given]

    def _of_feed(self, feed: Feed, loop: cst.For | cst.While) -> list[Feed]:
        if (data := generated(self.loops.flow, feed.node)) is not None:
            if not data:
                raise UncutError(feed.node, "a generator makes the batches, and nothing shows out of what")
            self.streams.add(loop)
            return [
                Feed(node, "stretch", axis=axis, draws=draws)
                for given, axis, draws in data
                for node in self._trained(loop, given)
            ]
        shuffles = argument(feed.node, "shuffle", 2) if isinstance(feed.node, cst.Call) else None
        if shuffles is not None and not (isinstance(shuffles, cst.Name) and shuffles.value == "False"):
            self.sharded.extend(
                [self.by_loop[loop]] if dotted(shuffles) != "True" else []
            )  # else: no stream before, too
            return [feed]
        return [replace(feed, how="stretch")] if feed.how != "named" else [replace(feed, how="stretches")]
