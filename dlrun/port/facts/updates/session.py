"""Reads scripts in the style of TensorFlow 1: which runs of a session train, and what feeds them."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from dlrun.port.facts.models.kinds_tensorflow import plain
from dlrun.port.facts.updates.tape import TapeGradients
from dlrun.port.program.script import calls_method, dotted, names_in, walk

SESSIONS = (
    "tensorflow.Session",
    "tensorflow.InteractiveSession",
    "tensorflow.train.MonitoredTrainingSession",
    "tensorflow.train.MonitoredSession",
    "tensorflow.train.SingularMonitoredSession",
    "tensorflow.train.Supervisor",
)
_SESSION = re.compile(r"(^|[._])(sess|session)$", re.IGNORECASE)
_TRAIN_OP = re.compile(
    r"(^|[._])(train(_op|_step|ing_op)?|train_\w*op|\w*_train|optim\w*|\w*_(optim|opt|solver)|solver)$"
)
EXTERNAL = "ScipyOptimizerInterface"  # of TensorFlow 1's contrib.opt, or a copy of it
_JOINS = ("tensorflow.group", "tensorflow.tuple", "tensorflow.no_op", "tensorflow.identity")


def runs_session(call: cst.Call) -> bool:
    """Tell whether ``call`` is a run of what is called a session: ``self.sess.run(...)``."""
    func = call.func
    return isinstance(func, cst.Attribute) and func.attr.value == "run" and bool(_SESSION.search(dotted(func.value)))


class SessionGradients(TapeGradients):
    """As ``TapeGradients``, but what steps is a run of an operation that ``minimize`` or ``apply_gradients`` made."""

    builds: list[tuple[cst.Call, cst.BaseExpression]]
    external: list[cst.Call]  # calls in which SciPy searches: optimizer.minimize(sess, feed_dict=...)

    @property
    def builders(self) -> list[tuple[cst.Call, cst.BaseExpression]]:
        """The calls that make the training operations, with their optimizers."""
        return self.builds

    def _step_calls(self) -> Iterator[tuple[cst.Call, cst.BaseExpression]]:
        minimizes = list(super()._step_calls())
        self.builds = [(call, opt) for call, opt in minimizes if not self._interfaces(opt)]
        self.external = [call for call, opt in minimizes if self._interfaces(opt)]
        for call in self.external:
            session = next((a.value for a in call.args if a.keyword is None or a.keyword.value == "session"), None)
            if session is not None:
                yield call, session
        made = {call for call, _ in self.builds}
        for call in self.script.calls:
            if not calls_method(call, "run") or not isinstance(call.func, cst.Attribute):
                continue
            owner = call.func.value
            fetched = next((a.value for a in call.args if a.keyword is None or a.keyword.value == "fetches"), None)
            if self.is_session(owner):
                if fetched is not None and self._trains(fetched, made):
                    yield call, owner
            elif any(o.node in made for o in self.flow.origins(owner)):
                yield call, owner  # train_step.run(feed_dict=...)

    def _interfaces(self, optimizer: cst.BaseExpression) -> list[cst.Call]:
        """Return the constructors behind ``optimizer`` of what hands a graph's loss to SciPy."""
        made = (o.node for o in self.flow.origins(optimizer))
        return [n for n in made if isinstance(n, cst.Call) and dotted(n.func).rsplit(".", 1)[-1] == EXTERNAL]

    @property
    def clipped(self) -> dict[cst.Call, tuple[cst.BaseExpression, ...]]:
        """No updates: optimizers of sessions average where they compute gradients, before these are clipped."""
        return {}

    def wrapped(self) -> tuple[cst.Call, ...]:
        """Return the constructors of optimizers that average by themselves, those of SciPy's searches among them."""
        owners = [c.func.value for c in self.external if isinstance(c.func, cst.Attribute)]
        return tuple(dict.fromkeys((*super().wrapped(), *(made for o in owners for made in self._interfaces(o)))))

    def is_search(self, call: cst.CSTNode) -> bool:
        """Tell whether in ``call`` an optimizer makes updates until it is content."""
        return call in self.external

    def _is_backward(self, call: cst.Call) -> bool:
        return False  # a run computes gradients and applies them

    def _manual_updates(self) -> Iterator[cst.CSTNode]:
        return iter(())

    def is_session(self, node: cst.CSTNode) -> bool:
        """Tell whether ``node`` is a session, by what made it or else by its name."""
        for origin in self.flow.origins(node):
            if isinstance(origin.node, cst.Call) and plain(self.script.name_of(origin.node.func)) in SESSIONS:
                return True
        return bool(_SESSION.search(dotted(node)))

    def makes_all(self) -> bool:
        """Tell whether every operation that trains is made in sight, and not only called as if it trained."""
        made = {call for call, _ in self.builds}
        runs = [
            (call, next((a.value for a in call.args), None))
            for call, owner in self.step_calls
            if self.is_session(owner) and call not in self.external
        ]
        return all(fetched is not None and self._trains(fetched, made, named=False) for _, fetched in runs)

    def _trains(self, fetched: cst.BaseExpression, made: set[cst.Call], depth: int = 0, named: bool = True) -> bool:
        """Tell whether one of the operations that are ``fetched`` updates the weights; if ``named``, by its name."""
        if depth > 6:
            return False
        if isinstance(fetched, (cst.List, cst.Tuple)):
            return any(self._trains(e.value, made, depth + 1, named) for e in fetched.elements)
        if isinstance(fetched, cst.Dict):
            pairs = [e for e in fetched.elements if isinstance(e, cst.DictElement)]
            return any(self._trains(e.value, made, depth + 1, named) for e in pairs)
        if isinstance(fetched, cst.BinaryOperation):  # [train_op] + losses
            return any(self._trains(side, made, depth + 1, named) for side in (fetched.left, fetched.right))
        before = [first for node in self.flow.through(fetched) for first in self._before(node)]
        if any(self._trains(first, made, depth + 1, named) for first in before):
            return True
        for origin in self.flow.origins(fetched):
            node = origin.node
            if node in made:
                return True
            if isinstance(node, (cst.List, cst.Tuple, cst.Dict)) and node is not fetched:
                put = self._put(dotted(fetched), self.script.function_of(node)) if isinstance(node, cst.Dict) else ()
                if any(self._trains(value, made, depth + 1) for value in (node, *put)):
                    return True
            elif isinstance(node, cst.Call) and plain(self.script.name_of(node.func)) in _JOINS:
                joined = any(self._trains(a.value, made, depth + 1, named) for a in node.args if a.keyword is None)
                if joined or (named and _TRAIN_OP.search(dotted(fetched))):
                    return True
            elif isinstance(node, cst.Call) and self.flow.definition(node.func) is None:
                if made and not self.flow.targets(node) and re.search(r"(^|[._])train_op$", dotted(fetched)):
                    return True  # what updates is behind control_dependencies()
            elif named and node is fetched and _TRAIN_OP.search(dotted(fetched)):
                return True
        return False

    def _before(self, node: cst.CSTNode) -> list[cst.BaseExpression]:
        """Return what is run before the operation ``node``: ``with tf.control_dependencies([train]):`` around it."""
        entered = [item.item for up in self.script.above(node) if isinstance(up, cst.With) for item in up.items]
        return [
            call.args[0].value
            for call in entered
            if isinstance(call, cst.Call)
            and call.args
            and plain(self.script.name_of(call.func)) == "tensorflow.control_dependencies"
        ]

    def feeds_of(self, run: cst.Call) -> cst.Dict | None:
        """Return the dict that a run feeds, None where there is none in sight."""
        fetches = isinstance(run.func, cst.Attribute) and self.is_session(run.func.value)
        for arg in run.args:
            named = arg.keyword is not None and arg.keyword.value == "feed_dict"
            alone = isinstance(arg.value, cst.Dict) and not fetches  # train_step.run({x: batch})
            if named or (arg.keyword is None and arg is not run.args[0]) or alone:
                for origin in self.flow.origins(arg.value):
                    if isinstance(origin.node, cst.Dict):
                        return origin.node
                    if isinstance(origin.node, cst.Call):  # feed_dict=fill_feed_dict(...)
                        for target in self.flow.targets(origin.node):
                            for value in self.flow.returns(target):
                                inner = next((o.node for o in self.flow.origins(value)), None)
                                if isinstance(inner, cst.Dict):
                                    return inner
        return None

    def fed(self, run: cst.Call) -> tuple[cst.BaseExpression, ...]:
        """Return the values that a run feeds into placeholders."""
        return tuple(value for _, value in self.fed_pairs(run))

    def fed_pairs(self, run: cst.Call) -> tuple[tuple[cst.BaseExpression, cst.BaseExpression], ...]:
        """Return the placeholders that a run feeds, with the values."""
        given = self.feeds_of(run)
        pairs = given.elements if given is not None else ()
        return tuple((e.key, e.value) for e in pairs if isinstance(e, cst.DictElement))

    def called(self, placeholder: cst.BaseExpression) -> set[str]:
        """Return what a placeholder is called: where it is fed, ``model.x``, and where it is made, ``self.x``."""
        made = [o.node for o in self.flow.origins(placeholder) if isinstance(o.node, cst.Call)]
        lines = [line for call in made if isinstance(line := self.script.statement_of(call), cst.Assign)]
        targets = [t.target for line in lines for t in line.targets]
        return {dotted(placeholder), *(dotted(t) for t in targets if isinstance(t, (cst.Name, cst.Attribute)))}

    def losses(self) -> list[cst.BaseExpression]:
        """Return the expressions that the graph minimizes."""
        given: list[cst.Call] = [call for call, _ in self.builds if calls_method(call, "minimize")]
        given += self.averages
        given += [call for call in self.script.calls if calls_method(call, "compute_gradients")]
        given += [call for call in self.script.calls if dotted(call.func).rsplit(".", 1)[-1] == EXTERNAL]
        return [call.args[0].value for call in given if call.args]

    def _put(self, name: str, where: cst.CSTNode) -> Iterator[cst.BaseExpression]:
        """Yield the values that ``where`` puts one by one into the dict ``name``: ``feed[c] = state[i].c``."""
        for n in (n for n in walk(where) if isinstance(n, cst.Assign)):
            into = n.targets[0].target
            if name and isinstance(into, cst.Subscript) and dotted(into.value) == name:
                yield n.value

    def trains_by(self, end: cst.CSTNode, function: cst.FunctionDef, call: cst.Call) -> bool:
        """Tell whether the run ``end`` updates when ``call`` runs ``function``, which is handed what to run."""
        fetched = end.args[0].value if isinstance(end, cst.Call) and end.args else None
        if fetched is None:
            return True
        values = [fetched, *self._put(dotted(fetched), function)]
        names = {n.value for v in values for n in walk(v) if isinstance(n, cst.Name)}
        made = {c for c, _ in self.builds}
        for name in names & {p.name.value for p in (*function.params.params, *function.params.kwonly_params)}:
            given = [(c, self.flow.argument(c, function, name)) for c in self.flow.callers(function)]
            training = [c for c, value in given if value is not None and self._trains(value, made)]
            if training:
                return call in training
        return True

    def carried(self, loop: cst.CSTNode) -> cst.CSTNode | None:
        """Return the run that feeds back what an earlier iteration of ``loop`` fetched: a state carried along."""
        for run, _ in self.step_calls:
            statement = self.script.statement_of(run)
            if not self.script.inside(run, loop) or not isinstance(statement, cst.Assign):
                continue
            got = names_in(statement.targets[0].target)
            for n in walk(loop):  # state = values["state"], state = new_state
                taken = n.value if isinstance(n, cst.Assign) else None
                taken = taken.value if isinstance(taken, cst.Subscript) else taken
                if isinstance(n, cst.Assign) and isinstance(taken, (cst.Name, cst.Attribute)) and dotted(taken) in got:
                    got.add(dotted(n.targets[0].target))
            fed = (*self.fed(run), *(v for a in run.args[1:] for v in self._put(dotted(a.value), loop)))
            given = {n.value for v in fed for n in walk(v) if isinstance(n, cst.Name)}
            if got & given:
                return statement
        return None
