"""Reads a PyTorch script: where gradients are made, what reads them, and which updates use them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import libcst as cst

from dlrun.port.facts import Step
from dlrun.port.facts.models.kinds import Kinds
from dlrun.port.facts.updates import derived
from dlrun.port.facts.updates.hand_rates import disturbs, rates_in
from dlrun.port.facts.updates.outer import places
from dlrun.port.facts.updates.rewritten import taken_apart
from dlrun.port.program.flow import Flow
from dlrun.port.program.script import Script, calls_method, dotted, names_in, walk

STEPS = {"step", "first_step", "second_step"}
LOOPS = (cst.For, cst.While)
_IN_PLACE = ("add_", "sub_", "copy_", "addcmul_", "addcdiv_")
CLIPS = re.compile(r"clip_grad|clip_gradient|unscale_$|grad_norm")


class Gradients:
    """Collects the facts of one script; each method answers one question."""

    kinds_class = Kinds

    def __init__(self, flow: Flow) -> None:
        """Find the functions that lead to an optimizer step or to a backward pass."""
        self.flow = flow
        self.script: Script = flow.script
        for function in [f for fs in flow.methods.values() for f in fs]:
            flow.callers(function)
        flow.callers(self.script.module)
        self.kinds = self.kinds_class(flow)
        self.backwards = [c for c in self.script.calls if self._is_backward(c)]
        self.step_calls = list(self._step_calls())
        self._inner = list(self._inner_steps())
        self.step_calls = [each for each in self.step_calls if each not in self._inner]
        self.updates = list(self._manual_updates())
        self.leads_to_step = self._leading_to(self._single)
        self.leads_to_backward = self._leading_to(self.backwards)
        self._runs_backward: dict[cst.CSTNode, bool] = {}

    # -- gradients ----------------------------------------------------------------------------------------------

    def _is_backward(self, call: cst.Call) -> bool:
        name = self.script.name_of(call.func)
        if "backward" in self.script.seen.get(call, ()):
            return True
        return (calls_method(call, "backward") and not name.startswith("torch.autograd.Function")) or (
            name == "torch.autograd.backward"
        )

    def _inner_steps(self) -> Iterator[tuple[cst.Call, cst.BaseExpression]]:
        """Yield the steps that adapt a copy of the model, made anew in each iteration of a loop that updates another.

        So meta-learning does: each rank adapts copies of its own to its own tasks.
        """
        made = {call: [o.node for o in self.flow.origins(optimizer)] for call, optimizer in self.step_calls}
        for call, optimizer in self.step_calls if len(made) > 1 else ():
            copied = [copy for each in made[call] for copy in self._copies(each)]
            for other, optimizers in made.items():
                above = self.script.above(other)
                loop = next((up for up in above if isinstance(up, (cst.For, cst.While, cst.FunctionDef))), None)
                if not isinstance(loop, (cst.For, cst.While)) or any(self._happens(o, loop) for o in optimizers):
                    continue
                anew = [*made[call], *copied, call]
                if other is not call and copied and optimizers and all(self._happens(n, loop) for n in anew):
                    yield call, optimizer
                    break

    def _copies(self, optimizer: cst.CSTNode) -> list[cst.CSTNode]:
        """Return the deep copies for which an optimizer is made; none where it is made for anything else, too."""
        given = (n.func for n in walk(optimizer) if isinstance(n, cst.Call) and calls_method(n, "parameters"))
        owners = [func.value for func in given if isinstance(func, cst.Attribute)]
        found = [o.node for owner in owners for o in self.flow.origins(owner)]
        deep: list[cst.CSTNode] = [
            n for n in found if isinstance(n, cst.Call) and self.script.name_of(n.func) == "copy.deepcopy"
        ]
        return deep if len(deep) == len(found) else []

    def _happens(self, node: cst.CSTNode, loop: cst.For | cst.While) -> bool:
        """Tell whether ``node`` happens in each iteration of ``loop``, in it or in a function that is called in it."""
        if self.script.inside(node, loop.body):
            return True
        function = self.script.function_of(node)
        calls = self.flow.callers(function) if isinstance(function, cst.FunctionDef) else ()
        return bool(calls) and all(self.script.inside(c, loop.body) for c in calls)

    def is_search(self, call: cst.CSTNode) -> bool:
        """Tell whether ``call`` makes updates until it is content, by gradients that nothing here computes."""
        return False

    def _step_calls(self) -> Iterator[tuple[cst.Call, cst.BaseExpression]]:
        """Yield each call that lets an optimizer step, with the expression of that optimizer."""
        for call in self.script.calls:
            if not isinstance(call.func, cst.Attribute) or call.func.attr.value not in STEPS:
                continue
            owner = self.script.class_of(call)
            if owner is not None and self.kinds.of_bases(self.flow.bases(owner)) in ("optimizer", "scheduler"):
                continue  # an optimizer written out in the script: what matters is where it is stepped
            receiver = call.func.value
            if self.kinds.is_optimizer(receiver) or "step" in self.script.seen.get(call, ()):
                yield call, receiver if self.kinds.of(receiver) != "scaler" else call.args[0].value
            elif (
                call.args and self.kinds.of(receiver) in ("scaler", "") and self.kinds.is_optimizer(call.args[0].value)
            ):
                yield call, call.args[0].value

    def _manual_updates(self) -> Iterator[cst.CSTNode]:
        """Yield statements that change parameters from their ``.grad`` without an optimizer."""
        for node in self.script.nodes if self.script.named("grad") else ():
            owner = self.script.class_of(node) if isinstance(node, (cst.AugAssign, cst.Assign, cst.Expr)) else None
            if owner is not None and self.kinds.of_bases(self.flow.bases(owner)) == "optimizer":
                continue
            if self.step_calls and disturbs(self.script, node, self.holds_gradient):
                continue
            if self._takes_off(node) or (not self.step_calls and derived.moved(self.script, node)):
                yield node

    def _takes_off(self, node: cst.CSTNode) -> bool:
        """Tell whether the statement ``node`` changes something by its own gradient: ``w -= lr * w.grad``."""
        match node:
            case cst.AugAssign(target=target, value=value):
                return self._moves(target, value)
            case cst.Assign(targets=[cst.AssignTarget(target=target), *_], value=value):
                return self._moves(target, value)
            case cst.Expr(value=cst.Call(func=cst.Attribute(value=target, attr=method)) as call):
                return method.value in _IN_PLACE and any(self._moves(target, a.value) for a in call.args)
        return False

    def _moves(self, target: cst.CSTNode, value: cst.CSTNode) -> bool:
        """Tell whether ``value`` reads the gradient of what ``target`` names: ``w`` or ``w.data``, and ``w.grad``."""
        name = dotted(target)
        return bool(name) and any(
            isinstance(n, cst.Attribute)
            and n.attr.value == "grad"
            and name in (dotted(n.value), f"{dotted(n.value)}.data")
            for n in walk(value)
        )

    def reads_grad(self, node: cst.CSTNode) -> bool:
        """Tell whether ``node`` reads a ``.grad``, or clips or unscales gradients."""
        for n in walk(node):
            if isinstance(n, cst.Attribute) and n.attr.value == "grad":
                user = self.script.parents[n]
                foreign = self.script.name_of(n)  # torch.autograd.grad is no gradient of a parameter
                written = isinstance(user, cst.AssignTarget) or calls_method(self.script.parents.get(user, n), "zero_")
                if not written and (not foreign or foreign.startswith(".")):
                    return True
            elif isinstance(n, cst.Call):
                last = n.func.attr.value if isinstance(n.func, cst.Attribute) else dotted(n.func)
                if CLIPS.search(last):
                    return True
                functions = [f for f in self.flow.targets(n) if not self.script.inside(n, f)]
                if any(map(self._reads_inside, functions)):
                    return True
        return False

    def _reads_inside(self, function: cst.FunctionDef, deep: int = 2) -> bool:
        """Tell whether a function or a method, or what it calls, reads gradients and makes none: ``self.clip()``."""
        inside = list(walk(function.body))
        if any(calls_method(n, "backward", "step") for n in inside):
            return False
        for n in inside:
            grad = isinstance(n, cst.Attribute) and n.attr.value == "grad"
            if grad or (isinstance(n, cst.Name) and CLIPS.search(n.value)):
                return True
            called = self.flow.targets(n) if isinstance(n, cst.Call) and deep else ()
            if any(self._reads_inside(f, deep - 1) for f in called if f is not function):
                return True
        return False

    def _leading_to(self, ends: Sequence[cst.CSTNode]) -> set[cst.CSTNode]:
        """Return the functions that run one of ``ends``, directly or through other functions."""
        found: set[cst.CSTNode] = set()
        todo = [self.script.function_of(e) for e in ends]
        while todo:
            function = todo.pop()
            if function in found or isinstance(function, cst.Module):
                continue
            found.add(function)
            todo.extend(self.script.function_of(c) for c in self.flow.callers(function))
        return found

    def _runs(self, node: cst.CSTNode, ends: list[cst.CSTNode], functions: set[cst.CSTNode]) -> bool:
        for n in walk(node):
            if n in ends:
                return True
            if isinstance(n, cst.Call) and functions and any(t in functions for t in self.flow.targets(n)):
                return True
        return False

    def trains_by(self, end: cst.CSTNode, function: cst.FunctionDef, call: cst.Call) -> bool:
        """Tell whether the update ``end`` in ``function`` may happen when ``call`` runs it, by what it hands on."""
        return True

    def runs_step(self, node: cst.CSTNode) -> bool:
        """Tell whether running ``node`` may run an optimizer step, and not a whole search."""
        return self._runs(node, self._single, self.leads_to_step)

    @property
    def _single(self) -> list[cst.CSTNode]:
        """The updates that are one step each."""
        return [*(c for c, _ in self.step_calls if not self.is_search(c)), *self.updates]

    def runs_backward(self, node: cst.CSTNode) -> bool:
        """Tell whether running ``node`` may run a backward pass."""
        if node not in self._runs_backward:
            self._runs_backward[node] = self._runs(node, list(self.backwards), self.leads_to_backward)
        return self._runs_backward[node]

    def first_reader(self, node: cst.CSTNode) -> cst.CSTNode:
        """Return the statement before which gradients must be averaged so that the update at ``node`` sees the mean.

        From the statement of ``node`` backwards to the backward pass: in its own block and, across ``if`` and
        ``with``, in the blocks around it, up to the loop or function.
        """
        level = anchor = self.script.statement_of(node)
        while True:
            block = self.script.block(level)
            for previous in reversed(block[: block.index(level)]):
                if self.runs_backward(previous):
                    return anchor
                if self.reads_grad(previous):
                    anchor = previous
            up = self.script.parents[level]
            while not isinstance(up, (cst.BaseCompoundStatement, cst.Module)):
                up = self.script.parents[up]
            if not isinstance(up, (cst.If, cst.With, cst.Try)):
                return anchor
            level = up

    def steps(self) -> tuple[Step, ...]:
        """Return every update of the weights, in source order; one averaging serves several at one statement."""
        found: list[Step] = []
        for call, optimizer in self.step_calls:
            closure = self._closure(call, optimizer)
            before = self.script.statement_of(call) if closure else self.first_reader(call)
            what = self.script.code(optimizer)
            if before not in self.script.block(self.script.statement_of(call)):
                what = self._parameters_read(before) or what  # further out: the optimizer may not be there
            further = [] if closure else places(self, call, optimizer)
            kept = [] if closure else [(b, self.script.code(optimizer)) for b in taken_apart(self, call, optimizer)]
            made = None if closure else self._made_by_autograd(call)
            if made is not None:
                before, what = made
            at = [*(pair for pair in kept if pair[0] is not before), *(further or [(before, what)])]
            found.extend(Step(call, optimizer, w, b, closure, self._within(call, b)) for b, w in at)
        done: set[cst.CSTNode] = set()
        for update in self.updates:
            what, outer = self.owner(update)
            before = self.first_reader(outer)
            if before not in done:
                done.add(before)
                found.append(Step(update, None, what, before))
        return tuple(found)

    def _made_by_autograd(self, step: cst.CSTNode) -> tuple[cst.CSTNode, str] | None:
        """Return the line behind ``gs = torch.autograd.grad(loss, ws)`` of which gradients are made, and ``gs``."""
        line = self.script.statement_of(step)
        block = self.script.block(line)
        above = block[: block.index(line)]
        for at, statement in enumerate(above):
            match statement:
                case cst.Assign(targets=[cst.AssignTarget(target=cst.Name(name))], value=cst.Call() as call):
                    graph = any(arg.keyword is not None and arg.keyword.value == "create_graph" for arg in call.args)
                    behind = above[at + 1 :]
                    made = any(self._sets_gradients(n, name) for later in behind for n in walk(later))
                    if self.script.name_of(call.func) == "torch.autograd.grad" and made and not graph:
                        return behind[0], name
        return None

    def _sets_gradients(self, node: cst.CSTNode, name: str) -> bool:
        """Tell whether ``node`` goes through ``name`` and sets gradients: ``for p, g in zip(ps, gs): p.grad = g``."""
        if not isinstance(node, cst.For) or name not in names_in(node.iter):
            return False
        targets = (t.target for n in walk(node.body) if isinstance(n, cst.Assign) for t in n.targets)
        return any(isinstance(target, cst.Attribute) and target.attr.value == "grad" for target in targets)

    def _within(self, call: cst.Call, before: cst.CSTNode) -> cst.BaseExpression | None:
        """Return what reads gradients that its statement makes: ``opt.step()`` of ``loss.backward(), opt.step()``."""
        if before is not self.script.statement_of(call) or not isinstance(before, cst.BaseSmallStatement):
            return None
        if not any(n in self.backwards for n in walk(before) if isinstance(n, cst.Call)):
            return None
        row = next((up for up in self.script.above(call) if isinstance(up, (cst.Tuple, cst.List))), None)
        elements = [element.value for element in row.elements] if row is not None else [call]
        at = next(i for i, element in enumerate(elements) if self.script.inside(call, element))
        if self.runs_backward(elements[at]):
            return call
        first = elements[at]
        for element in reversed(elements[:at]):
            if self.runs_backward(element):
                break
            first = element if self.reads_grad(element) else first
        return first

    def by_hand(self) -> tuple[tuple[cst.CSTNode, tuple[cst.BaseExpression, ...]], ...]:
        """Return the updates without an optimizer, each with the rates that it takes gradients off at."""
        return tuple((update, self._rates(update)) for update in self.updates)

    def _rates(self, update: cst.CSTNode) -> tuple[cst.BaseExpression, ...]:
        """Return the rates of ``update``: what gradients are multiplied with, also where it makes weights decay."""
        made = derived.holds(self.script, update)
        rates = rates_in(update, lambda node: self.holds_gradient(node) or made(node))
        named = {self.script.code(r) for r in rates if isinstance(r, (cst.Name, cst.Attribute))}
        again = (n for n in walk(update) if isinstance(n, (cst.Name, cst.Attribute)) and self.script.code(n) in named)
        return tuple(dict.fromkeys((*rates, *again)))

    def holds_gradient(self, node: cst.CSTNode) -> bool:
        """Tell whether ``node`` is made of a gradient: it reads a ``.grad``."""
        return any(isinstance(n, cst.Attribute) and n.attr.value == "grad" for n in walk(node))

    def _parameters_read(self, statement: cst.CSTNode) -> str:
        """Return the module whose ``parameters()`` the statement goes through, as text."""
        for n in walk(statement):
            if calls_method(n, "parameters"):
                return self.script.code(n.func.value)
        return ""

    def _closure(self, call: cst.Call, optimizer: cst.BaseExpression) -> cst.FunctionDef | None:
        given = (self.flow.definition(arg.value) for arg in call.args if arg.value is not optimizer)
        functions = [*self.flow.targets(call), *(f for f in given if isinstance(f, cst.FunctionDef))]
        return next((f for f in functions if self.runs_backward(f.body)), None)

    def owner(self, update: cst.CSTNode) -> tuple[str, cst.CSTNode]:
        """Return what owns the gradients of a manual update, and the outermost statement of the update."""
        for up in self.script.above(update):
            if isinstance(up, (cst.FunctionDef, cst.Module)):
                break
            if isinstance(up, cst.For):
                for call in walk(up.iter):
                    if calls_method(call, "parameters"):
                        return self.script.code(call.func.value), up
                if isinstance(up.iter, (cst.Name, cst.Attribute, cst.List, cst.Tuple)) and any(
                    isinstance(n, cst.Attribute) and n.attr.value == "grad" and dotted(n.value) == dotted(up.target)
                    for n in walk(up.body)
                ):
                    return self.script.code(up.iter), up
                name = derived.moved(self.script, update)
                if name and (through := derived.gone_through(self.script, up, name)):
                    return through, up
        block = self.script.block(update)
        names = dict.fromkeys(
            dotted(n.value)
            for s in block
            if s in self.updates
            for n in walk(s)
            if isinstance(n, cst.Attribute) and n.attr.value == "grad" and dotted(n.value)
        )
        if not names:
            moves = (derived.moved(self.script, s) for s in block if s in self.updates)
            names = dict.fromkeys(filter(None, moves))
        first = next(s for s in block if s in self.updates)
        return "[" + ", ".join(names) + "]", first

    def constructors(self) -> tuple[cst.Call, ...]:
        """Return the calls that make the optimizers: known classes, and whatever made what is stepped."""
        known = [c for c in self.script.calls if self.kinds.of_call(c) == "optimizer"]
        for _, optimizer in self.step_calls:
            for origin in self.flow.origins(optimizer):
                made = origin.node
                own = isinstance(made, cst.Call) and origin.whole and not self.kinds.gives_class(made)
                if own and isinstance(made, cst.Call) and not self.kinds.of_call(made):
                    known.append(made)
        inner = {o.node for _, optimizer in self._inner for o in self.flow.origins(optimizer)}
        return tuple(c for c in dict.fromkeys(known) if c not in inner)
