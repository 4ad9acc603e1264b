"""Step "broadcast" for sessions: before which loop, and by which name the session is known there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from dlrun.errors import DlrunError
from dlrun.port.edits import Doubt, Edit
from dlrun.port.facts import Step
from dlrun.port.facts.tensorflow import TensorFlowFacts
from dlrun.port.facts.torch import LOOPS
from dlrun.port.facts.updates.session import SessionGradients
from dlrun.port.frameworks import estimator
from dlrun.port.insert import expression, statements
from dlrun.port.program.script import argument, calls_method, dotted

_WHY = "all variables: the same on all ranks before the first step"


def broadcast(facts: TensorFlowFacts) -> Iterator[Edit | Doubt]:
    """Yield the broadcast before the outermost loop, in the session that runs it; or where such a session is made."""
    if facts.monitored or facts.supervised:
        yield from _made(facts)
        return
    done: list[tuple[cst.CSTNode, str]] = []
    for step in facts.steps:
        operation = _is_operation(facts, step)
        given = argument(step.node, "session", 1) if operation and isinstance(step.node, cst.Call) else None
        for loop, session in _places(facts, step):
            if operation:
                session = facts.script.code(given) if given is not None else ""
            if any(session == text and _is_after(facts, loop, other) for other, text in done):
                continue
            done.append((loop, session))
            lines = statements("tensorflow/broadcast_session", dl=facts.alias, session=session)
            yield Edit(loop, _WHY, before=lines)


def _is_after(facts: TensorFlowFacts, line: cst.CSTNode, other: cst.CSTNode) -> bool:
    """Tell whether ``line`` runs in the loop ``other``, or is a search that comes after it in one block."""
    script = facts.script
    search = not isinstance(line, LOOPS) and script.parents[line] is script.parents[other]
    return script.inside(line, other) or (search and script.order[other] < script.order[line])


def _is_operation(facts: TensorFlowFacts, step: Step) -> bool:
    """Tell whether an operation runs itself in the default session: ``train_step.run(feed_dict=...)``."""
    made = [o.node for o in facts.flow.origins(step.optimizer)] if step.optimizer is not None else []
    return any(calls_method(n, how) for n in made for how in ("minimize", "apply_gradients"))


def _made(facts: TensorFlowFacts) -> Iterator[Edit | Doubt]:
    """Yield what lets the sessions of MonitoredTrainingSession() and Supervisor() start alike by themselves."""
    dl = facts.alias
    for call in facts.monitored:
        yield estimator.hooked(facts, call)
        folder = argument(call, "checkpoint_dir", 2)
        if folder is not None and dotted(folder) != "None":
            yield Edit(
                folder,
                "rank 0 restores and saves; the others get its variables",
                lambda f: expression("tensorflow/rank0_path", {"path": f}, dl=dl),
            )
    for call in facts.supervised:
        yield Edit(
            call.func,
            "rank 0 restores, saves and logs; its sessions start from rank 0's variables",
            lambda _: expression("tensorflow/supervisor", dl=dl),
        )
    loops = dict.fromkeys(loop for step in facts.steps for loop, _ in _places(facts, step))
    for loop in loops:
        if not any(facts.script.inside(loop, other) for other in loops if other is not loop):
            yield Edit(loop, "what it draws is local", before=statements("keras/reseed", dl=dl))


def _places(facts: TensorFlowFacts, step: Step) -> list[tuple[cst.CSTNode, str]]:
    """Return the outermost loops around ``step``, in its own function or in callers, with the session's name there."""
    script = facts.script
    assert isinstance(step.optimizer, cst.BaseExpression)
    text = script.code(step.optimizer)
    loop = script.outermost_loop(step.node)
    found = list(_in_callers(facts, step.node, _Named(step.optimizer)))
    if loop is not None and not _is_called_in(facts, step.node, found):
        return [(loop, text)]  # else an epoch is a call: training begins before the loop over them
    if not found and isinstance(facts.gradients, SessionGradients) and facts.gradients.is_search(step.node):
        return [(script.line_of(script.statement_of(step.node)), text)]
    if not found and not facts.monitored and not facts.supervised:
        raise DlrunError(
            f"{script.place(step.node)}: found no loop around this run in which {text} can be named: "
            "nothing was written.",
            f"Bring the loop and the run into one function, or pass {text} under that name.",
        )
    return found


