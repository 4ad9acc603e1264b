"""Sums over a rank's share of the batches, which over all ranks are the sum of the serial script."""

from __future__ import annotations

from functools import cached_property

import libcst as cst

from dlrun.port.facts import Facts
from dlrun.port.facts.computed import computed, reaching
from dlrun.port.facts.entries import Entries, holds_zeros, is_empty
from dlrun.port.facts.lists import Lists, keys_are_written
from dlrun.port.facts.summed import adds_by_itself, is_divided, is_plain, is_summed, length_of, plain_of, summed
from dlrun.port.passes import counts, returned
from dlrun.port.passes.steering import trained_by
from dlrun.port.passes.turns import Turns
from dlrun.port.program.script import Binding, added, children, walk

_DEALT = ("loader", "named", "iterable")


class Sums(Turns):
    """Knows in which loops numbers are summed up, and which counts are of all samples and not of this rank's."""

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._entries = Entries(facts.script)
        self._lists = Lists(facts.flow)

    @cached_property
    def trained_by(self) -> frozenset[cst.CSTNode]:
        """What the batches, the losses and the rates of the training are made of."""
        return trained_by(self.facts)

    def in_training(self, node: cst.CSTNode) -> bool:
        """Tell whether the names in ``node`` are summed up in loops over shared data, and in no others."""
        loops = self._loops(node)
        return bool(loops) and all(loop in self.facts.loops for loop in loops)

    def only(self, total: cst.BaseExpression) -> bool:
        """Tell whether all that is a rank's own in ``total`` are sums: numbers and arrays, and what lists add up to."""
        own = self._own(total)
        return bool(own) and all(map(self._terms, own))

    def elsewhere(self, node: cst.CSTNode) -> bool:
        """Tell whether ``node`` is summed up in loops that do not train, over data that every rank sees whole."""
        grown = self._grown(node)
        return bool(grown) and not any(
            loop is None or loop in self.facts.loops or self._within(loop, term) for loop, term in grown
        )

    def _within(self, loop: cst.For | cst.While, term: cst.BaseExpression) -> bool:
        """Tell whether ``loop`` is a part of a training step: it goes over its samples, or ``term`` is of its loss."""
        if not any(up in self.facts.loops for up in self.script.above(loop)):
            return False
        own = isinstance(loop, cst.For) and any(
            self.facts.unequal(n) for n in walk(loop.iter) if isinstance(n, (cst.Name, cst.Attribute))
        )
        return own or term in self.trained_by

    def over(self, count: cst.BaseExpression, total: cst.BaseExpression) -> bool:
        """Tell whether ``total``, summed up in training, is divided by a ``count`` that is not this rank's own."""
        if counts.is_length_of_data(self.facts, count):
            return True
        if self.facts.options.batch == "global" and not self._adds_samples(total):
            return False  # each rank goes through all batches, and its terms are means over its part of each
        made = (n for n in computed(self.facts.flow, [count]).nodes if isinstance(n, (cst.Name, cst.Attribute)))
        if self._of_sums(total) and {*self._loops(total)} == {*self._loops(count)}:
            return True  # grand / epochs
        own = any(counts.grows(self.facts, n) or self._is_filled(n) for n in made)  # len(losses)
        if own or counts.is_length_of_feed(self.facts, count) or self._shrinks(count):
            return False
        return counts.all_samples(self.facts, count) or self._of_a_share(total, count)

    def _is_filled(self, box: cst.Name | cst.Attribute) -> bool:
        """Tell whether the turns of training loops fill the list ``box``, be it in a method: ``log.add(loss)``."""
        parts = {*self.facts.accumulating, *self.facts.parts}
        around = (loop for call in self._lists.filled(box) for loop in self._around(call, parts, 3))
        return any(loop in self.facts.loops for loop in around)

    def alone(self, total: cst.BaseExpression, depth: int = 3) -> bool:
        """Tell whether ``total`` is a sum over this rank's share, divided by nothing: a name, or ``-(a + b)``."""
        if self.table(total) or (adds_by_itself(self.facts.flow, total) and self.facts.options.batch != "global"):
            return not is_divided(self.script, total)
        match total:
            case cst.UnaryOperation(operator=cst.Minus(), expression=inner):
                return self.alone(inner, depth)
            case cst.BinaryOperation(operator=cst.Add() | cst.Subtract(), left=one, right=other):
                return self.alone(one, depth) and self.alone(other, depth)
        if summed(self.script, total) is None and (held := plain_of(total)) is not None:
            return self.alone(held, depth)
        part = is_divided(self.script, total)
        name = summed(self.script, total) or total
        name = name.value if isinstance(name, cst.Subscript) else name
        if part or not isinstance(name, (cst.Name, cst.Attribute)) or not self._is_whole(name, total):
            return False
        terms = [term for n in self._own(total) for term in self._terms(n)]
        bindings = self._bindings(name)
        if isinstance(name, cst.Name):
            bindings = reaching(self.script, name, bindings)
        if any(map(_changes, bindings)) or any(self._divides(node, term) for node, term in terms):
            return False
        calls = returned.calls(self.facts, name) if depth and isinstance(name, cst.Name) else []
        if calls and (total is name or self.returned(calls, depth - 1)):
            return self.returned(calls, depth - 1)
        whole = self.in_training(total) and self._of_a_share(total, total)
        return whole or (depth > 0 and self._of_sums(total, depth - 1))

    def table(self, name: cst.CSTNode) -> bool:
        """Tell whether ``name`` is a dict of plain numbers that all add up over this rank's share: ``print(sums)``."""
        if not isinstance(name, cst.Name) or self.facts.options.batch == "global":
            return False
        bindings, made = self._entries.all(name), self._bindings(name)
        adds = [b.node for b in bindings if _adds(b)]
        begun = [b.written for b in made if b.written is not None]
        zeros = [value for value in begun if is_empty(value) or holds_zeros(self.script, value)]
        if not adds or len(zeros) < len(made) or len(adds) + len(made) < len(bindings):
            return False
        parts = {*self.facts.accumulating, *self.facts.parts}
        loops = [self._through(loop, name) for node in adds for loop in self._around(node, parts, 0)]
        return all(is_plain(self.script, added(node)[1]) for node in adds) and all(  # type: ignore[index]
            isinstance(loop, cst.For) and loop in self.facts.loops and self.dealt(loop, name, True)
            and not self.script.inside(name, loop) for loop in loops)  # fmt: skip

    def _of_sums(self, total: cst.BaseExpression, depth: int = 2) -> bool:
        """Tell whether ``total`` adds up sums over this rank's share: ``grand += running``, once an epoch."""
        terms = [term for n in self._own(total) for _, term in self._terms(n)]
        return bool(terms) and all(self.alone(term, depth) for term in terms)

    def of_whole(self, total: cst.BaseExpression) -> bool:
        """Tell whether ``total`` is a sum over this rank's part of a full batch, and of no loss, which is scaled."""
        hows = dict.fromkeys(f.gathered for f in self.facts.feeds if f.gathered is not None)
        scaled = {part for how in hows for part in how.sums}
        levels = [how.of(total) for how in hows]
        return any(level.sums and not level.means and scaled.isdisjoint(level.sums) for level in levels)

    def _is_whole(self, name: cst.Name | cst.Attribute, total: cst.BaseExpression) -> bool:
        """Tell whether ``total`` is all that is added to: the variable ``name``, the entry of it, or their sum."""
        if total is not name and not isinstance(total, cst.Subscript):
            return True
        if isinstance(name, cst.Attribute) and total is name:
            return bool(self._bindings(name))
        return total in (name, self._entries.around(name))

    def returned(self, calls: list[returned.Returned], depth: int = 2) -> bool:
        """Tell whether the functions that ``calls`` run go through a rank's share, and return a sum over it."""
        return all(
            returned.gets_shares(self.facts, call) and all(self.alone(end, depth) for end in ends)
            for call, ends in calls
        )

    def handed_on(self, total: cst.BaseExpression) -> bool:
        """Tell whether all that is a rank's own in ``total`` are sums over its share that functions return."""
        own = self._own(total)
        calls = [returned.calls(self.facts, n) if isinstance(n, cst.Name) else [] for n in own]
        return bool(own) and all(each and self.returned(each) for each in calls)

    def counted(self, name: cst.Name | cst.Attribute) -> bool:
        """Tell whether ``name`` adds up a rank's training samples, or those of them that fit, and is nothing else."""
        bindings = self._bindings(name)
        adds = [b.node for b in bindings if _adds(b)]
        begins = [b.written for b in bindings if not _adds(b)]
        zero = all(isinstance(v, (cst.Integer, cst.Float)) and v.evaluated_value == 0 for v in begins)
        return bool(adds) and zero and all(self._adds_a_batch(n) for n in adds)

    def _adds_a_batch(self, node: cst.CSTNode) -> bool:
        """Tell whether ``node`` adds a number of samples of what the loop around it takes from a shared loader."""
        loops = self._around(node, {*self.facts.parts}, 3)
        feeds = [f for f in self.facts.feeds if f.how in _DEALT]
        dealt = all(isinstance(loop, cst.For) and loop in self.facts.loops
                    and any(self.runs_over(loop, f.node, f.names) for f in feeds) for loop in loops)  # fmt: skip
        if not dealt or self.facts.options.batch == "global":
            return False
        size, function = (added(node) or (node, node))[1], self.script.function_of(node)
        targets = [loop.target for loop in loops if isinstance(loop, cst.For)]
        batches = [n.value for target in targets for n in walk(target) if isinstance(n, cst.Name)]
        if isinstance(function, cst.FunctionDef):  # def tick(self, x): self.samples += len(x)
            batches += [p.name.value for p in function.params.params]
        return counts.hits(self.facts, size) or any(self.is_size(size, name) for name in batches)

    def is_length(self, node: cst.CSTNode) -> bool:
        """Tell whether ``node`` is the length of a list, or of arrays in it, that a loop over a share fills."""
        box = length_of(self.script, node)
        fills = self._lists.filled(box, ("append", "extend")) if box is not None else []
        depth = 3 if isinstance(box, cst.Attribute) else 0  # a method may fill it: found.add(labels)
        loops = [loop for call in fills for loop in self._around(call, {*self.facts.parts}, depth)]
        return bool(loops) and self.facts.options.batch != "global" and all(
            isinstance(loop, cst.For) and loop in self.facts.loops and self.dealt(loop, loop.iter, True)
            and not self.script.inside(node, loop) for loop in loops)  # fmt: skip

    def _divides(self, node: cst.CSTNode, term: cst.BaseExpression) -> bool:
        """Tell whether ``term``, added at ``node``, is a part of a mean: ``mean += loss / len(loader)``."""
        parts = [n for n in walk(term) if isinstance(n, cst.BinaryOperation)]
        shares = [n.right for n in parts if isinstance(n.operator, cst.Divide)]
        known = self.bounds(node)
        return not all(
            self.text(n) in known
            or self.is_drawn_from(n)
            or (counts.all_samples(self.facts, n) and not counts.is_length_of_feed(self.facts, n))
            for n in shares
        )

    def _of_a_share(self, total: cst.BaseExpression, count: cst.BaseExpression) -> bool:
        if self.facts.options.batch == "global" and not self._adds_samples(total):
            return False  # each rank goes through all batches, and its terms are means over its part of each
        loops = [loop for loop in self._loops(total) if isinstance(loop, cst.For)]
        alone = count is total
        around = [[x, *(up for up in self.script.above(x) if isinstance(up, cst.For))] for x in loops]
        return bool(loops) and all(
            any(self.dealt(x, count, alone) and self._after(x, count, total) for x in nested) for nested in around
        )

    def _loops(self, node: cst.CSTNode) -> list[cst.For | cst.While | None]:
        """Return the innermost loops in which the rank-local names in ``node`` are added to."""
        return [loop for loop, _ in self._grown(node)]

    def _grown(self, node: cst.CSTNode) -> list[tuple[cst.For | cst.While | None, cst.BaseExpression]]:
        """Return these loops, each with what is added there."""
        found: list[tuple[cst.For | cst.While | None, cst.BaseExpression]] = []
        parts = {*self.facts.accumulating, *self.facts.parts}
        for name in self._own(node):
            inside = isinstance(name, cst.Attribute)  # a method may add to it: stats.update(loss)
            for place, term in self._terms(name):
                loops = self._around(place, parts, 3 if inside else 0)
                found += [(self._through(loop, name), term) for loop in loops]
        return found

    def _through(self, loop: cst.For | cst.While | None, name: cst.CSTNode) -> cst.For | cst.While | None:
        """Return the training loop around ``loop`` that ``name`` grows through: ``for k in logs: sums[k] += logs[k]``.

        That is ``loop`` itself if it trains, or if ``name`` begins anew in each turn of the training loop.
        """
        if loop is None or loop in self.facts.loops:
            return loop
        around = next((up for up in self.script.above(loop) if up in self.facts.loops), None)
        named = isinstance(name, (cst.Name, cst.Attribute))
        begun = [b.node for b in self._bindings(name) if not _adds(b)] if named else []  # type: ignore[arg-type]
        anew = around is None or not begun or any(self.script.inside(n, around) for n in begun)
        return loop if anew or not isinstance(around, (cst.For, cst.While)) else around

    def _terms(self, name: cst.Name | cst.Attribute) -> list[tuple[cst.CSTNode, cst.BaseExpression]]:
        """Return what is added to ``name``, or to the list of that name where its entries are summed up, and where."""
        entry = self._entries.around(name)
        for box in (name, entry):  # losses, or kept["loss"]
            if box is not None and is_summed(self.script, box):
                return [(call, call.args[0].value) for call in self._lists.filled(box, ("append", "extend"))]
        grown = [(b.node, added(b.node)) for b in self._bindings(name)]
        return [(node, found[1]) for node, found in grown if found is not None]

    def _around(self, node: cst.CSTNode, parts: set[cst.CSTNode], depth: int) -> list[cst.For | cst.While | None]:
        """Return the innermost loop around ``node``, no part of a step, or those around the calls of its function."""
        above = (u for u in self.script.above(node) if isinstance(u, (cst.For, cst.While, cst.FunctionDef)))
        around = (u for u in above if u not in parts)  # nor one that runs callbacks, or names the parts of a loss
        loop = next((u for u in around if not isinstance(u, cst.For) or not (
            self.facts.flow.runs_each(u) or keys_are_written(self.facts.flow, u.iter))), None)  # fmt: skip
        calls = self.facts.flow.callers(loop) if isinstance(loop, cst.FunctionDef) and depth else []
        if isinstance(loop, cst.FunctionDef):
            return [x for call in calls for x in self._around(call, parts, depth - 1)] or [None]
        return [loop]

    def _adds_samples(self, total: cst.CSTNode) -> bool:
        """Tell whether what is added to ``total`` grows with the number of samples: ``loss.item() * len(x)``."""
        terms = [term for n in self._own(total) for _, term in self._terms(n)]
        weighted = [isinstance(v, cst.BinaryOperation) and isinstance(v.operator, cst.Multiply) for v in terms]
        summed = [".sum(" in self.script.code(v) for v in terms]
        return bool(terms) and all(a or b for a, b in zip(weighted, summed, strict=True))

    def _own(self, node: cst.CSTNode) -> list[cst.Name | cst.Attribute]:
        """Return the variables in ``node`` that are a rank's own: names, and attributes that the program sets.

        Of what adds up the entries of a list, also by a name, ``total = sum(losses)``, that list.
        """
        if (box := summed(self.script, node)) is not None:
            box = box.value if isinstance(box, cst.Subscript) else box
            kept = isinstance(box, cst.Attribute) and self.facts.trained(box)
            return [box] if kept and isinstance(box, cst.Attribute) else self._own(box)
        if isinstance(node, (cst.Name, cst.Attribute)) and (isinstance(node, cst.Name) or self._bindings(node)):
            made = self._bindings(node) if isinstance(node, cst.Name) else []
            value = made[0].written if len(made) == 1 else None
            if value is not None and summed(self.script, value) is not None:
                return self._own(value)
            return [node] if self.facts.trained(node) else []
        parts = [node.value] if isinstance(node, cst.Subscript) else children(node)  # and not by what it is chosen
        return [n for part in parts for n in self._own(part)]

    def _bindings(self, name: cst.Name | cst.Attribute) -> list[Binding]:
        return self._entries.bindings(name) or self.facts.flow.bindings(name)

    def _after(self, loop: cst.For, count: cst.BaseExpression, total: cst.CSTNode) -> bool:
        """Tell whether ``total`` has grown through the whole of ``loop``, and ``count`` is not what it counts."""
        made = () if count is total else computed(self.facts.flow, [count]).nodes  # max(1, n), be it by a name
        known = [b.node for n in made if isinstance(n, (cst.Name, cst.Attribute)) for b in self._bindings(n)]
        named = [*self._own(total), *(n for n in walk(total) if isinstance(n, (cst.Name, cst.Attribute)))]
        begun = [b.node for n in named for b in self._bindings(n) if not _adds(b)]
        begun = [n for n in begun if not (isinstance(n, cst.AugAssign) and n.value is count)]  # total /= count
        own = count is not total and self.facts.local(count)
        inside = self.script.inside(count, loop) and not self.at_last(count)
        return not own and not inside and not any(self.script.inside(n, loop) for n in (*known, *begun))


def _adds(binding: Binding) -> bool:
    """Tell whether ``binding`` adds to what the name stands for."""
    return added(binding.node) is not None


def _changes(binding: Binding) -> bool:
    """Tell whether the name becomes something else than a sum at ``binding``: ``total = total / len(loader)``."""
    if _adds(binding):
        return False
    value = binding.value if binding.written is None else binding.written
    computes = value is not None and any(isinstance(n, cst.BinaryOperation) for n in walk(value))
    return isinstance(binding.node, cst.AugAssign) or computes  # by another operator
