"""Full batches of sessions: arrays that every run feeds whole, and data that are part of the graph."""

from __future__ import annotations

import libcst as cst

from dlrun.port.facts import Feed
from dlrun.port.facts.models.kinds_tensorflow import plain
from dlrun.port.facts.numbers.computed import computed
from dlrun.port.facts.torch import LOOPS
from dlrun.port.facts.updates.reductions import Reductions
from dlrun.port.facts.updates.session import SessionGradients
from dlrun.port.feeds.chance import drawn
from dlrun.port.feeds.full.full import FullBatches, body
from dlrun.port.feeds.full.wholes import GRAPH, Wholes
from dlrun.port.feeds.positions.positions import moving, takes_part
from dlrun.port.program.script import dotted, walk

Pair = tuple[cst.BaseExpression, cst.BaseExpression]
_NUMBERS = (cst.Integer, cst.Float, cst.UnaryOperation, cst.List, cst.Tuple)
_GENERATORS = ("default_rng", "RandomState", "Generator", "SeedSequence")  # of random numbers: no arrays
_STATE = ("Variable", "get_variable", "placeholder", "random_normal", "random_uniform", "truncated_normal")


class FullSessions(FullBatches):
    """Finds what the placeholders of a training run get whole; where none is fed, the arrays that the graph holds."""

    gradients: SessionGradients

    def _fed_pairs(self, loop: cst.CSTNode) -> list[Pair]:
        """Return the placeholders that the updates of ``loop`` are fed, with what they are given."""
        runs = [c for c, _ in self.gradients.step_calls if c in set(self.draws.reached(body(loop)))]
        return [pair for run in runs for pair in self.gradients.fed_pairs(run)]

    def _takes(self, loop: cst.CSTNode) -> tuple[Wholes, list[cst.BaseExpression]]:
        given = [value for _, value in self._fed_pairs(loop)]
        wholes = Wholes(self.kinds, loop, given, at_times=self._at_times(loop))
        wholes.lost = wholes.lost or bool(wholes.renewed)
        return wholes, given

    def _whole(self, loop: cst.CSTNode) -> None:
        pairs = self._fed_pairs(loop)
        wholes, _ = self._takes(loop)
        self.graph = self.graph or wholes.graph
        for _, value in pairs:  # lists that are filled before the loop
            origins = [o.node for o in self.flow.origins(value)] if isinstance(value, cst.Name) else []
            if any(isinstance(o, cst.List) and not o.elements and not self.script.inside(o, loop) for o in origins):
                wholes.arrays.setdefault(dotted(value))
        if self.graph is not None:
            return
        if isinstance(loop, LOOPS) and (moved := [name for name in wholes.arrays if moving(loop, name)]):
            self._move(loop, moved)
            return
        there = self._cut_there(wholes, pairs)
        if wholes.arrays or there:
            self._placeholders(wholes, pairs, there)
        elif not pairs:
            self._held(loop)

    def _cut_there(self, wholes: Wholes, pairs: list[Pair]) -> list[cst.BaseExpression]:
        """Return what is cut where it stands in a dict: lists, what an object keeps, all data of a dict made before.

        ``wholes`` no longer holds the names among these.
        """
        found: list[cst.BaseExpression] = []
        found += [value for _, value in pairs if isinstance(value, cst.List) and _is_array(value)]
        early: set[str] = set()
        for _, value in pairs:
            if isinstance(value, cst.List):
                continue
            kept = [n for n in walk(value) if isinstance(n, cst.Attribute) and self._is_kept(n, wholes)]
            names = {n.value for n in walk(value) if isinstance(n, cst.Name)} & wholes.arrays.keys()
            before = not self.script.inside(value, wholes.loop)
            self.graph = self.graph or next((n for n in kept if GRAPH.search(n.attr.value)), None)
            if kept or (names and before):
                found.append(value)
                early |= names
        late = {n.value for _, value in pairs if value not in found for n in walk(value) if isinstance(n, cst.Name)}
        for name in early - late:
            del wholes.arrays[name]
        return found

    def _is_kept(self, node: cst.Attribute, wholes: Wholes) -> bool:
        """Tell whether ``node`` is an array that ``self`` keeps: set before the loop, and no number."""
        made = wholes.held.set_by(node)
        if made is None or any(self.script.inside(n, wholes.loop) and not self._is_at_times(n, wholes) for n in made):
            return False
        if any(isinstance(o.node, cst.Param) for o in self.flow.origins(node)):
            self.uncut = self.uncut or node  # nothing tells what it is
        return not wholes.plain(node)

    def _is_at_times(self, node: cst.CSTNode, wholes: Wholes) -> bool:
        return any(self.script.inside(node, test) for test in wholes.at_times)

    def _draws_aside(self, loop: cst.For | cst.While) -> bool:
        """Tell whether ``loop`` feeds what an object keeps, and draws it anew at times alone."""
        if super()._draws_aside(loop):
            return True
        kept = self._at_times(loop) and self._cut_there(self._takes(loop)[0], self._fed_pairs(loop))
        return bool(kept)

    def _is_drawn(self, value: cst.BaseExpression, wholes: Wholes) -> bool:
        """Tell whether chance has made what is in ``value``."""
        parts = [n for n in walk(value) if isinstance(n, (cst.Name, cst.Attribute))]
        return any(drawn(self.flow, o.node) for n in parts for o in self.flow.origins(n))

    def _placeholders(self, wholes: Wholes, pairs: list[Pair], there: list[cst.BaseExpression]) -> None:
        """Note arrays that the runs of a loop feed: names are cut before the loop, others ``there`` in the dict."""
        code = self.script.code
        given = [(key, code(value) if value in there else _array_in(value, wholes)) for key, value in pairs]
        named = ((name, array) for key, array in given for name in self.gradients.called(key))
        how = self._reductions({name: array for name, array in named if name and array})
        self.part = self.part or self._entry(how)
        self.full_batch = True
        if wholes.arrays:
            inside = any(self.script.inside(n, wholes.loop) for name in wholes.arrays for n in wholes.uses(name))
            if not inside and self.script.function_of(wholes.loop) is wholes.home.node:
                self.uncut = next((n for name in wholes.arrays for n in wholes.uses(name)), None)
            picks = self._picks(wholes) if not how.sums else ()  # a sum is evaluated with a rank's share alone
            self.found[wholes.loop] = Feed(
                self._place(wholes), "arrays", tuple(wholes.arrays), tuple(wholes.drawn), picks, gathered=how
            )
        chance = tuple(code(value) for value in there if self._is_drawn(value, wholes))
        for value in there:  # rank 0's, also of what is made of what chance has made
            self.found[value] = Feed(value, "array", drawn=chance, gathered=how)

    def _entry(self, how: Reductions) -> cst.Subscript | None:
        """Return what a loss takes of some samples alone: ``pred[0, :] - pred[1, :]`` at two boundaries."""
        for node in computed(self.flow, self.gradients.losses()).nodes:
            for n in walk(node):
                if not isinstance(n, cst.Subscript) or how.of(n.value).kind != "each":
                    continue
                index = n.slice[0].slice
                one = len(n.slice) > 1 and isinstance(index, cst.Index) and isinstance(index.value, cst.Integer)
                if one or takes_part(self.flow, index):
                    return n
        return None

    def _held(self, loop: cst.CSTNode) -> None:
        """Note the arrays that the graph holds as constants, where all that uses them comes after them."""
        names: dict[str, cst.CSTNode] = {}
        seen: set[cst.CSTNode] = set()
        for loss in self.gradients.losses():
            self._constants(loss, names, seen)
        if any(GRAPH.search(name) for name in names) or not names:
            return
        made = sorted(names.values(), key=lambda n: self.script.order[n])
        uses = [n for n in self.script.of(cst.Name) if n.value in names]
        uses = [n for n in uses if not isinstance(self.script.parents[n], cst.AssignTarget)]
        inside = {n for node in made for n in walk(node)}
        late = all(self.script.order[n] > self.script.order[made[-1]] for n in uses if n not in inside)
        block = {self.script.suite(node) for node in made}
        if late and len(block) == 1:
            how = self._reductions({name: name for name in names})
            self.full_batch = True
            self.found[loop] = Feed(made[-1], "arrays", tuple(names), gathered=how)

    def _constants(self, node: cst.CSTNode, names: dict[str, cst.CSTNode], seen: set[cst.CSTNode]) -> None:
        """Add the names of the arrays that ``node`` is computed from, with the assignments that make them."""
        for n in walk(node):
            if not isinstance(n, cst.Name) or n in seen:
                continue
            seen.add(n)
            bindings = self.script.bindings_of(n)
            for binding in bindings:
                if binding.how != "assign" or binding.value is None or binding.value in seen:
                    continue
                seen.add(binding.value)
                if self._is_data(binding.value):
                    if len(bindings) == 1:
                        names.setdefault(n.value, binding.node)
                elif plain(self._called(binding.value)).rsplit(".", 1)[-1] not in _STATE:
                    self._constants(binding.value, names, seen)

    def _is_data(self, value: cst.BaseExpression) -> bool:
        """Tell whether ``value`` is an array of numbers: a list, one of NumPy's, or a constant made of these."""
        if isinstance(value, cst.List):
            return _is_array(value)
        called = plain(self._called(value))
        if called in ("tensorflow.constant", "tensorflow.convert_to_tensor") and isinstance(value, cst.Call):
            return bool(value.args) and self._is_data(value.args[0].value)
        draws = called.rsplit(".", 1)[-1] in _GENERATORS
        return called.startswith("numpy.") and not draws and bool(value.args) if isinstance(value, cst.Call) else False

    def _called(self, value: cst.CSTNode) -> str:
        return self.script.name_of(value.func) if isinstance(value, cst.Call) else ""

    def _reductions(self, arrays: dict[str, str]) -> Reductions:
        """Return how the graph's losses gather samples; ``arrays`` are those behind names of placeholders or arrays."""

        def data(node: cst.CSTNode) -> str | None:
            return arrays.get(dotted(node)) if isinstance(node, (cst.Name, cst.Attribute)) else None

        return Reductions(self.kinds, self.gradients.losses(), data, lambda node: False)


def _array_in(value: cst.BaseExpression, wholes: Wholes) -> str | None:
    names = [n.value for n in walk(value) if isinstance(n, cst.Name) and n.value in wholes.arrays]
    return names[0] if names else "[]" if isinstance(value, cst.List) else None


def _is_array(value: cst.List) -> bool:
    """Tell whether ``value`` is a list of at least two numbers, or of rows of numbers."""
    return len(value.elements) > 1 and all(isinstance(e.value, _NUMBERS) for e in value.elements)
