"""Reads a PyTorch script: where gradients are made and used, the training loops, what feeds them, what they train."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property

import libcst as cst

from dlrun.port.facts import Feed, Step, Top
from dlrun.port.flow import Flow
from dlrun.port.kinds import Kinds
from dlrun.port.script import Script, dotted, walk

STEPS = {"step", "first_step", "second_step"}
LOOPS = (cst.For, cst.While)
_CLIP = re.compile(r"clip_grad|clip_gradient|unscale_$|grad_norm")
# Calls that draw at random: a loop that feeds on them gives every rank its own samples once the ranks' seeds differ.
_RANDOM = re.compile(
    r"^(torch\.(rand|randn|randint|randperm|multinomial|normal|bernoulli|rand_like|randn_like)|numpy\.random\.\w+|"
    r"random\.\w+)$|\.(uniform_|normal_|random_|exponential_|log_normal_|cauchy_|bernoulli_|choice|permutation|shuffle)$"
)


def calls_method(node: cst.CSTNode, name: str) -> bool:
    """Tell whether ``node`` is a call of a method called ``name``."""
    return isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value == name


class Reader:
    """Collects the facts of one script; each method answers one question."""

    def __init__(self, flow: Flow) -> None:
        """Find the functions that lead to an optimizer step or to a backward pass."""
        self.flow = flow
        self.script: Script = flow.script
        for function in [f for fs in flow.methods.values() for f in fs]:
            flow.callers(function)
        flow.callers(self.script.module)
        self.kinds = Kinds(flow)
        self.backwards = [c for c in self.script.calls if self._is_backward(c)]
        self.step_calls = list(self._step_calls())
        self.updates = [] if self.step_calls else list(self._manual_updates())
        self.leads_to_step = self._leading_to([c for c, _ in self.step_calls] or self.updates)
        self.leads_to_backward = self._leading_to(self.backwards)

    # -- gradients ----------------------------------------------------------------------------------------------

    def _is_backward(self, call: cst.Call) -> bool:
        name = self.script.name_of(call.func)
        return (calls_method(call, "backward") and not name.startswith("torch.autograd.Function")) or (
            name == "torch.autograd.backward"
        )

    def _step_calls(self) -> Iterator[tuple[cst.Call, cst.BaseExpression]]:
        """Yield each call that lets an optimizer step, with the expression of that optimizer."""
        for call in self.script.calls:
            if not isinstance(call.func, cst.Attribute) or call.func.attr.value not in STEPS:
                continue
            owner = self.script.class_of(call)
            if owner is not None and self.kinds.of_bases(self.flow.bases(owner)) in ("optimizer", "scheduler"):
                continue  # an optimizer written out in the script: what matters is where it is stepped
            receiver = call.func.value
            if self.kinds.is_optimizer(receiver):
                yield call, receiver
            elif (
                call.args and self.kinds.of(receiver) in ("scaler", "") and self.kinds.is_optimizer(call.args[0].value)
            ):
                yield call, call.args[0].value

    def _manual_updates(self) -> Iterator[cst.CSTNode]:
        """Yield statements that change parameters from their ``.grad`` without an optimizer."""
        for node in self.script.nodes:
            if not isinstance(node, (cst.AugAssign, cst.Assign, cst.Expr)) or not self.reads_grad(node):
                continue
            if isinstance(node, cst.Expr):
                names = ("add_", "sub_", "copy_", "addcmul_", "addcdiv_")
                if any(calls_method(node.value, name) for name in names):
                    yield node
            elif isinstance(node, cst.AugAssign) or self._targets_parameter(node):
                yield node

    def _targets_parameter(self, node: cst.Assign) -> bool:
        target = dotted(node.targets[0].target)
        return any(
            isinstance(n, cst.Attribute)
            and n.attr.value == "grad"
            and target in (dotted(n.value), f"{dotted(n.value)}.data")
            for n in walk(node.value)
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
                if _CLIP.search(last):
                    return True
                local = self.flow.definition(n.func)
                if (
                    isinstance(local, cst.FunctionDef)
                    and not self.script.inside(n, local)
                    and any(
                        (isinstance(m, cst.Attribute) and m.attr.value == "grad")
                        or (isinstance(m, cst.Name) and _CLIP.search(m.value))
                        for m in walk(local.body)
                    )
                    and not any(calls_method(m, "backward") or calls_method(m, "step") for m in walk(local.body))
                ):
                    return True
        return False

    def _leading_to(self, ends: list[cst.Call] | list[cst.CSTNode] | list[cst.Call | cst.CSTNode]) -> set[cst.CSTNode]:
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

    def runs_step(self, node: cst.CSTNode) -> bool:
        """Tell whether running ``node`` may run an optimizer step."""
        return self._runs(node, [c for c, _ in self.step_calls] or self.updates, self.leads_to_step)

    def runs_backward(self, node: cst.CSTNode) -> bool:
        """Tell whether running ``node`` may run a backward pass."""
        return self._runs(node, list(self.backwards), self.leads_to_backward)

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
            found.append(Step(call, optimizer, self.script.code(optimizer), before, closure))
        done: set[cst.CSTNode] = set()
        for update in self.updates:
            what, outer = self._owner(update)
            before = self.first_reader(outer)
            if before not in done:
                done.add(before)
                found.append(Step(update, None, what, before))
        return tuple(found)

    def _closure(self, call: cst.Call, optimizer: cst.BaseExpression) -> cst.FunctionDef | None:
        for arg in call.args:
            if arg.value is not optimizer:
                function = self.flow.definition(arg.value)
                if isinstance(function, cst.FunctionDef) and self.runs_backward(function):
                    return function
        return None

    def _owner(self, update: cst.CSTNode) -> tuple[str, cst.CSTNode]:
        """Return what owns the gradients of a manual update, and the outermost statement of the update."""
        for up in self.script.above(update):
            if isinstance(up, (cst.FunctionDef, cst.Module)):
                break
            if isinstance(up, cst.For):
                for call in walk(up.iter):
                    if calls_method(call, "parameters"):
                        return self.script.code(call.func.value), up  # type: ignore[attr-defined]
                if isinstance(up.iter, (cst.Name, cst.Attribute, cst.List, cst.Tuple)) and any(
                    isinstance(n, cst.Attribute) and n.attr.value == "grad" and dotted(n.value) == dotted(up.target)
                    for n in walk(up.body)
                ):
                    return self.script.code(up.iter), up
        block = self.script.block(update)
        names = dict.fromkeys(
            dotted(n.value)
            for s in block
            if s in self.updates
            for n in walk(s)
            if isinstance(n, cst.Attribute) and n.attr.value == "grad" and dotted(n.value)
        )
        first = next(s for s in block if s in self.updates)
        return "[" + ", ".join(names) + "]", first

    # -- loops --------------------------------------------------------------------------------------------------

    def training_loops(self) -> list[cst.For | cst.While]:
        """Return the loops that run an update of the weights, in source order."""
        return [n for n in self.script.nodes if isinstance(n, LOOPS) and self.runs_step(n.body)]

    def unreached(self) -> cst.FunctionDef | None:
        """Return a function that trains and that nothing in the file runs, if no chain of calls starts elsewhere."""
        lost: cst.FunctionDef | None = None
        for node in [c for c, _ in self.step_calls] or self.updates:
            for way in self.chains(node)[:64]:
                function = self.script.function_of(way[0])
                if not isinstance(function, cst.FunctionDef) or self._mentioned(function):
                    return None
                lost = lost or function
        return lost

    def _mentioned(self, function: cst.FunctionDef) -> bool:
        """Tell whether ``function``, or the class it is a method of, is named outside itself, or decorated."""
        owner = self.script.class_of(function)
        definition = owner if owner is not None else function
        name = definition.name.value
        if function.decorators:
            return True
        return any(
            not self.script.inside(use, definition) and not isinstance(self.script.parents[use], cst.ImportAlias)
            for use in self._uses(name)
            if use is not definition.name
        )

    def counted(self) -> list[cst.For | cst.While]:
        """Return the innermost loops around an update that run over no loader: their turns are steps."""
        found: dict[cst.For | cst.While, None] = {}
        for node in [c for c, _ in self.step_calls] or self.updates:
            for way in self.chains(node)[:64]:
                loop = next((u for n in reversed(way) for u in self.script.above(n) if isinstance(u, LOOPS)), None)
                if loop is not None and self._draws(loop) and not self._iterates(loop):
                    found.setdefault(loop)
        return list(found)

    def _iterates(self, loop: cst.For | cst.While) -> bool:
        if isinstance(loop, cst.While):
            return False
        name = self.script.name_of(self.source(loop.iter).func) if isinstance(self.source(loop.iter), cst.Call) else ""  # type: ignore[attr-defined]
        return not name.endswith(("range", "count"))

    def _draws(self, node: cst.CSTNode) -> bool:
        """Tell whether running ``node`` draws its own samples: at random, or with next() from a loader."""
        for call in self.reached(node):
            name = self.script.name_of(call.func) or f".{dotted(call.func)}"
            if name == "builtins.next" or _RANDOM.search(name):
                return True
        return False

    def in_training(self, node: cst.CSTNode) -> bool:
        """Tell whether ``node`` runs in a loop, or a function, that also makes gradients."""
        if self.script.function_of(node) in self.leads_to_backward:
            return True
        return any(isinstance(up, LOOPS) and up in self._training for up in self.script.above(node))

    @cached_property
    def _training(self) -> set[cst.CSTNode]:
        return set(self.training_loops())

    def chains(self, node: cst.CSTNode, seen: tuple[cst.CSTNode, ...] = ()) -> list[tuple[cst.CSTNode, ...]]:
        """Return the ways from the outermost frame to ``node``: the calls passed on the way, innermost last."""
        function = self.script.function_of(node)
        if isinstance(function, cst.Module) or function in seen or len(seen) > 12:
            return [(node,)]
        callers = [c for c in self.flow.callers(function) if not self.script.inside(c, function)]
        return [(*way, node) for call in callers for way in self.chains(call, (*seen, function))] or [(node,)]

    def tops(self) -> tuple[Top, ...]:
        """Return the outermost loops before which all that is trained is in sight."""
        found: dict[cst.CSTNode, Top] = {}
        for node in [c for c, _ in self.step_calls] or self.updates:
            for way in self.chains(node)[:64]:
                top = self._top(way, node)
                if top is not None and top.loop not in found:
                    found[top.loop] = top
        return tuple(sorted(found.values(), key=lambda t: self.script.order[t.loop]))

    def _top(self, way: tuple[cst.CSTNode, ...], end: cst.CSTNode) -> Top | None:
        fallback: Top | None = None
        functions = [self.script.function_of(n) for n in way]
        for node in way:
            function = self.script.function_of(node)
            loops = [
                n for n in self.script.above(node) if isinstance(n, LOOPS) and self.script.function_of(n) is function
            ]
            if not loops and node is not way[0] and fallback is None:
                continue
            for loop in reversed(loops):
                models, optimizers = self._in_sight(function, loop, functions)
                alone = optimizers and fallback is None and not self._modules_made_in(functions)
                if models or alone:
                    return Top(loop, (*models, *optimizers), optimizers)
                if optimizers and fallback is None:
                    fallback = Top(loop, optimizers, optimizers)
        return fallback

    def _modules_made_in(self, functions: list[cst.FunctionDef | cst.Module]) -> bool:
        return any(
            b.how == "assign" and b.value is not None and not b.path and self.kinds.of(b.value) == "module"
            for f in functions
            for s in [self.script.scopes[f.body if isinstance(f, cst.FunctionDef) else f]]
            for bs in s.names.values()
            for b in bs
        )

    def _in_sight(
        self, function: cst.FunctionDef | cst.Module, loop: cst.CSTNode, functions: list[cst.FunctionDef | cst.Module]
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the names of the modules and of the optimizers that are bound before ``loop`` in ``function``."""
        script = self.script
        scope = script.scopes[function.body] if isinstance(function, cst.FunctionDef) else script.root
        places = [scope] if scope is script.root else [scope, script.root]
        used = {
            n.value
            for f in functions
            for n in walk(f.body if isinstance(f, cst.FunctionDef) else f)
            if isinstance(n, cst.Name)
        }
        candidates: list[tuple[str, cst.CSTNode]] = []
        for place in places:
            for name, bindings in place.names.items():
                if any(name == c for c, _ in candidates) or (place is not scope and name not in used):
                    continue
                if place is scope and any(
                    script.inside(b.node, loop) and not self._made_before(bindings, loop) for b in bindings
                ):
                    continue
                if (
                    place is scope
                    and any(b.how == "assign" for b in bindings)
                    and not self._made_before(bindings, loop)
                ):
                    continue
                use = next((n for n in self._uses(name) if script.scopes[n].lookup(name)[1] is place), None)
                if use is not None and any(b.how in ("assign", "param") for b in bindings):
                    candidates.append((name, use))
        owner = script.class_of(function) if isinstance(function, cst.FunctionDef) else None
        if owner is not None:
            for (cls, attribute), bindings in script.attributes.items():
                if (
                    cls is owner
                    and not all(script.inside(b.node, loop) for b in bindings)
                    and bindings[0].value is not None
                ):
                    candidates.append(
                        (f"self.{attribute}", bindings[0].value if not bindings[0].path else bindings[0].node)
                    )
        return self._sorted(candidates)

    def _uses(self, name: str) -> list[cst.Name]:
        if not hasattr(self, "_names"):
            self._names: dict[str, list[cst.Name]] = {}
            for n in self.script.nodes:
                if isinstance(n, cst.Name):
                    self._names.setdefault(n.value, []).append(n)
        return self._names.get(name, [])

    def _made_before(self, bindings: list, loop: cst.CSTNode) -> bool:  # type: ignore[type-arg]
        """Tell whether a binding before ``loop`` is sure to have run: not only under an ``if`` without ``else``."""
        script = self.script
        before = [b for b in bindings if script.order[b.node] < script.order[loop] and not script.inside(b.node, loop)]
        for b in before:
            for up in script.above(b.node):
                if isinstance(up, cst.If) and up.orelse is None and not script.inside(loop, up):
                    chain = script.parents[up]
                    if not (isinstance(chain, cst.If) and len(before) > 1):
                        break
                elif isinstance(up, LOOPS) and not script.inside(loop, up):
                    break
                elif isinstance(up, (cst.FunctionDef, cst.Module)):
                    return True
        return False

    def _sorted(self, candidates: list[tuple[str, cst.CSTNode]]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        modules: dict[tuple[object, ...], str] = {}
        optimizers: dict[tuple[object, ...], str] = {}
        for name, node in candidates:
            kind = self.kinds.of(node)
            key = tuple(self.flow.origins(node)) or (name,)
            if kind == "module":
                modules.setdefault(key, name)
            elif kind == "optimizer" or (
                kind == ""
                and self.kinds.is_optimizer(node)
                and any(self._same_name(name, o) for _, o in self.step_calls)
            ):
                optimizers.setdefault(key, name)
        return tuple(modules.values()), tuple(optimizers.values())

    def _same_name(self, name: str, node: cst.CSTNode) -> bool:
        return dotted(node).rsplit(".", 1)[-1] == name.rsplit(".", 1)[-1]

    # -- data ---------------------------------------------------------------------------------------------------

    def source(self, node: cst.BaseExpression) -> cst.BaseExpression:
        """Return what is iterated: ``loader`` in ``enumerate(tqdm(loader), 1)``."""
        while isinstance(node, cst.Call) and node.args:
            name = self.script.name_of(node.func)
            last = name.rsplit(".", 1)[-1]
            if last not in ("enumerate", "tqdm", "iter", "cycle", "islice", "track", "list", "progress_bar", "trange"):
                break
            node = node.args[0].value
        return node

    def feeds(self) -> tuple[Feed, ...]:
        """Return where the training batches come from."""
        loaders: dict[cst.CSTNode, Feed] = {}
        for loop in self.training_loops():
            if isinstance(loop, cst.For):
                self._feed(self.source(loop.iter), loaders)
            for call in self.reached(loop.body):
                if self.script.name_of(call.func) == "builtins.next" and call.args:
                    self._feed(self.source(call.args[0].value), loaders, each=True)
        return tuple(loaders.values())

    def reached(self, node: cst.CSTNode, depth: int = 4) -> Iterator[cst.Call]:
        """Yield the calls that running ``node`` may make, through the functions of this script."""
        for n in walk(node):
            if isinstance(n, cst.Call):
                yield n
                for target in self.flow.targets(n) if depth else ():
                    yield from self.reached(target.body, depth - 1)

    def _feed(self, iterated: cst.BaseExpression, found: dict[cst.CSTNode, Feed], each: bool = False) -> None:
        if isinstance(iterated, cst.Call) and self.script.name_of(iterated.func) in (
            "builtins.range",
            "itertools.count",
        ):
            return
        if isinstance(iterated, cst.Call) and self.script.name_of(iterated.func) == "builtins.zip":
            for arg in iterated.args:
                self._feed(self.source(arg.value), found)
            return
        for origin in self.flow.origins(iterated):
            made = origin.node
            if isinstance(made, cst.Call) and self.kinds.of_call(made) == "loader":
                if not self._evaluated(made) and not self._in_comprehension(made):
                    found.setdefault(made, Feed(made, "loader"))
                elif not each:
                    found.setdefault(iterated, Feed(iterated, "iterable"))
            elif not each and self._may_be_batches(made, iterated):
                found.setdefault(iterated, Feed(iterated, "iterable"))

    def _in_comprehension(self, call: cst.CSTNode) -> bool:
        return any(isinstance(up, (cst.DictComp, cst.ListComp)) for up in self.script.above(call))

    def _may_be_batches(self, made: cst.CSTNode, iterated: cst.BaseExpression) -> bool:
        name = dotted(iterated.value if isinstance(iterated, cst.Subscript) else iterated)
        if isinstance(made, cst.Call):
            called = self.script.name_of(made.func)
            return not called.startswith(("builtins.", "numpy.arange", "numpy.linspace", "torch.arange", "tqdm.trange"))
        return bool(re.search(r"loader|batches|_dl$|_iter$|iterator|dataset", name, re.IGNORECASE))

    def _evaluated(self, loader: cst.CSTNode) -> bool:
        """Tell whether a loop that does not train runs over ``loader`` too."""
        others = [n for n in self.script.nodes if isinstance(n, cst.For) and not self.runs_step(n.body)]
        return any(
            not self.runs_backward(n.body)
            and self._computes(n.body)
            and any(o.node is loader for o in self.flow.origins(self.source(n.iter)))
            for n in others
        )

    def _computes(self, body: cst.CSTNode) -> bool:
        """Tell whether the body of a loop runs a model (and is not, say, a plot of the first batch)."""
        return any(isinstance(n, cst.Call) and self.kinds.of(n.func) == "module" for n in walk(body))
