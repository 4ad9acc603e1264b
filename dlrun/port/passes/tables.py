"""Part of step "metrics": tables, and sums of which ratios are made, that a loop adds up over a rank's samples."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from dlrun.port.edits import Doubt, Edit
from dlrun.port.facts.entries import holds_zeros
from dlrun.port.insert import statements
from dlrun.port.passes import counts, returned
from dlrun.port.passes.counters import runs_inside
from dlrun.port.passes.metrics import Metrics
from dlrun.port.program.script import Script, added, names_in, walk

_ZEROS = ("numpy.zeros", "torch.zeros", "tensorflow.zeros")
_ADDS = ("index_add_", "scatter_add_", "index_put_")


def torch(metrics: Metrics) -> Iterator[Edit | Doubt]:
    """Add up over the ranks, behind the loop, what each adds up of its own samples: tables, and sums of ratios.

    A ratio of sums whose divisor depends on the samples, such as a precision, is no mean of the ranks' ratios.

    Before:
        table = np.zeros((3, 3))
        for x, y in loader:
            loss(model(x), y).backward()
            opt.step()
            table += confusion(y, model(x))
        print(table.diagonal() / table.sum(1))

    After:
        table = np.zeros((3, 3))
        for x, y in loader:
            loss(model(x), y).backward()
            opt.step()
            table += confusion(y, model(x))
        table = dl.total(table)  # the sum over all ranks' samples
        print(table.diagonal() / table.sum(1))
    """
    facts, script = metrics.facts, metrics.script
    for loop in facts.loops if not facts.full_batch else ():
        if not isinstance(loop, cst.For) or runs_inside(facts, loop.body):
            continue
        grown = _Grown(metrics, loop)
        wanted = grown.wanted()
        for name in wanted:
            test = returned.trains_where(facts, loop.body)
            lines = statements("torch/total_statement", dl=facts.alias, name=name, trains=test and script.code(test))
            metrics.settle(name, loop)
            yield Edit(loop, "sums over this rank's samples", after=lines)
        for name, node in grown.tables.items():
            if name not in wanted and (reads := grown.after(name)) and not metrics.leads_back(reads[0]):
                places = ", ".join(map(str, sorted({script.line(n) for n in reads})[:3]))
                yield Doubt(
                    node,
                    f"{name} adds up this rank's own samples, 1/n of all, and is read as if of all in line {places}",
                    "medium",
                    f"{name} = {facts.alias}.total({name}) after the loop",
                )


class _Grown:
    """What one training loop adds up of a rank's samples, under names of its function."""

    def __init__(self, metrics: Metrics, loop: cst.For) -> None:
        self.metrics = metrics
        self.script = metrics.script
        self.loop = loop
        self.home = self.script.function_of(loop)
        self.adds: dict[str, list[cst.CSTNode]] = {}  # by the name, what adds to it
        self.tables: dict[str, cst.CSTNode] = {}  # arrays, each with the first of what adds to it
        for node in walk(loop.body):
            if (found := _adds(self.script, node)) is not None:
                name, own = found
                if self._is_of_others(name, own):
                    continue
                self.adds.setdefault(name.value, []).append(node)
                if self._is_array(name) and any(map(self._is_own, own)):
                    self.tables.setdefault(name.value, node)

    def _is_of_others(self, name: cst.Name, own: list[cst.BaseExpression]) -> bool:
        """Tell whether ``name`` is a list or dict in which samples choose no entry to count in: ``sums["a"] += x``."""
        made = [b.written for b in self.script.bindings_of(name) if b.how == "assign" and b.path != ("part",)]
        held = any(v is not None and holds_zeros(self.script, v) for v in made)
        chosen = isinstance(own[0], cst.Integer) and any(map(self._is_own, own[1:]))
        counted = isinstance(own[-1], cst.Name) and counts.hits(self.metrics.facts, own[0])  # n[c] += (y == c).sum()
        return held and not (chosen or counted)

    def wanted(self) -> list[str]:
        """Return the names that are to be added up over the ranks behind the loop."""
        if not self.metrics.all_ranks(self.loop) or not self.metrics.sums.dealt(self.loop, self.loop.iter, True):
            return []
        known = {name for name in self.adds if self._begins_anew(name) and not self._is_read_inside(name)}
        while odd := {n for n in known if not all(self._fits(read, known) for read in self.after(n))}:
            known -= odd
        wanted = {name for name in self.tables if name in known and self.after(name)}
        for share in self._ratios(known):
            wanted |= names_in(share) & known
        while beside := {m for n in wanted for read in self.after(n) for m in self._beside(read)} & known - wanted:
            wanted |= beside
        graded = any(map(self.metrics.has_gradients, (read for n in wanted for read in self.after(n))))
        return [name for name in self.adds if name in wanted and not graded]

    def after(self, name: str) -> list[cst.Name]:
        """Return where the function reads ``name`` behind the loop, before it begins anew."""
        at = self.script.order[self.loop]
        uses, order = self._uses(name), self.script.order
        bound = [order[b.node] for n in uses[:1] for b in self.script.bindings_of(n) if added(b.node) is None]
        until = min((o for o in bound if o > at), default=len(order))
        return [n for n in uses if not self.script.inside(n, self.loop) and at < order[n] < until]

    def _uses(self, name: str) -> list[cst.Name]:
        named = (n for n in self.script.named(name) if isinstance(n, cst.Name))
        return [n for n in named if self.script.function_of(n) is self.home]

    def _ratios(self, known: set[str]) -> Iterator[cst.BinaryOperation]:
        """Yield the ratios of sums whose divisor depends on the samples: ``hits / (hits + misses)``."""
        for name in known:
            for read in self.after(name) if any(map(self._depends, self.adds[name])) else ():
                for share in self._shares(read):
                    own = {n.value for n in walk(share) if isinstance(n, cst.Name) and self.metrics.trained(n)}
                    if self.script.inside(read, share.right) and own <= known:
                        yield share

    def _shares(self, read: cst.CSTNode) -> list[cst.BinaryOperation]:
        """Return the divisions of which ``read`` is a part."""
        return [up for up in self.script.above(read)
                if isinstance(up, cst.BinaryOperation) and isinstance(up.operator, cst.Divide)]  # fmt: skip

    def _fits(self, read: cst.Name, known: set[str]) -> bool:
        """Tell whether ``read`` stands for the sum over all samples: not where a rank's own count divides it.

        Nor where it divides a sum that stays a rank's own.
        """
        own = {*self.adds, *self._batch()} - known
        if any(self._counts(divisor, read) or names_in(divisor) & own for divisor in self._divisors(read)):
            return False
        return not any(names_in(share.left) & own for share in self._shares(read)) and not any(
            names_in(turn.iter) & own for turn, _ in self._turns(read))  # fmt: skip

    def _beside(self, read: cst.CSTNode) -> set[str]:
        """Return the names that are divided together with ``read``, and those by which it is."""
        return {m for part in (*self._divisors(read), *self._shares(read)) for m in names_in(part)}

    def _divisors(self, read: cst.CSTNode) -> list[cst.BaseExpression]:
        """Return what ``read`` is divided by, or its entries one by one: ``[v / seen for v in sums]``."""
        found = [share.right for share in self._shares(read) if self.script.inside(read, share.left)]
        turns = ((share, names_in(turn.target)) for turn, share in self._turns(read))
        return [*found, *(share.right for share, names in turns if names_in(share.left) & names)]

    def _turns(self, read: cst.CSTNode) -> Iterator[tuple[cst.CompFor | cst.For, cst.BinaryOperation]]:
        """Yield the loops over the entries of ``read``, each with the divisions in it."""
        for turn in self.script.above(read):
            if isinstance(turn, (cst.CompFor, cst.For)) and self.script.inside(read, turn.iter):
                body = turn.body if isinstance(turn, cst.For) else self.script.parents[turn]
                yield from ((turn, n) for n in walk(body)
                            if isinstance(n, cst.BinaryOperation) and isinstance(n.operator, cst.Divide))  # fmt: skip

    def _counts(self, divisor: cst.BaseExpression, read: cst.Name) -> bool:
        """Tell whether ``divisor`` is a number of batches or samples, and ``read`` no sum over all ranks for it.

        Of the tables that all samples divide totals tell.
        """
        facts = self.metrics.facts
        known = counts.is_own(facts, divisor) or counts.all_samples(facts, divisor)
        return known and (read.value in self.tables or not self.metrics.sums.over(divisor, read))

    def _batch(self) -> list[str]:
        return [n.value for n in walk(self.loop.target) if isinstance(n, cst.Name)]

    def _depends(self, node: cst.CSTNode) -> bool:
        """Tell whether ``node`` adds what depends on the samples, and not only on how many there are."""
        term = (added(node) or (node, node))[1]
        if isinstance(term, cst.Integer):
            above = [up for up in self.script.above(node) if self.script.inside(up, self.loop)]
            return any(isinstance(up, cst.If) and self._is_own(up.test) for up in above)
        return self._is_own(term) and not any(self.metrics.sums.is_size(term, name) for name in self._batch())

    def _is_own(self, node: cst.CSTNode) -> bool:
        return any(self.metrics.facts.unequal(n) or self.metrics.trained(n) for n in walk(node))

    def _begins_anew(self, name: str) -> bool:
        """Tell whether ``name`` is zero each time before the loop begins."""
        script = self.script
        bound = {id(b): b for n in self._uses(name) for b in script.bindings_of(n)}.values()
        begun = [b for b in bound if added(b.node) is None and b.path != ("part",)]
        before = [b.node for b in begun if script.order[b.node] < script.order[self.loop]]
        resets = [n for n in script.of(cst.SimpleStatementLine) if _empties(script, n) == name]
        always = any(
            script.inside(self.loop, script.suite(n)) and self._loops(n) == self._loops(self.loop)
            for n in (*before, *(resets if before else ())))  # fmt: skip
        return always and all(b.how == "assign" and self._is_zero(b.written) for b in begun)

    def _loops(self, node: cst.CSTNode) -> list[cst.CSTNode]:
        return [up for up in self.script.above(node) if isinstance(up, (cst.For, cst.While))]

    def _is_zero(self, made: cst.BaseExpression | None) -> bool:
        if isinstance(made, (cst.Integer, cst.Float)):
            return made.evaluated_value == 0
        arrays = isinstance(made, cst.Call) and self.script.name_of(made.func) in _ZEROS
        return arrays or (made is not None and holds_zeros(self.script, made))

    def _is_array(self, name: cst.Name) -> bool:
        """Tell whether ``name`` begins as an array of zeros each time."""
        made = [b.written for b in self.script.bindings_of(name)
                if b.how == "assign" and b.path != ("part",) and added(b.node) is None]  # fmt: skip
        return bool(made) and all(
            v is not None and self._is_zero(v) and (holds_zeros(self.script, v) or (
                isinstance(v, cst.Call) and bool(v.args) and not self.metrics.scalar(v))) for v in made
        )  # fmt: skip

    def _is_read_inside(self, name: str) -> bool:
        """Tell whether the loop reads ``name`` for something else than adding to it."""
        own = self.adds[name]
        return any(self.script.inside(n, self.loop) and not any(self.script.inside(n, add) for add in own)
                   for n in self.script.named(name))  # fmt: skip


