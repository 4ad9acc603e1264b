"""Reads TensorFlow's training steps: gradients of tapes and graphs, what reads them, which updates use them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property

import libcst as cst

from dlrun.port.facts import Step
from dlrun.port.facts.models.kinds_tensorflow import TensorFlowKinds, plain
from dlrun.port.facts.torch import Gradients
from dlrun.port.program.script import Path, calls_method, dotted, walk

_CLIPS = re.compile(r"(^|[._])clip_by_\w+$")  # tf.clip_by_global_norm
_APPLIES = ("apply_gradients", "apply")  # apply() is Keras 3's
_ASSIGNS = ("assign_sub", "assign_add", "assign")


class TapeGradients(Gradients):
    """Collects the updates that tapes feed: ``apply_gradients``, ``minimize``, and ``assign_sub`` by hand."""

    kinds_class = TensorFlowKinds
    kinds: TensorFlowKinds

    def is_gradient(self, node: cst.CSTNode) -> bool:
        """Tell whether ``node`` computes gradients: ``tape.gradient(...)`` or ``tf.gradients(...)``."""
        if not isinstance(node, cst.Call):
            return False
        if plain(self.script.name_of(node.func)) == "tensorflow.gradients":
            return True
        return calls_method(node, "gradient") and self.kinds.is_tape(node.func.value)

    def _is_backward(self, call: cst.Call) -> bool:
        return self.is_gradient(call) or (calls_method(call, "minimize") and self.kinds.is_optimizer(call.func.value))

    def _step_calls(self) -> Iterator[tuple[cst.Call, cst.BaseExpression]]:
        for call in self.script.calls:
            if not isinstance(call.func, cst.Attribute) or call.func.attr.value not in (*_APPLIES, "minimize"):
                continue
            if self.script.name_of(call.func).startswith("scipy."):
                continue
            owner = self.script.class_of(call)
            if owner is not None and self.kinds.of_bases(self.flow.bases(owner)) == "optimizer":
                continue
            if self.kinds.is_optimizer(call.func.value):
                yield call, call.func.value

    def _manual_updates(self) -> Iterator[cst.CSTNode]:
        for call in self.script.calls:
            if calls_method(call, *_ASSIGNS) and call.args:
                owner = self.script.class_of(call)
                if owner is not None and self.kinds.of_bases(self.flow.bases(owner)) == "optimizer":
                    continue
                if self.behind(call.args[0].value) and not self._accumulates(call.func.value):
                    yield self.script.statement_of(call)

    def _accumulates(self, variable: cst.BaseExpression) -> bool:
        """Tell whether ``variable`` only adds up gradients, for an optimizer that applies what it holds."""
        return any(origin.node in self._applied for origin in self.flow.origins(variable))

    @cached_property
    def _applied(self) -> set[cst.CSTNode]:
        """The expressions that gradients come from which optimizers apply, back to where tapes compute them."""
        calls = [call for call, _ in self._step_calls() if calls_method(call, "apply_gradients") and call.args]
        pairs = [call.args[0].value for call in calls]
        gradients = [origin.node for value in pairs for origin in self.flow.origins(value, ("each", 0))]
        return {node for gradient in gradients for node in self._back(gradient)}

    def reads_grad(self, node: cst.CSTNode) -> bool:
        """Gradients are averaged where they are made: nothing reads them before."""
        return False

    def behind(self, node: cst.CSTNode) -> tuple[cst.Call, ...]:
        """Return the calls that compute the gradients which ``node`` is made of, through names, calls and returns."""
        found = [n for n in self._back(node) if isinstance(n, cst.Call) and self.is_gradient(n)]
        return tuple(sorted(found, key=lambda c: self.script.order[c]))

    def _back(self, node: cst.CSTNode) -> set[cst.CSTNode]:
        """Return what ``node`` is made of, back to where gradients are computed, through names, calls and returns."""
        seen: set[cst.CSTNode] = set()
        todo: list[cst.CSTNode] = [node]
        while todo and len(seen) < 3000:
            at = todo.pop()
            if at not in seen:
                seen.add(at)
                todo.extend(() if self.is_gradient(at) else self._onward(at))
        return seen

    def _onward(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        if isinstance(node, cst.Name):
            for binding in self.script.bindings_of(node):
                if binding.how == "assign" and binding.value is not None:
                    yield from self._part(binding.value, binding.path)
                elif binding.how == "param":
                    function = self.script.scopes[binding.node].node
                    if isinstance(function, cst.FunctionDef):
                        given = (self.flow.argument(c, function, binding.name) for c in self.flow.callers(function))
                        yield from (value for value in given if value is not None)
        elif isinstance(node, cst.Attribute) and dotted(node.value) == "self":
            yield from (b.value for b in self.script.kept_bindings(node) if b.value is not None)
        elif isinstance(node, cst.Call):
            if calls_method(node, "compute_gradients") and self.kinds.is_optimizer(node.func.value):
                return  # the optimizer averages what it computes; a gradient within its loss is none of an update
            for target in self.flow.targets(node):
                yield from self.flow.returns(target)
            yield from (arg.value for arg in node.args)
        elif not isinstance(node, (cst.Attribute, cst.FunctionDef, cst.ClassDef, cst.Lambda)):
            from dlrun.port.program.script import children

            yield from children(node)

    def _part(self, value: cst.BaseExpression, path: Path) -> Iterator[cst.CSTNode]:
        """Yield what ``path`` takes of ``value``: of what a function returns, a loss and gradients, one of these."""
        at = path[0] if path else None
        wholes: list[cst.BaseExpression] = []
        if isinstance(at, int) and isinstance(value, cst.Call):
            wholes = [returned for target in self.flow.targets(value) for returned in self.flow.returns(target)]
        for whole in wholes or [value]:
            parts = whole.elements if isinstance(whole, (cst.Tuple, cst.List)) else ()
            written = isinstance(at, int) and at < len(parts) and all(isinstance(p, cst.Element) for p in parts)
            yield parts[at].value if written and isinstance(at, int) else whole

    @property
    def builders(self) -> list[tuple[cst.Call, cst.BaseExpression]]:
        """The calls that apply gradients, with their optimizers."""
        return self.step_calls

    def steps(self) -> tuple[Step, ...]:
        """Return every update of the weights, in source order."""
        script = self.script
        found = [Step(c, o, script.code(o), script.statement_of(c)) for c, o in self.step_calls]
        found += [Step(u, None, self.owner(u)[0], u) for u in self.updates]
        return tuple(sorted(found, key=lambda step: script.order[step.node]))

    def owner(self, update: cst.CSTNode) -> tuple[str, cst.CSTNode]:
        """Return what an update by hand changes, as the text of a list, and the statement of the update."""
        names = [dotted(n.func.value) for n in walk(update) if isinstance(n, cst.Call) and calls_method(n, *_ASSIGNS)]
        return "[" + ", ".join(n for n in names if n) + "]", update

    def holds_gradient(self, node: cst.CSTNode) -> bool:
        """Tell whether ``node`` is made of a gradient that is computed in sight."""
        return bool(self.behind(node))

    @cached_property
    def averages(self) -> tuple[cst.Call, ...]:
        """Return the calls whose gradients reach an update, and so must be averaged."""
        found: dict[cst.Call, None] = {}
        for call, _ in self.builders:
            if any(calls_method(call, name) for name in _APPLIES):
                value = next((a.value for a in call.args if a.keyword is None or "grads" in a.keyword.value), None)
                found.update(dict.fromkeys(self.behind(value) if value is not None else ()))
        for update in self.updates:
            for n in walk(update):
                if isinstance(n, cst.Call):
                    found.update(dict.fromkeys(g for a in n.args for g in self.behind(a.value)))
        return tuple(found)

    def wrapped(self) -> tuple[cst.Call, ...]:
        """Return the constructors of optimizers that average by themselves: their gradients are not in sight.

        What takes the place of an optimizer in one branch is another one, of whatever class.
        """
        return tuple(dict.fromkeys(made for _, optimizer in self._blind for made in self._makers(optimizer)))

    def unaveraged(self) -> cst.Call | None:
        """Return an update by gradients that are not in sight, with an optimizer that is not either."""
        return next((call for call, optimizer in self._blind if not self._makers(optimizer)), None)

    @property
    def _blind(self) -> list[tuple[cst.Call, cst.BaseExpression]]:
        """The updates by gradients that are not in sight, with their optimizers."""
        return [
            (call, optimizer)
            for call, optimizer in self.builders
            if call not in self.clipped
            and (calls_method(call, "minimize") or not call.args or not self.behind(call.args[0].value))
        ]

    @cached_property
    def clipped(self) -> dict[cst.Call, tuple[cst.BaseExpression, ...]]:
        """The updates by gradients that are not in sight, added up in variables, and clipped before: what is clipped.

        An optimizer that averages by itself would see them after the clipping.
        """
        found: dict[cst.Call, tuple[cst.BaseExpression, ...]] = {}
        for call, _ in self.builders:
            applies = any(calls_method(call, name) for name in _APPLIES) and call.args
            if not applies or self.behind(call.args[0].value):
                continue
            clips = [
                n
                for n in self._back(call.args[0].value)
                if isinstance(n, cst.Call) and n.args and _CLIPS.search(dotted(n.func))
            ]
            if clips:
                found[call] = tuple(dict.fromkeys(map(self._clipped_by, clips)))
        return found

    def _clipped_by(self, clip: cst.Call) -> cst.BaseExpression:
        """Return the list of gradients that ``clip`` gets, or of which it gets each in turn: ``for g in acc``."""
        value = clip.args[0].value
        made = self.script.bindings_of(value)
        each = made[0].value if len(made) == 1 and made[0].path[:1] == ("each",) else None
        if isinstance(each, cst.Call) and self.script.name_of(each.func) == "builtins.zip":
            return each.args[0].value if made[0].path == ("each", 0) else value
        return each if each is not None and made[0].path == ("each",) else value

    def _makers(self, optimizer: cst.BaseExpression) -> list[cst.Call]:
        """Return the constructors behind ``optimizer``, if one of them is known to make an optimizer."""
        updates = {call for call, _ in self.builders}  # optimizer = optimizer.minimize(loss) makes none
        made = [o.node for o in self.flow.origins(optimizer) if isinstance(o.node, cst.Call) and o.node not in updates]
        made = [call for call in made if not self.kinds.gives_class(call)]
        return made if any(self.kinds.of_call(call) == "optimizer" for call in made) else []
