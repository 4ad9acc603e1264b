"""Numbers of a rank that steer its training: what changes weights, and what weighs the terms of later losses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from dlrun.port.edits import Doubt, Edit
from dlrun.port.facts import Facts
from dlrun.port.facts.models.moving import of_numbers
from dlrun.port.facts.numbers.computed import reaching
from dlrun.port.facts.taint import Taint, differentiable, leads_back, plain_numbers
from dlrun.port.facts.updates.rates import set_in_group
from dlrun.port.facts.updates.weights import CHANGES, is_held, is_weight
from dlrun.port.insert import expression
from dlrun.port.placement.interpret import Interpreter
from dlrun.port.placement.shown import Shown
from dlrun.port.placement.values import Kind
from dlrun.port.program.script import dotted, walk
from dlrun.port.steps.counts.counters import runs_inside
from dlrun.port.steps.metrics.divergence import chosen
from dlrun.port.steps.metrics.in_place import is_same, tensor_of
from dlrun.port.steps.metrics.local_states import runs_in
from dlrun.port.steps.metrics.queues import fills, of_its_own

_KEEPS = ("append", "extend", "appendleft", "copy_", "fill_")
_CLIPS = ("clip_grad_norm_", "clip_grad_value_", "clip_grad_norm")
_WEIGHTS = "what changes the weights is the same on all ranks, or their models diverge"


class Steered:
    """Finds the numbers that must be the same on all ranks, and makes them so where they are kept or used."""

    def __init__(self, facts: Facts, run: Interpreter, shown: Shown, wrapped: set[cst.CSTNode]) -> None:
        """Take what the abstract run has found; ``wrapped`` are the nodes that edits make serial already."""
        self.facts, self.script, self.run, self.shown = facts, facts.script, run, shown
        self.wrapped = wrapped
        self.cuts = set(facts.trained.cuts)
        self._follow()

    def _follow(self) -> None:
        trained = Taint(self.script, self.facts.kinds, self.facts.trained.seeds, self.cuts)
        self.trained = trained
        self.plain = plain_numbers(self.script, self.facts.kinds, trained)
        self.graded = differentiable(self.script, self.facts.kinds, trained, self.plain)

    def edits(self) -> Iterator[Edit | Doubt]:
        """Yield what weighs later losses, then what a session is fed, then what changes weights."""
        if not self.facts.episodes:  # what is played between two updates, such as rewards and values, is local
            yield from self._balances()
            yield from self._fed()
        yield from self._changes()

    # -- what is known of a value ----------------------------------------------------------------------------------

    def _serial(self, node: cst.CSTNode) -> bool:
        """Tell whether all ranks hold the same here, or edits make them."""
        values = self.run.seen.get(node, ())
        same = bool(values) and all(v.place.kind is Kind.SAME for v in values)
        return same or not self.wrapped.isdisjoint(walk(node))

    def _weighs_nothing(self, node: cst.CSTNode) -> bool:
        """Tell whether it is serial, or where samples come from: ``cycle(loader)``."""
        places = [v.place.kind for v in self.run.seen.get(node, ())]
        return self._serial(node) or (bool(places) and all(kind is Kind.SHARD for kind in places))

    def _number(self, node: cst.CSTNode) -> bool:
        values = self.run.seen.get(node, ())
        return (bool(values) and any(v.scalar for v in values)) or self.run.shards.number(node)

    def _together(self, node: cst.CSTNode) -> bool:
        """Tell whether all ranks come to ``node``, or none."""
        tests = self.run.diverged_at.get(self.script.statement_of(node), ())
        return all(test in self.shown.agreed for test in tests)

    def _leads_back(self, value: cst.CSTNode, but: Iterable[cst.CSTNode] = ()) -> bool:
        """Tell whether a loss is made of ``value``, or of what holds it, in another way than through ``but``."""
        return leads_back(Taint(self.script, self.facts.kinds, [value], [*self.cuts, *but]))

    def _averaged(self, value: cst.BaseExpression, why: str) -> Edit:
        self.cuts.add(value)
        self._follow()
        return Edit(value, why, lambda node: expression("torch/average", {"value": node}, dl=self.facts.alias))

    # -- what weighs later losses ----------------------------------------------------------------------------------

    def _balances(self) -> Iterator[Edit | Doubt]:
        """Average what balances the terms of later losses, or each rank would train with weights of its own.

        Before:
            model, seen = torch.nn.Linear(2, 1), 1.0
            for x, y in loader:
                error = (model(x) - y).pow(2).mean()
                seen = 0.9 * seen + 0.1 * error.item()
                (error / seen + model.bias.abs().mean()).backward()
                opt.step()

        After:
            model, seen = torch.nn.Linear(2, 1), 1.0
            for x, y in loader:
                error = (model(x) - y).pow(2).mean()
                seen = dl.average(0.9 * seen + 0.1 * error.item())
                (error / seen + model.bias.abs().mean()).backward()
                opt.step()
        """
        found = list(_kept(self.facts))
        self.cuts.update(value for _, _, value in found if self._serial(value))
        self._follow()
        kept = [k for k in found if self.plain(k[2]) and not self.graded(k[2]) and not self._weighs_nothing(k[2])]
        left = []
        for node, box, value in sorted(kept, key=lambda k: len(_loops(self.facts, k[0]))):
            if not self._number(value) or not self._together(node):
                left.append((node, box, value))
            elif self.plain(value) and self._leads_back(value):
                yield self._averaged(value, "weighs later losses: the same on all ranks")
                yield from self._is_no_mean(node, box, value)
        samples = list(chosen(self.facts))
        for node, box, value in left:  # of which no number that is averaged by now is made
            if any(self.script.inside(made, node) for made in samples) or _deals(self.facts, value):
                continue
            if self.plain(value) and self._leads_back(value, samples):
                yield from self._told(node, box, value)

    def _is_no_mean(self, node: cst.CSTNode, box: cst.BaseExpression, value: cst.BaseExpression) -> Iterator[Doubt]:
        """Yield the doubt about what is averaged, and is made of a part of each batch as no mean and no sum is."""
        places = [v.place for v in self.run.seen.get(value, ())]
        bent = any(p.kind in (Kind.UNKNOWN, Kind.MIX) or "bent" in p.adds for p in places)
        known = self._is_linear(value, box) or any(of_numbers(self.facts, lambda n: n is value))
        if self.run.shards.parts and bent and not known:
            why = f"{self.script.code(box)}, which weighs later losses, is the mean of what ranks make of their parts"
            write = f"make it of {self.facts.alias}.average() of the losses that it is made of"
            yield Doubt(
                node,
                f"{why} of a batch: not what the serial script makes of all of it",
                "medium",
                write,
                name="unknown-placement",
            )

    def _is_linear(self, value: cst.CSTNode, box: cst.BaseExpression) -> bool:
        """Tell whether the mean of what ranks make is the serial script's: ``k + 0.1 * loss.item()`` for ``k``.

        What ``box`` holds is the same on all ranks, by the averages of all that goes into it.
        """
        match value:
            case cst.BinaryOperation(left=left, operator=cst.Add() | cst.Subtract(), right=right):
                return self._is_linear(left, box) and self._is_linear(right, box)
            case cst.BinaryOperation(left=left, operator=cst.Multiply(), right=right):
                sides = ((left, right), (right, left))
                return any(self._is_alike(one, box) and self._is_linear(other, box) for one, other in sides)
            case cst.BinaryOperation(left=left, operator=cst.Divide(), right=right):
                return self._is_alike(right, box) and self._is_linear(left, box)
            case cst.Call(func=cst.Attribute(value=of, attr=cst.Name("item" | "detach" | "numpy")), args=[]):
                return self._is_linear(of, box)
            case cst.Call(func=cst.Name("float"), args=[cst.Arg(value=of)]):
                return self._is_linear(of, box)
        places = [v.place for v in self.run.seen.get(value, ())]
        mean = bool(places) and all(p.kind is Kind.ENTRY and not p.adds & {"bent", "summed"} for p in places)
        return mean or self._is_alike(value, box)

    def _is_alike(self, value: cst.CSTNode, box: cst.BaseExpression) -> bool:
        """Tell whether nothing goes into ``value`` but what is the same on all ranks, and what ``box`` holds."""
        match value:
            case cst.Name() | cst.Attribute():
                return is_same(self.facts, value, box) or self._serial(value)
            case cst.Integer() | cst.Float():
                return True
            case cst.BinaryOperation(left=left, right=right):
                return self._is_alike(left, box) and self._is_alike(right, box)
            case cst.Call(func=cst.Name("min" | "max" | "abs" | "float"), args=args):
                return all(self._is_alike(arg.value, box) for arg in args)
        return self._serial(value)

    def _told(self, node: cst.CSTNode, box: cst.BaseExpression, value: cst.BaseExpression) -> Iterator[Doubt]:
        name, dl = self.script.code(box), self.facts.alias
        if isinstance(box, cst.Subscript) and self.facts.unequal(box.slice[0]):
            return  # entries of its own samples: own_states tells
        if fills(node):
            yield of_its_own(node, dotted(tensor_of(box) or box))
            return
        mean = f"{dl}.average({self.script.code(value)})"
        write = mean if isinstance(node, cst.Call) else f"{name} = {dl}.average({name})"
        why = f"{name}, which weighs later losses, is made of local samples"
        yield Doubt(node, why, "high", f"{write} where all ranks come to it")

    def _fed(self) -> Iterator[Edit]:
        """Yield the means of what a session fetched and a script makes numbers of, which later runs feed in."""
        given = [value for _, value in getattr(self.facts, "fed", ())]
        for node, _, value in _kept(self.facts) if given else ():
            if self._serial(value) or not self.run.seen.get(value) or not self.facts.unequal(value):
                continue  # the same, or never run but to draw this rank's samples
            if not self._number(value) or not self._together(node):
                continue
            follows = Taint(self.script, self.facts.kinds, [value], self.cuts)
            if any(follows(n) for n in given):
                yield self._averaged(value, "fed into later losses: the same on all ranks")

    # -- what changes weights --------------------------------------------------------------------------------------

    def _changes(self) -> Iterator[Edit | Doubt]:
        """Average what is made of local losses and changes weights, gradients, or what an optimizer is set to.

        Before:
            model = torch.nn.Linear(2, 1)
            for x, y in loader:
                loss = (model(x) - y).pow(2).mean()
                loss.backward()
                opt.step()
                for p in model.parameters():
                    p.data.mul_(1 - 0.1 * loss.item())

        After:
            model = torch.nn.Linear(2, 1)
            for x, y in loader:
                loss = (model(x) - y).pow(2).mean()
                loss.backward()
                opt.step()
                for p in model.parameters():
                    p.data.mul_(dl.average(1 - 0.1 * loss.item()))
        """
        for node in self.script.nodes:
            for value in _changing(self.facts, node):
                yield from self._of_a_part(value)
                if self._serial(value) or not self.trained(value):
                    continue
                self.shown.lost, self.shown.sink = [], None
                for wrap in self.shown.wraps(value, True) or ():
                    number = wrap.node
                    name = self.script.code(number)
                    if self.graded(number):
                        continue  # what gradients are made of, which are averaged themselves
                    if not self.plain(number) or not self._together(node):
                        write = f"{self.facts.alias}.average({name}) where every rank comes by"
                        yield Doubt(number, f"{name} is local: {_WEIGHTS}", "high", write)
                    elif number not in self.cuts:
                        yield self._averaged(number, _WEIGHTS)

    def _of_a_part(self, value: cst.BaseExpression) -> Iterator[Doubt]:
        """Yield a doubt where gradients are scaled by how much of the batches this rank has: ``p.grad /= seen``."""
        runs = [v.place for v in self.run.seen.get(value, ()) if v.place.kind is Kind.RUN and not v.place.uniform]
        if self.run.shards.parts and runs and not self.run.shards.episodes:
            name = self.script.code(value)
            why = (
                f"{name} is of this rank's parts of the batches: it scales gradients, or weights, that are of all ranks"
            )
            yield Doubt(value, why, "high", f"{self.facts.alias}.total({name})", name="loss-scale")


def _changing(facts: Facts, node: cst.CSTNode) -> Iterator[cst.BaseExpression]:
    """Yield what ``node`` changes weights, gradients or an optimizer's groups with."""
    if isinstance(node, cst.Call) and (rate := set_in_group(facts, node)) is not None:
        yield rate
        return
    match node:
        case cst.AugAssign(target=target, value=value) if is_held(facts, target):
            yield value
        case cst.Assign(targets=[cst.AssignTarget(target=cst.Subscript() | cst.Attribute() as target)], value=value):
            yield from [value] if is_held(facts, target) else ()
        case cst.Call(func=cst.Attribute(value=target, attr=cst.Name(how)), args=args) if how in CHANGES:
            while isinstance(target, cst.Call) and isinstance(target.func, cst.Attribute):  # p.mul_(a).add_(b)
                target = target.func.value
            yield from (arg.value for arg in args) if is_weight(facts, target) else ()
        case cst.Call(args=[_, cst.Arg(value=value), *_]) if dotted(node.func).rsplit(".", 1)[-1] in _CLIPS:
            yield value


