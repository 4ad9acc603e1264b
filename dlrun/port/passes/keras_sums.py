"""Part of step "metrics" for Keras: what loops around train_on_batch() add up over a rank's own turns."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import libcst as cst

from dlrun.port.edits import Doubt, Edit
from dlrun.port.facts.keras import KerasFacts
from dlrun.port.facts.summed import plain_of, summed
from dlrun.port.facts.taint import Taint
from dlrun.port.insert import expression, statements
from dlrun.port.passes.keras_loops import Shared, shared
from dlrun.port.passes.tallies import is_target
from dlrun.port.program.dicts import pairs
from dlrun.port.program.script import added, calls_method, dotted, names_in, walk

_AVERAGED = "train_on_batch"  # what it returns is the mean over the ranks
_COMPUTES = ("test_on_batch", "predict_on_batch", "predict", "evaluate", "result")
_MEANS = ("numpy.mean", "numpy.average", "statistics.mean", "statistics.fmean")
_WHY = "a sum over a rank's own turns, 1/n of all"
_MEAN = "a mean over a rank's own turns, whose losses are the means over the ranks"


def keras(facts: KerasFacts) -> Iterator[Edit | Doubt]:
    """Yield the totals of what such loops add up, where it is read after them, not divided by their own turns."""
    done: set[cst.CSTNode] = set()
    for loop in shared(facts):
        for found in _Turned(facts, loop).found():
            if found.node not in done:
                done.add(found.node)
                yield found


class _Turned:
    """What one loop, of which each rank makes 1/n of the turns, adds up."""

    def __init__(self, facts: KerasFacts, shared: Shared) -> None:
        self.facts = facts
        self.script = facts.script
        self.shared = shared
        self.loop = shared.loop
        self.home = self.script.function_of(shared.loop)
        self.adds: dict[str, list[cst.BaseExpression]] = {}  # by what is added to, what is added
        self.lists: dict[str, list[cst.BaseExpression]] = {}
        for node in walk(self.loop.body):
            if (grown := added(node)) is not None:
                self.adds.setdefault(self.script.code(grown[0]), []).append(grown[1])
            elif calls_method(node, "append") and len(node.args) == 1:
                self.lists.setdefault(self.script.code(node.func.value), []).append(node.args[0].value)

    def found(self) -> Iterator[Edit | Doubt]:
        """Yield the edits of what is read after the loop."""
        for text, terms in (*self.adds.items(), *self.lists.items()):
            if all(map(self._is_of_samples, terms)) or self._adds_a_size(text):
                for use in self._uses(text, text in self.lists):
                    yield from self._total(use)
        for use in (n for text in self.lists for n in self._uses(text, False)):
            around = next((up for up in self.script.above(use) if isinstance(up, cst.Call)), None)
            if around is not None and self._own(use) and self.script.name_of(around.func) in _MEANS:
                yield self._mean(around)
        yield from self._tables()

    @cached_property
    def _own(self) -> Taint:
        """What differs between the ranks: what a model makes of a rank's batch, by itself."""
        return Taint(self.script, self.facts.kinds, self._calls(*_COMPUTES))

    @cached_property
    def _computed(self) -> Taint:
        """What comes of the batches: losses and predictions."""
        return Taint(self.script, self.facts.kinds, self._calls(_AVERAGED, *_COMPUTES))

    def _calls(self, *methods: str) -> list[cst.Call]:
        return [n for n in walk(self.loop.body) if calls_method(n, *methods)]

    def _is_of_samples(self, term: cst.BaseExpression) -> bool:
        """Tell whether ``term`` is made of a batch: of its losses, or the number of its samples."""
        return self._computed(term) or self._counts(term)

    def _counts(self, term: cst.BaseExpression) -> bool:
        """Tell whether ``term`` is the length of what the loop makes, ``len(x)``, ``x.shape[0]``."""
        match term:
            case cst.Call(func=cst.Name("len"), args=[cst.Arg(value=cst.Name() as batch)]):
                pass
            case cst.Subscript(value=cst.Attribute(value=cst.Name() as batch, attr=cst.Name("shape"))):
                pass
            case _:
                return False
        bound = self.script.bindings_of(batch)
        return bool(bound) and all(self.script.inside(b.node, self.loop) for b in bound)

    def _adds_a_size(self, text: str) -> bool:
        """Tell whether ``text`` grows by one number of samples a turn, ``seen += 32``, and picks none."""
        own = [n for n in walk(self.loop.body) if isinstance(n, (cst.Name, cst.Attribute))]
        own = [n for n in own if self.script.code(n) == text]
        read = [n for n in own if not is_target(self.script, n) and added(self.script.statement_of(n)) is None]
        made = [o.node for term in self.adds.get(text, ()) for o in self.facts.flow.origins(term)]
        return not read and bool(made) and all(isinstance(n, cst.Integer) and n.evaluated_value > 1 for n in made)

    def _uses(self, text: str, lists: bool, parts: bool = False) -> Iterator[cst.BaseExpression]:
        """Yield what reads ``text`` after the loop, of a list its sum, until it is given another value."""
        order, last = self.script.order, self._end
        nodes = [n for n in walk(self.home) if isinstance(n, (cst.Name, cst.Attribute, cst.Subscript))
                 and order[n] > last and self.script.code(n) == text]  # fmt: skip
        targets = [n for n in nodes if is_target(self.script, n)]
        renewed = [n for n in targets if added(self.script.statement_of(n)) is None]
        until = min((order[n] for n in renewed), default=len(order))
        for use in (n for n in nodes if parts or not self._is_part(n)):
            line = self.script.statement_of(use)
            if order[use] > until and not any(self.script.inside(n, line) for n in renewed if order[n] == until):
                continue
            if use in targets and (use not in renewed or lists or not isinstance(line, cst.AugAssign)):
                continue
            if lists:
                calls = (up for up in self.script.above(use) if isinstance(up, cst.Call) and plain_of(up) is None)
                yield from (call for call in calls if summed(self.script, call) is use)
            else:
                yield use

    @cached_property
    def _end(self) -> int:
        """The place in the script where the loop ends."""
        return max(self.script.order[n] for n in walk(self.loop))

    def _is_part(self, node: cst.CSTNode) -> bool:
        """Tell whether ``node`` is none that is read by itself: the table around an entry, a keyword's name."""
        up = self.script.parents[node]
        return (isinstance(up, (cst.Attribute, cst.Subscript)) and up.value is node) or (
            isinstance(node, cst.Name) and self.script.is_part(node))  # fmt: skip

    def _total(self, use: cst.BaseExpression) -> Iterator[Edit | Doubt]:
        """Yield the edit of one ``use``, or of the quotient that it is in."""
        whole: cst.CSTNode = use
        line = self.script.statement_of(use)
        if isinstance(line, cst.AugAssign) and line.target is use:  # total /= len(x)
            yield from self._divided(use, line)
            return
        for up in self.script.above(use):
            if isinstance(up, cst.BinaryOperation) and isinstance(up.operator, (cst.Divide, cst.FloorDivide)):
                if self.script.inside(use, up.left):
                    if self._is_own(up.right):
                        if self._own(use):
                            yield self._mean(up)
                        return
                    if self._is_serial(up.right) and not self._own(use):
                        yield Edit(up.right, _MEAN, self._steps)
                        return
                elif self._is_summed(up.left):
                    return
            if isinstance(up, cst.BaseSmallStatement):
                whole = up
                break
        yield from self._whole(use, whole)

    def _divided(self, name: cst.BaseExpression, line: cst.AugAssign) -> Iterator[Edit]:
        """Yield the edit of ``line``, which divides the sum ``name`` in place."""
        if not isinstance(line.operator, cst.DivideAssign) or self._is_own(line.value):
            return
        if self._is_serial(line.value) and not self._own(name):
            yield Edit(line.value, _MEAN, self._steps)
        else:
            yield Edit(self.script.line_of(line), _WHY, before=statements(
                "torch/total_statement", dl=self.facts.alias, name=self.script.code(name), trains=""))  # fmt: skip

    def _mean(self, node: cst.BaseExpression) -> Edit:
        """Return the edit of ``node``, a mean over a rank's own samples."""
        return Edit(node, "the mean over the ranks, not rank 0's own",
                    lambda n: expression("torch/average", {"value": n}, dl=self.facts.alias))  # fmt: skip

    def _tables(self) -> Iterator[Edit | Doubt]:
        """Yield the totals of dicts that are shown whole, if the loop adds to all of their entries."""
        grown = [n.target for n in walk(self.loop.body) if isinstance(n, cst.AugAssign)]
        for name in {dotted(n.value): n.value for n in grown if isinstance(n, cst.Subscript)}.values():
            begun = [key for b in self.script.bindings_of(name) if b.value is not None for key, _ in pairs(b.value)]
            keys = [f"{dotted(name)}[{self.script.code(key)}]" for key in begun if key is not None]
            if keys and all(key in self.adds and all(map(self._is_of_samples, self.adds[key])) for key in keys):
                shown = (cst.Arg, cst.FormattedStringExpression)
                for use in self._uses(dotted(name), False, parts=True):
                    if isinstance(self.script.parents[use], shown) or self._is_gone_through(use):
                        yield from self._whole(use, self.script.statement_of(use))

    def _is_gone_through(self, table: cst.BaseExpression) -> bool:
        """Tell whether the entries of ``table`` are taken in turn, and not divided by a rank's own count of turns."""
        part = self.script.parents[table]
        call = self.script.parents[part]
        if not calls_method(call, "items", "values") or call.func is not part:
            return False
        turned = self.script.parents[self.script.parents[call]] if isinstance(
            self.script.parents[call], cst.CompFor) else self.script.parents[call]  # fmt: skip
        shares = [n.right for n in walk(turned) if isinstance(n, cst.BinaryOperation)
                  and isinstance(n.operator, (cst.Divide, cst.FloorDivide))]  # fmt: skip
        return not any(map(self._is_own, shares))

    def _whole(self, use: cst.BaseExpression, line: cst.CSTNode) -> Iterator[Edit | Doubt]:
        """Yield the total of ``use``, which ``line`` reads, if all ranks come there and nobody divides it later."""
        code, dl = self.script.code(use), self.facts.alias
        tests = [up.test for up in self.script.above(use)
                 if isinstance(up, (cst.If, cst.While)) and not self.script.inside(self.loop, up)
                 and not self.script.inside(use, up.test)]  # fmt: skip
        if any(self._own(n) for test in tests for n in walk(test) if isinstance(n, cst.BaseExpression)):
            yield Doubt(use, f"{code} is {_WHY}, below a condition that may differ between the ranks", "high",
                        f"{code} = {dl}.total({code}) after the loop")  # fmt: skip
        elif self._is_divided_later(line):
            yield Doubt(use, f"{code} is {_WHY}, and so is what it is divided by elsewhere: their quotient is right",
                        "low", f"{dl}.total({code}) where it is read alone")  # fmt: skip
        else:
            yield Edit(use, _WHY, lambda n: expression("torch/total", {"value": n}, dl=dl))

    def _steps(self, count: cst.BaseExpression) -> cst.BaseExpression:
        return expression("torch/steps", {"count": count}, dl=self.facts.alias)

    def _is_serial(self, count: cst.BaseExpression) -> bool:
        """Tell whether ``count`` is the number of the serial script's turns."""
        return self.script.code(count.with_changes(lpar=(), rpar=())) == self.shared.count

    def _is_own(self, count: cst.BaseExpression) -> bool:
        """Tell whether ``count`` is of a rank's own turns: what the loop counts, and the length of what it fills."""
        own = {*self.adds, *self.lists, *self.shared.shrunk, *names_in(self.loop.target)}
        return any(self.script.code(n) in own for n in walk(count) if isinstance(n, cst.BaseExpression))

    def _is_summed(self, node: cst.BaseExpression) -> bool:
        """Tell whether ``node`` is made of what the loop adds up."""
        return any(self.script.code(n) in self.adds for n in walk(node) if isinstance(n, cst.BaseExpression))

    def _is_divided_later(self, line: cst.CSTNode) -> bool:
        """Tell whether ``line`` hands the sum on together with a rank's own count: ``return total, n``."""
        value = line.value if isinstance(line, cst.Return) else None
        parts = [e.value for e in value.elements] if isinstance(value, cst.Tuple) else []
        return any(self._is_own(part) and not self._is_summed_only(part) for part in parts)

    def _is_summed_only(self, part: cst.BaseExpression) -> bool:
        terms = self.adds.get(self.script.code(part), [])
        return bool(terms) and all(map(self._computed, terms))
