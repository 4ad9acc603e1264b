"""The numbers of a script that are a rank's own, and which of them are averaged by now."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import libcst as cst

from dlrun.port.facts import Facts
from dlrun.port.facts.bends import CURVED, bend_of, bent
from dlrun.port.facts.computed import nothing
from dlrun.port.facts.entries import Entries
from dlrun.port.facts.kinds import ends, to_an_end
from dlrun.port.facts.scalars import Scalars
from dlrun.port.facts.session import runs_of
from dlrun.port.facts.taint import Taint, differentiable, leads_back, plain_numbers
from dlrun.port.insert import expression
from dlrun.port.passes import returned
from dlrun.port.passes.each import each
from dlrun.port.passes.gathered import Gathered, of_one_list
from dlrun.port.passes.so_far import steps_so_far
from dlrun.port.passes.sums import Sums
from dlrun.port.program.dicts import pairs
from dlrun.port.program.script import added, children, dotted, walk

_RECORDS = ("best", "min_", "max_", "lowest", "highest", "prev", "last_", "thresh")


class Metrics:
    """Knows which numbers are a rank's own, and keeps which names are the same on all ranks from some place on."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.script = facts.script
        self.local: Taint = facts.local  # differs between ranks
        self.trained: Taint = facts.trained  # ... because it comes from a rank's own training batches
        self.plain = plain_numbers(facts.script, facts.kinds, facts.trained)
        self.graded = differentiable(facts.script, facts.kinds, facts.trained, self.plain)
        self.scalar = Scalars(facts.kinds, [*(step.node for step in facts.steps), *facts.runs, *runs_of(facts)])
        self.entries = Entries(facts.script)
        self.sums = Sums(facts)
        self.steps = steps_so_far(facts) if facts.framework == "tensorflow" else nothing
        self.inner: set[cst.CSTNode] = set()  # what functions compute a perplexity from, averaged there
        self.formatted: set[cst.CSTNode] = set()  # what is shown as a number
        self.gathered = Gathered(facts)
        self.averaged: dict[tuple[cst.CSTNode, str], int] = {}  # the names, and from where on
        self.decided: set[cst.CSTNode] = set()  # what is compared, and made the same on all ranks there

    def wrapped(self, node: cst.BaseExpression) -> cst.BaseExpression:
        """Return the mean of ``node`` over the ranks."""
        return expression("torch/average", {"value": node}, dl=self.facts.alias)

    def totalled(self, node: cst.BaseExpression) -> cst.BaseExpression:
        """Return the sum of ``node`` over the ranks."""
        return expression("torch/total", {"value": node}, dl=self.facts.alias)

    def total_of(self, number: cst.BaseExpression) -> Callable[[cst.BaseExpression], cst.BaseExpression]:
        """Return what makes ``number`` its sum over the ranks: where its function also evaluates, in training alone."""
        trains = returned.trains_where(self.facts, number)
        if trains is None:
            return self.totalled
        return lambda node: expression("torch/total_if", {"value": node, "trains": trains}, dl=self.facts.alias)

    def of_all_ranks(self, node: cst.BaseExpression) -> cst.BaseExpression:
        """Return n times ``node``, a count that is alike on all ranks."""
        return expression("torch/of_all_ranks", {"count": node}, dl=self.facts.alias)

    def is_record(self, side: cst.BaseExpression, node: cst.CSTNode) -> bool:
        """Tell whether ``side`` is a best-so-far, which only ever takes a value that was compared with it."""
        name = dotted(side)
        if any(word in name.lower() for word in _RECORDS):
            return True
        body = node.body if isinstance(node, cst.If) else None
        return (
            bool(name)
            and body is not None
            and any(isinstance(n, cst.Assign) and any(dotted(t.target) == name for t in n.targets) for n in walk(body))
        )

    def has_gradients(self, value: cst.BaseExpression) -> bool:
        """Tell whether gradients are computed through ``value``, or what holds it: a mean would have none."""
        return self.graded(value) and self.leads_back(value)

    def leads_back(self, value: cst.CSTNode, but: Iterable[cst.CSTNode] = ()) -> bool:
        """Tell whether a loss is made of ``value``, or of what holds it, in another way than through ``but``."""
        return leads_back(Taint(self.script, self.facts.kinds, [value], [*self.trained.cuts, *but]))

    def all_ranks(self, node: cst.CSTNode) -> bool:
        """Tell whether all ranks come to ``node`` or none: no condition above it depends on a rank's own values."""
        function = self.script.function_of(node)
        for up in self.script.above(node):
            if (
                isinstance(up, (cst.Lambda, cst.ListComp, cst.GeneratorExp, cst.DictComp))
                or up in self.facts.parts
                or (self.facts.episodes and to_an_end(self.facts.kinds, up))
            ):
                return False  # an episode may be longer on one rank
            if isinstance(up, (cst.If, cst.IfExp)) and any(
                self.unequal(side) and side not in self.decided
                and (function, self.script.code(side)) not in self.averaged
                for n in walk(up.test)
                if isinstance(n, cst.Comparison) and not _asks_for_none(n)
                for side in (n.left, *(c.comparator for c in n.comparisons))
                if not self.is_record(side, up)
            ):
                return False
            tests = _parts(up.test) if isinstance(up, (cst.If, cst.IfExp)) else ()
            own = isinstance(up, cst.IfExp)
            if any(self._fills_apart(p) or self._is_finite(p) or ends(self.facts.kinds, p)
                   or (own and self.facts.unequal(p)) for p in tests):  # fmt: skip
                return False
        return True

    def unequal(self, side: cst.BaseExpression) -> bool:
        """Tell whether ``side`` may differ between the ranks: not so the steps so far that a session fetched.

        Nor what is made of sums over all ranks, or of averages, by now.
        """
        if not self.facts.unequal(side) or (self.facts.local(side) and not self.local(side)):
            return False
        parts = self._unequal_in(side)
        return not parts or not all(map(self.steps, parts))

    def _unequal_in(self, node: cst.CSTNode) -> list[cst.CSTNode]:
        """Return the names and attributes in ``node`` that may differ, and the steps so far by what fetched them."""
        if isinstance(node, cst.Subscript) and self.steps(node):
            return [node]  # out["step"]
        named = isinstance(node, (cst.Name, cst.Attribute)) and self.facts.unequal(node)
        return [*([node] if named else []), *(n for child in children(node) for n in self._unequal_in(child))]

    def _fills_apart(self, tested: cst.BaseExpression) -> bool:
        """Tell whether ``tested`` is a list that some ranks may have filled: under ``if done:``, which each decides."""
        bound = self.script.bindings_of(tested) if isinstance(tested, cst.Name) else []
        if not bound or not all(isinstance(b.written, cst.List) and not b.written.elements for b in bound):
            return False
        fills = [c for c in self.script.calls if dotted(c.func) == f"{dotted(tested)}.append"]
        return any(isinstance(up, cst.If) and any(self._made_in_loop(part) for part in _parts(up.test))
                   for call in fills for up in self.script.above(call))  # fmt: skip

    def _is_finite(self, tested: cst.BaseExpression) -> bool:
        """Tell whether ``tested`` asks for NaN and infinities in a rank's own values: ``math.isfinite(loss)``."""
        asked = [asked_if_finite(call) for call in walk(tested)]
        return any(value is not None and self.facts.unequal(value) for value in asked)

    def _made_in_loop(self, tested: cst.BaseExpression) -> bool:
        """Tell whether ``tested`` is a name that a training loop gives another value in each turn."""
        bound = self.script.bindings_of(tested) if isinstance(tested, cst.Name) else []
        return any(up in self.facts.loops for b in bound if b.path for up in self.script.above(b.node))

    def values(self, node: cst.CSTNode) -> list[cst.BaseExpression]:
        """Return the largest numbers within ``node`` that come from a rank's own training batches."""
        if node in self.trained.cuts:
            return []  # is the sum over all ranks
        if isinstance(node, cst.Call) and self.script.name_of(node.func) == "builtins.len":
            return []
        if isinstance(node, (cst.Name, cst.Subscript)) and self.steps(node):
            return []
        if isinstance(node, cst.Call) and self.script.name_of(node.func) in ("builtins.round", "builtins.int"):
            return self.values(node.args[0].value) if node.args else []  # the mean is rounded, not the parts
        if (curve := bend_of(self.script, node)) is not None:
            return self.values(curve)
        if (inner := bent(self.script, node)) is not None:
            self.formatted.update([inner] if node in self.formatted else [])
            return self.values(inner)  # perplexity is that of the mean loss
        if isinstance(node, cst.Call) and of_one_list(self.script, node) and self.listed(node.args[0].value):
            return self.values(node.args[0].value)  # the least of the means, not the mean of the least
        mine = isinstance(node, cst.BaseExpression) and self.trained(node)
        known = mine and (self.scalar(node) or self.scalar.several(node) or self.scalar.row(node)
                          or self.entries.numbers(node, self.scalar) or self.gathered.extreme(node)
                          or (isinstance(node, cst.Subscript) and self.tabled(node.value)))  # fmt: skip
        number = mine and (node in self.formatted or known)
        number = number or (mine and (self.listed(node) or self.sums.table(node)))
        if isinstance(node, cst.BaseExpression) and number:
            return [] if self.sums.elsewhere(node) or self.is_averaged(node) else [node]
        if isinstance(node, (cst.ListComp, cst.GeneratorExp, cst.DictComp)):
            return [value for part in each(self, node) for value in self.values(part)]
        if isinstance(node, (cst.Comparison, cst.Lambda, cst.IfExp)):
            return []
        if isinstance(node, (cst.Arg, cst.Attribute, cst.Subscript)):
            return self.values(node.value)  # the name of a keyword or an attribute is no value, nor is an index
        return [value for child in children(node) for value in self.values(child)]

    def listed(self, node: cst.CSTNode) -> bool:
        """Tell whether ``node`` is a list of numbers to which all ranks add together."""
        return self.scalar.lists.of(node, self.scalar) and all(map(self.all_ranks, self.scalar.lists.filled(node)))

    def tabled(self, node: cst.CSTNode) -> bool:
        """Tell whether ``node`` is a list of rows, ``[step, loss.item()]`` or dicts, that all ranks fill together."""

        def is_row(entry: cst.BaseExpression) -> bool:
            values = [v for _, v in pairs(entry) if not isinstance(v, (cst.SimpleString, cst.FormattedString))]
            values += [e.value for e in entry.elements] if isinstance(entry, (cst.List, cst.Tuple)) else []
            return bool(values) and all(map(self.scalar, values))

        return self.scalar.lists.of(node, is_row) and all(map(self.all_ranks, self.scalar.lists.filled(node)))

    def curved(self, value: cst.BaseExpression) -> cst.BaseExpression | None:
        """Return what the function that ``value`` comes from takes the exponential (or a root) of, at its one end."""
        made = [o.node for o in self.facts.flow.origins(value)]
        only = made[0] if len(made) == 1 else None
        if not isinstance(only, cst.Call) or self.script.name_of(only.func) not in CURVED or not only.args:
            return None
        function = self.script.function_of(only)
        ends = isinstance(self.script.parents[only], cst.Return) and function is not self.script.function_of(value)
        inner = only.args[0].value
        return inner if ends and self.all_ranks(only) and self.trained(inner) else None

    def cut(self, nodes: Iterable[cst.CSTNode]) -> None:
        """Note that what ``nodes`` stand for is the same on all ranks from now on, and so is what comes of it."""
        cuts = {*self.trained.cuts, *nodes}

        def of_cuts(seed: cst.CSTNode) -> bool:  # max(1, hits) of hits that are those of all ranks
            names = [n for n in walk(seed) if isinstance(n, cst.Name) and (n in cuts or self.local(n))]
            return bool(names) and all(n in cuts for n in names)

        def follow(taint: Taint) -> Taint:
            return Taint(self.script, self.facts.kinds, [s for s in taint.seeds if not of_cuts(s)], cuts)

        self.trained, self.local, self.plain = map(follow, (self.trained, self.local, self.plain))

    def settle(self, name: str, line: cst.CSTNode) -> None:
        """Note that from ``line`` on ``name`` is the same on all ranks in its function, and so is what comes of it."""
        home, order, at = self.script.function_of(line), self.script.order, self.script.order[line]
        self.averaged[home, name] = at
        uses = [n for n in self.script.named(name) if self.script.function_of(n) is home]
        bound = [order[b.node] for n in uses[:1] for b in self.script.bindings_of(n) if added(b.node) is None]
        until = min((o for o in bound if o > at), default=len(order))  # there it may be a rank's own again
        self.cut(n for n in uses if at < order[n] < until)

    def is_averaged(self, node: cst.BaseExpression) -> bool:
        """Tell whether ``node`` is the same on all ranks by now: averaged before, or kept from what was."""
        function, order = self.script.function_of(node), self.script.order
        since = self.averaged.get((function, self.script.code(node)))
        if since is not None and order[node] > since:
            return True
        bindings = self.script.bindings_of(node) if isinstance(node, cst.Name) else []
        given = [b.value if b.written is None else b.written for b in bindings]  # best = accuracy, also best, n = v, 0
        kept = [value for value in given if value is not None and self.local(value)]
        known = [self.averaged.get((function, self.script.code(value)), order[value]) for value in kept]
        return bool(kept) and all(at < order[value] for at, value in zip(known, kept, strict=True))


def asked_if_finite(node: cst.CSTNode) -> cst.BaseExpression | None:
    """Return what ``node`` asks for NaN or infinities in: ``math.isfinite(loss)``, ``loss.isnan()``; else None."""
    if not isinstance(node, cst.Call) or dotted(node.func).rsplit(".", 1)[-1] not in ("isfinite", "isnan", "isinf"):
        return None
    if node.args:
        return node.args[0].value
    return node.func.value if isinstance(node.func, cst.Attribute) else None


def _asks_for_none(test: cst.Comparison) -> bool:
    """Tell whether ``test`` is ``x is None`` or ``x is not None``: what is there for one rank is there for all."""
    return all(isinstance(c.operator, (cst.Is, cst.IsNot)) for c in test.comparisons)


def _parts(test: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """Yield what ``test`` joins with ``and``, ``or`` and ``not``, or with ``&``, ``|`` and ``~``."""
    match test:
        case cst.BooleanOperation() | cst.BinaryOperation(operator=cst.BitAnd() | cst.BitOr()):
            yield from _parts(test.left)
            yield from _parts(test.right)
        case cst.UnaryOperation():
            yield from _parts(test.expression)
        case _:
            yield test