def _kept(facts: Facts) -> Iterator[tuple[cst.CSTNode, cst.BaseExpression, cst.BaseExpression]]:
    """Yield what training keeps of one step for later ones: the line, where to, and the value."""
    for node in facts.script.nodes:
        match node:
            case cst.Assign(targets=[cst.AssignTarget(target=box)], value=value):
                pass
            case cst.AugAssign(target=box, value=value):
                pass
            case cst.Call(func=cst.Attribute(value=box, attr=cst.Name(how)), args=[cst.Arg(value=value)]):
                if how not in _KEEPS:
                    continue
            case _:
                continue
        state = tensor_of(box)
        if state is not None and not _is_handed_on(facts, box) and _is_carried(facts, node, state, value):
            yield node, box, value


def _deals(facts: Facts, value: cst.BaseExpression) -> bool:
    """Tell whether ``value`` is a loader or a sampler, which only goes by weights: of these others tell."""
    return isinstance(value, cst.Call) and facts.script.name_of(value.func).startswith("torch.utils.data.")


def _is_handed_on(facts: Facts, box: cst.BaseExpression) -> bool:
    """Tell whether ``box`` is the hidden state of a local stretch: ``state = detach(state)``."""
    made = (n.targets[0].target for n in facts.states if isinstance(n, cst.Assign))
    return any(is_same(facts, n, box) for target in made for n in walk(target) if isinstance(n, cst.Name))


