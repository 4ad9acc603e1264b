"""Where the batches of a TensorFlow script come from: data sets, iterators, slices of arrays, whole arrays."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from dlrun.port.facts import Feed
from dlrun.port.facts.loops import Loops
from dlrun.port.facts.models.kinds_tensorflow import plain
from dlrun.port.facts.updates.session import SessionGradients, runs_session
from dlrun.port.facts.updates.tape import TapeGradients
from dlrun.port.feeds import Feeds
from dlrun.port.feeds.full.full_sessions import FullSessions
from dlrun.port.feeds.iterated import BARS
from dlrun.port.program.script import calls_method, dotted, numbered

_ITERATORS = ("make_one_shot_iterator", "make_initializable_iterator", "make_initializer")
_SEEN_THROUGH = (*BARS, "enumerate", "islice")  # each rank counts, and takes, the batches of its own
_OTHERS = re.compile(r"(^|_)(test|val|valid|validation|eval|dev)", re.IGNORECASE)


class TapeFeeds(Feeds):
    """Data sets are shared where the training loop runs over them, so that they stay whole for everything else."""

    shared_where_assigned = False

    def __init__(self, loops: Loops) -> None:
        """Look at every training loop once."""
        assert isinstance(loops.gradients, TapeGradients)
        self.gradients = loops.gradients
        self.compiled: list[cst.CSTNode] = []  # loops inside a tf.function over data sets that are made elsewhere
        super().__init__(loops)
        cut = {node for node, feed in self.found.items() if feed.how == "loader"}  # where it is made, for all loops
        self.found = {
            node: feed for node, feed in self.found.items() if node in cut or cut.isdisjoint(self.flow.through(node))
        }

    def _feed(self, iterated: cst.BaseExpression, drawn: bool = False, innermost: bool = True) -> None:
        if numbered(iterated):  # each rank counts the batches of its own
            iterated = iterated.func.value  # type: ignore[attr-defined]
        data = any(
            isinstance(o.node, cst.Call) and self.kinds.of_call(o.node) == "loader" for o in self.flow.origins(iterated)
        )
        function = self.script.function_of(iterated)
        graph = isinstance(function, cst.FunctionDef) and any(
            "function" in dotted(d.decorator if not isinstance(d.decorator, cst.Call) else d.decorator.func)
            for d in function.decorators
        )
        if data and graph and not drawn:
            super()._feed(iterated, drawn=True)
            if self.found.keys().isdisjoint(self.flow.through(iterated)):
                self.compiled.append(iterated)
        elif data and not drawn:
            place = self._behind_bar(iterated, _SEEN_THROUGH)
            self.found.setdefault(place, Feed(place, "iterable"))
        else:
            super()._feed(iterated, drawn, innermost)

    def _loss(self, backward: cst.Call) -> cst.BaseExpression:
        return backward.args[0].value if backward.args else backward.func


class SessionFeeds(FullSessions, Feeds):
    """Placeholders are fed with slices, draws or whole arrays; or a graph holds iterators over data sets."""

    shared_where_assigned = False

    def __init__(self, loops: Loops) -> None:
        """Look at every training loop once."""
        assert isinstance(loops.gradients, SessionGradients)
        self.gradients = loops.gradients
        self.queues = [c for c in loops.script.calls if _is_queue(plain(loops.script.name_of(c.func)))]
        self.unclear: list[cst.Call] = []  # iterators that may train or not
        super().__init__(loops)
        data = dict.fromkeys(self._iterated())
        for node in data:
            self.found[node] = Feed(node, "iterable")
        if data or self.queues:
            mine = [loop for loop in self.innermost if loop not in self._fed and loop not in self.counted]
            drawn = [*self.counted, *(loop for loop in mine if isinstance(loop, cst.For) or not _endless(loop))]
            self.counted = [loop for loop in drawn if not self._is_part(loop, drawn)]
            self.found = {k: f for k, f in self.found.items() if f.gathered is None}
            self.full_batch = False

    def _iterated(self) -> Iterator[cst.BaseExpression]:
        """Yield the data sets over which the graph has iterators that feed the training."""
        calls = [c for c in self.script.calls if calls_method(c, *_ITERATORS)]
        told = []
        for call in calls:
            data = self._data_of(call)
            about = f"{dotted(data)} {self._line_of(call)}"
            if _OTHERS.search(dotted(data)) or _OTHERS.search(about.split("=")[0].split(" ", 1)[-1]):
                continue
            if len(calls) == 1 or "train" in about:
                told.append(data)
            else:
                self.unclear.append(call)
        if not told:
            begun = [call for call in self.unclear if self._begins(call)]
            told = [self._data_of(call) for call in begun]
            self.unclear = [call for call in self.unclear if not begun]
        yield from told

    def _data_of(self, call: cst.Call) -> cst.BaseExpression:
        """Return the data set over which ``call`` makes, or starts, an iterator."""
        func = cst.ensure_type(call.func, cst.Attribute)
        foreign = plain(self.script.name_of(func)).startswith("tensorflow.data.")
        given = call.args and (foreign or func.attr.value == "make_initializer")
        return call.args[0].value if given else func.value

    def _begins(self, call: cst.Call) -> bool:
        """Tell whether the last initializer that is run before some training loop is what ``call`` makes."""
        order = self.script.order
        runs = [
            (order[run], any(o.node is call for o in self.flow.origins(run.args[0].value)))
            for run in self.script.calls
            if runs_session(run)
            and run.args
            and any(calls_method(o.node, "make_initializer") for o in self.flow.origins(run.args[0].value))
        ]
        before = [[mine for at, mine in sorted(runs) if at < order[loop]] for loop in self.innermost]
        return any(found and found[-1] for found in before)

    def _line_of(self, call: cst.Call) -> str:
        """Return the text of the statement of ``call``; of one that sets several names that which ``call`` sets."""
        statement = self.script.statement_of(call)
        if isinstance(statement, cst.Assign) and isinstance(statement.value, (cst.Tuple, cst.List)):
            targets = statement.targets[0].target
            names = targets.elements if isinstance(targets, (cst.Tuple, cst.List)) else ()
            for name, made in zip(names, statement.value.elements, strict=False):
                if self.script.inside(call, made):
                    return f"{self.script.code(name.value)} = {self.script.code(made.value)}"
        return self.script.code(statement)

    def _fed_by(self, call: cst.Call) -> tuple[cst.BaseExpression, ...]:
        return self.gradients.fed(call) if any(call is step for step, _ in self.gradients.step_calls) else ()

    def _hidden_state(self, loop: cst.For | cst.While) -> cst.CSTNode | None:
        return self.gradients.carried(loop)


_QUEUES = ("FIFOQueue", "PaddingFIFOQueue", "PriorityQueue", "RandomShuffleQueue")  # which threads fill


def _is_queue(name: str) -> bool:
    return name in (
        "tensorflow.train.string_input_producer",
        "tensorflow.train.slice_input_producer",
        "tensorflow.train.shuffle_batch",
        "tensorflow.train.batch",
        "tensorflow.train.start_queue_runners",
        *(f"tensorflow.{module}{kind}" for module in ("", "queue.") for kind in _QUEUES),
    )


def _endless(loop: cst.While) -> bool:
    test = loop.test
    stops = isinstance(test, cst.UnaryOperation) and calls_method(test.expression, "should_stop")
    return stops or (isinstance(test, (cst.Name, cst.Integer)) and dotted(test) in ("True", ""))