def _empties(script: Script, line: cst.SimpleStatementLine) -> str:
    """Return the name of the array that ``line`` fills with zeros: ``table.zero_()``, ``table[:] = 0``; else none."""
    match line.body[0]:
        case cst.Expr(value=cst.Call(func=cst.Attribute(value=cst.Name(name), attr=cst.Name(how)), args=args)):
            fills = how in ("fill_", "fill") and len(args) == 1 and script.code(args[0].value) in ("0", "0.0")
            return name if fills or how == "zero_" else ""
        case cst.Assign(targets=[cst.AssignTarget(target=cst.Subscript(value=cst.Name(name)) as part)], value=value):
            return name if script.code(part) == f"{name}[:]" and script.code(value) in ("0", "0.0") else ""
    return ""


def _adds(script: Script, node: cst.CSTNode) -> tuple[cst.Name, list[cst.BaseExpression]] | None:
    """Return the name that ``node`` adds to, and what tells where and how much: ``table[a, b] += 1``."""
    if (found := added(node)) is not None:
        target, term = found
        if isinstance(target, cst.Subscript) and isinstance(target.value, cst.Name):
            return target.value, [term, *(e.slice.value for e in target.slice if isinstance(e.slice, cst.Index))]
        return (target, [term]) if isinstance(target, cst.Name) else None
    match node:
        case cst.Call(func=cst.Attribute(value=cst.Name() as name, attr=cst.Name(how)), args=args) if how in _ADDS:
            return name, [a.value for a in args]
        case cst.Call(func=cst.Attribute(value=cst.Name() as name, attr=cst.Name("update")), args=[arg]):
            made = [b.written for b in script.bindings_of(name)]  # counter.update(labels)
            counts = all(isinstance(m, cst.Call) and script.name_of(m.func) == "collections.Counter" for m in made)
            return (name, [cst.Integer("1"), arg.value]) if made and counts else None
        case cst.Call(args=[cst.Arg(value=cst.Name() as name), *rest]) if script.name_of(node.func) == "numpy.add.at":
            return name, [a.value for a in rest]
    return None