def _is_carried(facts: Facts, node: cst.CSTNode, box: cst.BaseExpression, value: cst.BaseExpression) -> bool:
    """Tell whether what ``node`` puts into ``box`` is there in later steps, too."""
    script = facts.script
    loop = next(iter(_loops(facts, node)), None)
    if loop is None and (isinstance(box, cst.Name) or not runs_in(facts, node)):
        return False  # of one call of a function
    if isinstance(loop, (cst.For, cst.While)) and runs_inside(facts, loop.body):
        return not _ends_inside(facts, node, box, loop)  # else through an epoch
    around = loop or script.function_of(node)
    last = box.attr if isinstance(box, cst.Attribute) else box
    named = script.named(last.value) if isinstance(last, cst.Name) else []
    alike = named if last is box else [script.parents[n] for n in named]
    places = [n for n in alike if is_same(facts, n, box) and n is not box]
    if not any(not script.inside(n, around) for n in places):
        return False
    first = min((n for n in (box, *places) if script.inside(n, around)), key=lambda n: script.order[n])
    line = script.statement_of(first)
    if line is loop:
        return False  # what it takes of each batch
    sure = isinstance(line, cst.Assign) and _runs_always(facts, line, around)
    anew = sure and not any(is_same(facts, n, box) for n in walk(line.value))  # type: ignore[attr-defined]
    anew = anew or (isinstance(loop, (cst.For, cst.While)) and _is_set_first(facts, loop.body, box) is True)
    return not anew or loop is None


