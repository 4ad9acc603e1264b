"""``--batch global``: the batches that a loop draws at random itself, of each of which a rank takes a part."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import libcst as cst

from dlrun.port.facts import Feed, taint
from dlrun.port.facts.taint import Taint, without_gradients
from dlrun.port.feeds import Feeds
from dlrun.port.feeds.draws import DRAWS
from dlrun.port.program.script import argument, dotted, walk

# Of calls that draw one number where no size is given: which argument that is.
_SIZES = ((re.compile(r"^numpy\.random\.choice$|\.choice$"), 1), (re.compile(r"^numpy\.random\.|\.(integers|rvs)$"), 2))
_BY_ARGUMENTS = ("numpy.random.rand", "numpy.random.randn")
_MAKES = re.compile(r"seed$|state$|default_rng$|Generator$|RandomState$|\.Random$")
_LINES = (cst.Assign, cst.AnnAssign, cst.AugAssign, cst.Expr, cst.If)
_SEVERAL = ("numpy.random.permutation", "random.sample", "random.choices")


def divide(feeds: Feeds) -> None:
    """Let each rank take a part of what an iteration draws for its loss: ``idx = torch.randint(len(x), (32,))``.

    So is what a function of the script's draws and returns, ``x, y = get_batch("train")``. Noise in the shape of other
    values, and a number that is drawn for all samples, are no batch. What else is drawn, for an evaluation, all ranks
    draw alike.
    """
    turns = {f.node for f in feeds.found.values() if f.how == "turns"}  # functions that return the next batch
    if feeds.episodes or len(turns) < len(feeds.found):
        return
    found: dict[cst.CSTNode, Feed] = {}
    for loop in dict.fromkeys((*feeds.counted, *(feeds.innermost if turns else ()))):
        batches, others = _Drawn(feeds).within(loop.body)
        if batches:
            drawn = (c for call in (*batches, *others) for c in feeds.draws.reached(call))
            alike = dict.fromkeys(c for c in drawn if _draws_any(feeds, c))
            cut = {call: list(_cut(feeds, call)) for call in batches}
            picks: dict[cst.Subscript | cst.Call, None] = {}
            for call in batches:
                picks |= dict.fromkeys((*cut[call], *([] if cut[call] else [call])))
            draws = dict.fromkeys((*(call for call in batches if cut[call] and call not in picks), *others))
            found[loop] = Feed(loop, "drawn", picks=tuple(picks), draws=tuple(draws), alike=tuple(alike))
    picked = {n for feed in found.values() for pick in feed.picks for n in walk(pick)}
    if turns <= picked:
        feeds.found = found


class _Drawn:
    """Finds what an iteration draws."""

    def __init__(self, feeds: Feeds) -> None:
        self._feeds = feeds
        self._losses = [feeds._loss(c) for c in feeds.loops.gradients.backwards]

    def within(self, body: cst.CSTNode) -> tuple[list[cst.Call], list[cst.Call]]:
        """Return the calls in ``body`` that draw a batch, and the lines' that draw anything else for all samples."""
        found = list(dict.fromkeys(self._outermost(body, frozenset())))
        batches = [call for call in found if self._leads(call) and self._draws(call, _draws_several)]
        sized = [call for call in batches if self._follows([c for c in batches if c is not call], call)]
        others = [call for call in found if call not in batches and isinstance(self._statement(call), _LINES)]
        return [call for call in batches if call not in sized], others

    def _outermost(self, body: cst.CSTNode, seen: frozenset[cst.CSTNode]) -> Iterator[cst.Call]:
        """Yield the outermost calls that draw; of those that compute a loss, the ones within their functions."""
        within: set[cst.CSTNode] = set()
        for call in walk(body):
            if not isinstance(call, cst.Call) or call in within or not self._draws(call, _draws_any):
                continue
            trains = self._feeds.loops.gradients.runs_backward(call)
            if trains or (self._feeds.uses.computes(call) and self._leads(call)):
                functions = [f for f in self._feeds.flow.targets(call) if f not in seen]
                if self._feeds.kinds.of(call.func) != "module":  # what a model draws is noise of its own
                    yield from (c for f in functions for c in self._outermost(f.body, seen | {f}))
                continue
            within.update(walk(call))
            yield call

    def _draws(self, call: cst.Call, how: Callable[[Feeds, cst.Call], bool]) -> bool:
        return any(how(self._feeds, inner) for inner in self._feeds.draws.reached(call))

    def _statement(self, call: cst.Call) -> cst.CSTNode:
        return self._feeds.script.statement_of(call)

    def _leads(self, call: cst.Call) -> bool:
        leads = Taint(self._feeds.script, self._feeds.kinds, [call])
        return any(map(leads, self._losses)) and not without_gradients(self._feeds.script, call)

    def _follows(self, others: list[cst.Call], call: cst.Call) -> bool:
        """Tell whether ``call`` is given what ``others`` draw, or its size."""
        given = Taint(self._feeds.script, self._feeds.kinds, others)
        return any(given(n) for arg in call.args for n in walk(arg.value))


