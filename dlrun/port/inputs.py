"""Trainings without samples to share: of an image that a network looks at, and of weights that tasks start from."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from dlrun.port.facts.loops import Loops
from dlrun.port.facts.torch import Gradients
from dlrun.port.facts.updates.tape import TapeGradients
from dlrun.port.program.flow import Flow
from dlrun.port.program.script import dotted, walk

# Modules without weights: what they are given may well be trained.
_PLAIN = re.compile(r"(Sigmoid|Softmax\d?d?|ReLU\d?|Tanh|Softplus|Dropout|Flatten|Identity|GELU|ELU|Loss|Upsample)$")
_META = re.compile(
    r"(^|_)(maml|reptile|fast_weights|inner_(lr|loop|steps?|step_size|optim\w*)|outer_?step_?size|inner_?step_?size|"
    r"meta_(lr|step_size|optim\w*|iters?|batch_size|train|loss))($|_)",
    re.IGNORECASE,
)
_ADAPTS = re.compile(r"(^|\.)grad$")  # weights of a task's own, made of the gradients
_BEGINS_AGAIN = re.compile(r"(^|\.)(deepcopy|load_state_dict|set_weights|clone|copy_)$")  # for the next task
_META_LIBRARIES = ("higher", "learn2learn", "torchmeta")
_DEPTH = 400


def trained_input(loops: Loops) -> cst.CSTNode | None:
    """Return what an optimizer changes, where that is nothing but the input of a network that stays as it is."""
    trained = list(_tensors(loops))
    if not trained or None in trained:
        return None
    made = {o.node for node in trained if node is not None for o in loops.flow.origins(node)}
    for call in loops.script.calls:
        if _is_network(loops, call.func) and any(comes_from(loops, arg.value, made) for arg in call.args):
            return trained[0]
    return None


def looked_at(gradients: Gradients) -> cst.Name | None:
    """Return the input of a network of which the script takes the gradient: an attack's image, a dream's picture."""
    script = gradients.script
    given = {
        (script.scopes[n], n.value)
        for call in script.calls
        if _is_of_network(gradients, call.func)
        for arg in call.args
        for n in walk(arg.value)
        if isinstance(n, cst.Name)
    }
    for node in script.nodes:
        taken: list[cst.CSTNode] = []
        if isinstance(node, cst.Attribute) and node.attr.value == "grad":
            taken = [node.value]
        elif isinstance(node, cst.Call) and script.name_of(node.func) == "torch.autograd.grad" and len(node.args) > 1:
            taken = list(walk(node.args[1].value))
            taken = [] if any(isinstance(n, cst.Call) for n in taken) else taken  # net.parameters()
        for n in taken:
            if isinstance(n, cst.Name) and not _META.search(n.value) and (script.scopes[n], n.value) in given:
                return n
    return None


def _is_of_network(gradients: Gradients, func: cst.BaseExpression) -> bool:
    """Tell whether ``func`` is a module or a part of one: ``model.features[:10]``."""
    while gradients.kinds.of(func) != "module" and isinstance(func, (cst.Attribute, cst.Subscript)):
        func = func.value
    return gradients.kinds.of(func) == "module" and not isinstance(func, cst.Call)


def _tensors(loops: Loops) -> Iterator[cst.BaseExpression | None]:
    """Yield the tensors that the optimizers train; None where they train anything else."""
    gradients = loops.gradients
    if isinstance(gradients, TapeGradients):
        for call in gradients.averages:
            sources = call.args[1].value if len(call.args) > 1 else None
            parts = [e.value for e in sources.elements] if isinstance(sources, (cst.List, cst.Tuple)) else [sources]
            for part in parts:
                made = loops.flow.origins(part)[0].node if isinstance(part, cst.Name) else None
                variable = isinstance(made, cst.Call) and dotted(made.func).endswith("Variable")
                yield part if variable else None
        return
    for call in gradients.constructors():
        given = call.args[0].value if call.args else None
        found = [o.node for o in loops.flow.origins(given)] if given is not None else []
        lists = [node for node in found if isinstance(node, (cst.List, cst.Tuple))]
        if not lists or len(lists) < len(found) or not all(node.elements for node in lists):  # filled later, perhaps
            yield None
        yield from (_tensor(e.value) for node in lists for e in node.elements)


def _tensor(node: cst.BaseExpression) -> cst.BaseExpression | None:
    """Return the name in ``img`` or ``img.requires_grad_()``; None of anything else."""
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        node = node.func.value if node.func.attr.value == "requires_grad_" else node
    return node if isinstance(node, cst.Name) else None


def _is_network(loops: Loops, func: cst.BaseExpression) -> bool:
    """Tell whether ``func`` is a module with weights, or a part of one: ``vgg19().features``."""
    made = [o.node for o in loops.flow.origins(func)]
    plain = all(isinstance(n, cst.Call) and _PLAIN.search(dotted(n.func)) for n in made)
    parts = (n for node in made if isinstance(node, cst.Attribute) for n in walk(node) if isinstance(n, cst.Call))
    return not plain and (loops.kinds.of(func) == "module" or any(loops.kinds.of_call(n) == "module" for n in parts))


def comes_from(loops: Loops, node: cst.CSTNode, made: set[cst.CSTNode]) -> bool:
    """Tell whether ``node`` is computed from one of ``made``, expressions or what binds names; not what is called."""
    return made_of(loops.flow, node, made)


def made_of(flow: Flow, node: cst.CSTNode, made: set[cst.CSTNode]) -> bool:
    """Tell whether ``node`` is computed from one of ``made``."""
    script = flow.script
    seen: set[cst.CSTNode] = set()
    expanded: set[cst.CSTNode] = set()
    todo: list[cst.CSTNode] = [node]
    while todo and len(seen) < _DEPTH:
        for n in walk(todo.pop()):
            if n in made or (isinstance(n, cst.Call) and any(o.node in made for o in flow.origins(n))):
                return True
            up = script.parents.get(n)
            if not isinstance(n, cst.Name) or n in seen or (isinstance(up, cst.Call) and up.func is n):
                continue
            seen.add(n)
            for binding in script.bindings_of(n):
                if binding.node in made:
                    return True
                function = script.scopes[binding.node].node if binding.how == "param" else None
                if isinstance(function, cst.FunctionDef):
                    given = (flow.argument(c, function, binding.name) for c in flow.callers(function))
                    todo.extend(value for value in given if value is not None)
                elif binding.how == "assign" and binding.value is not None and binding.value not in expanded:
                    expanded.add(binding.value)
                    todo.append(binding.value)
    return False


def meta_learning(loops: Loops) -> cst.CSTNode | None:
    """Return what shows that a loop learns where tasks, each drawn and learned by itself, had better start from."""
    script = loops.script
    for binding in script.imports():
        used = binding.target.split(".")[0] in _META_LIBRARIES and not binding.target.startswith("torchmeta.modules")
        if used and script.files[script.tree_of(binding.node)].split("/")[0] not in _META_LIBRARIES:
            return binding.node  # not where a copy of the library imports its own parts
    adapts = any(_ADAPTS.search(dotted(call.func)) for call in script.calls)
    updates = [script.function_of(step.node) for step in loops.gradients.steps()]
    for block in (*loops.training, *(f for f in updates if isinstance(f, cst.FunctionDef))):
        inside = list(walk(block))
        if adapts or any(isinstance(n, cst.Call) and _BEGINS_AGAIN.search(dotted(n.func)) for n in inside):
            named = (n for n in inside if isinstance(n, cst.Name) and _META.search(n.value))
            if (found := next(named, None)) is not None:
                return found
    return None