def _is_set_first(facts: Facts, node: cst.CSTNode | None, box: cst.BaseExpression) -> bool | None:
    """Tell whether ``node`` is sure to set ``box`` before it reads it, in both branches of a test; None of neither."""

    def reads(part: cst.CSTNode) -> bool:
        return any(is_same(facts, n, box) for n in walk(part) if isinstance(n, (cst.Name, cst.Attribute)))

    match node:
        case cst.IndentedBlock(body=lines) | cst.SimpleStatementLine(body=lines) | cst.SimpleStatementSuite(body=lines):
            return next((found for n in lines if (found := _is_set_first(facts, n, box)) is not None), None)
        case cst.Else(body=body):
            return _is_set_first(facts, body, box)
        case cst.With(items=items, body=body):
            return False if any(map(reads, items)) else _is_set_first(facts, body, box)
        case cst.If(test=test, body=body, orelse=orelse):
            ways = {_is_set_first(facts, body, box), _is_set_first(facts, orelse, box)}
            return False if reads(test) or len(ways) > 1 else ways.pop()
        case cst.Assign(targets=[cst.AssignTarget(target=target)], value=value) if is_same(facts, target, box):
            return not reads(value)
        case None:
            return None
    return False if reads(node) else None


def _runs_always(facts: Facts, line: cst.CSTNode, around: cst.CSTNode | None) -> bool:
    """Tell whether each iteration of ``around`` runs ``line``: it stands in its block, or under a ``with`` there."""
    for up in facts.script.above(line):
        if up is around:
            return True
        if not isinstance(up, (cst.SimpleStatementLine, cst.SimpleStatementSuite, cst.IndentedBlock, cst.With)):
            return False
    return False


def _ends_inside(facts: Facts, node: cst.CSTNode, box: cst.BaseExpression, loop: cst.CSTNode) -> bool:
    """Tell whether nothing outside of a loop in ``loop`` sees what ``node`` calls ``box`` there: of an evaluation."""
    script = facts.script
    inner = next(up for up in script.above(node) if isinstance(up, (cst.For, cst.While)))
    if inner is loop or not isinstance(box, cst.Name) or not isinstance(node, cst.Assign):
        return False
    uses = [n for n in script.of(cst.Name) if is_same(facts, n, box) and not script.inside(n, inner)]
    uses = [n for n in uses if not isinstance(script.parents[n], cst.AssignTarget)]
    return not any(b.node is node for n in uses for b in reaching(script, n, script.bindings_of(n)))


def _loops(facts: Facts, node: cst.CSTNode) -> list[cst.CSTNode]:
    """Return the training loops around ``node``, innermost first."""
    return [up for up in facts.script.above(node) if up in facts.loops]