def _cut(feeds: Feeds, call: cst.Call) -> Iterator[cst.Subscript]:
    """Yield the slices of what ``call`` draws, which are the batches then: ``order = randperm(len(x)); order[:32]``."""
    script = feeds.script
    top: cst.CSTNode = call
    while True:
        up = script.parents[top]
        if isinstance(up, cst.Subscript) and up.value is top and _is_slice(up):
            yield up
            return
        method = script.parents[up] if isinstance(up, cst.Attribute) and up.value is top else None
        if not isinstance(method, cst.Call) or method.func is not up:
            break
        top = method  # .to(device), .tolist()
    for name in (b.name for b in script.scopes[call].names.get(_name_of(script.parents[top]), ()) if b.value is top):
        for use in script.names_of(name, script.scopes[call]):
            up = script.parents[use]
            if isinstance(up, cst.Subscript) and up.value is use and _is_slice(up):
                yield up


def _name_of(up: cst.CSTNode) -> str:
    """Return the one name that an assignment gives its value, else nothing."""
    target = up.targets[0].target if isinstance(up, cst.Assign) and len(up.targets) == 1 else None
    return target.value if isinstance(target, cst.Name) else ""


def _is_slice(node: cst.Subscript) -> bool:
    """Tell whether a subscript takes some of the entries along axis 0."""
    first = node.slice[0].slice
    return isinstance(first, cst.Slice) and (first.lower is not None or first.upper is not None)


def _draws_any(feeds: Feeds, call: cst.Call) -> bool:
    """Tell whether ``call`` draws, not in the shape of other values, or returns what comes after the call before."""
    name = feeds.script.name_of(call.func) or f".{dotted(call.func)}"
    drawn = DRAWS.search(name) or (name.startswith(taint.DRAWS) and not _MAKES.search(name))
    return feeds.draws.keeps_its_place(call) or (bool(drawn) and not feeds.draws.is_noise(call))


def _draws_several(feeds: Feeds, call: cst.Call) -> bool:
    """Tell whether ``call`` draws several samples, or returns those after the ones of the call before."""
    name = feeds.script.name_of(call.func) or f".{dotted(call.func)}"
    if feeds.draws.keeps_its_place(call):
        return True
    if not _draws_any(feeds, call):
        return False
    if name in _BY_ARGUMENTS:
        return bool(call.args)
    if name.startswith("random.") or name in _SEVERAL:
        return name in _SEVERAL
    place = next((at for pattern, at in _SIZES if pattern.search(name)), None)
    size = argument(call, "size", place) if place is not None else None
    if name.startswith("torch."):
        shapes = [a.value.elements[0].value for a in call.args if isinstance(a.value, cst.Tuple) and a.value.elements]
        first = [*shapes, *(a.value for a in call.args[:1] if not name.endswith(("randint", "normal")))][:1]
        return not any(isinstance(n, cst.Integer) and n.evaluated_value == 1 for n in first)
    return size is not None or place is None