def _is_called_in(facts: TensorFlowFacts, node: cst.CSTNode, loops: list[tuple[cst.CSTNode, str]]) -> bool:
    """Tell whether the first call of the function around ``node`` is made in one of ``loops``."""
    function = facts.script.function_of(node)
    calls = sorted(facts.flow.callers(function), key=lambda call: facts.script.order[call])
    return bool(calls) and any(facts.script.inside(calls[0], outer) for outer, _ in loops)


@dataclass(frozen=True)
class _Named:
    """A session as it can be written at some place: an expression that stands there, and attributes behind it."""

    node: cst.CSTNode
    attributes: str = ""

    @property
    def text(self) -> str:
        return dotted(self.node) + self.attributes

    @property
    def head(self) -> cst.Name | None:
        node = self.node
        while isinstance(node, cst.Attribute):
            node = node.value
        return node if isinstance(node, cst.Name) else None


def _in_callers(
    facts: TensorFlowFacts, run: cst.CSTNode, session: _Named, depth: int = 0
) -> Iterator[tuple[cst.CSTNode, str]]:
    function = facts.script.function_of(run)
    if not isinstance(function, cst.FunctionDef) or depth >= 4:
        return
    for call in facts.flow.callers(function):
        there = _handed(facts, session, function, call) or session
        loop = facts.script.outermost_loop(call)
        further = list(_in_callers(facts, call, there, depth + 1))
        if loop is None or (further and _is_called_in(facts, call, further)):
            yield from further  # an epoch is a call, too
        elif (known := _known(facts, there, call, loop)) is not None:
            yield loop, known


def _handed(facts: TensorFlowFacts, session: _Named, function: cst.FunctionDef, call: cst.Call) -> _Named | None:
    """Return the session as the caller knows it: what it passes, or an attribute of what it calls a method of."""
    head, attributes = session.head, session.text.partition(".")[2]
    rest = f".{attributes}" if attributes else ""
    if head is None:
        return None
    if head.value == "self":
        return _Named(call.func.value, rest) if isinstance(call.func, cst.Attribute) else None
    bindings, scope = facts.script.scopes[head].lookup(head.value)
    if scope is facts.script.scopes[function.body] and any(b.how == "param" for b in bindings):
        given = facts.flow.argument(call, function, head.value)
        return _Named(given, rest) if given is not None and dotted(given) else None
    return session


def _known(facts: TensorFlowFacts, session: _Named, call: cst.Call, loop: cst.CSTNode) -> str | None:
    """Return the text by which ``session`` can be written right before ``loop``; None where there is none."""
    if _is_bound(facts, session, loop):
        return session.text
    # m.sess, where m runs over the models: what the models were made with.
    owner, _, attribute = session.text.rpartition(".")
    receiver = call.func.value if isinstance(call.func, cst.Attribute) else None
    if receiver is None or dotted(receiver) != owner:
        return None
    made: set[str] = set()
    for cls in facts.flow.classes(receiver):
        init = facts.flow.method(cls, "__init__")
        values = [b.value for b in facts.script.attributes.get((cls, attribute), [])]
        if init is None or len(values) != 1 or not isinstance(values[0], cst.Name):
            return None
        for constructor in facts.flow.callers(init):
            given = facts.flow.argument(constructor, init, values[0].value)
            if given is None or not _is_bound(facts, _Named(given), loop):
                return None
            made.add(dotted(given))
    return made.pop() if len(made) == 1 else None


def _is_bound(facts: TensorFlowFacts, session: _Named, loop: cst.CSTNode) -> bool:
    """Tell whether the session's first name means the same right before ``loop``: bound there, and not in the loop."""
    script, head = facts.script, session.head
    if head is None:
        return False
    bindings, scope = script.scopes[head].lookup(head.value)
    here = script.scopes[loop].lookup(head.value)[1]
    return scope is not None and here is scope and not any(script.inside(b.node, loop) for b in bindings)
