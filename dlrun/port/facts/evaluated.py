"""Runs of a session that do not train, and see what is local: they return values of its samples alone."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from dlrun.port.facts import Feed
from dlrun.port.facts.loops import Loops
from dlrun.port.facts.models.kinds_tensorflow import plain
from dlrun.port.facts.numbers.computed import given
from dlrun.port.facts.numbers.fetches import fetched, parts
from dlrun.port.facts.numbers.scalars import Scalars
from dlrun.port.facts.taint import Taint
from dlrun.port.facts.updates.session import SessionGradients
from dlrun.port.feeds import local_samples
from dlrun.port.feeds.tensorflow import SessionFeeds
from dlrun.port.program.script import walk

_GATHERS = ("reduce_mean", "reduce_sum")


class Evaluations:
    """Finds the runs that evaluate with samples of a training run: a batch, a share, what the graph itself draws."""

    def __init__(self, gradients: SessionGradients, loops: Loops, feeds: SessionFeeds) -> None:
        """Answer for the script of ``gradients``, whose training runs take what ``feeds`` has found."""
        self.gradients, self.loops, self.feeds = gradients, loops, feeds
        self.script, self.flow = gradients.script, gradients.flow
        self.number = Scalars(gradients.kinds)
        self.trains = {call for call, _ in gradients.step_calls}

    def found(self) -> tuple[cst.Call, ...]:
        """Return these runs in source order."""
        values = [value for run in self.trains for value in self.gradients.fed(run) if not self.number(value)]
        fed = Taint(self.script, self.gradients.kinds, self._samples(values))
        runs = [c for c in self.script.calls if c not in self.trains and self._evaluates(c)]
        if values:
            return tuple(c for c in runs if any(fed(a.value) for a in c.args))
        if not self.feeds.found and not self.feeds.queues:
            return ()
        others = [c for c in runs if all(map(self.number, self.gradients.fed(c)))]  # the graph holds their samples, too
        return tuple(c for c in others if self.loops.in_training(c) and self._gathers(c))

    def _evaluates(self, call: cst.Call) -> bool:
        """Tell whether ``call`` is a run of a session, or of one tensor: ``accuracy.eval(feed_dict={...})``."""
        if not isinstance(call.func, cst.Attribute):
            return False
        if call.func.attr.value == "run":
            return bool(call.args) and self.gradients.is_session(call.func.value)
        named = {arg.keyword.value for arg in call.args if arg.keyword is not None}
        feeds = [a.value for a in call.args if isinstance(a.value, cst.Dict)]  # accuracy.eval({x: batch})
        return call.func.attr.value == "eval" and bool(named & {"feed_dict", "session"} or feeds or not call.args)

    def _samples(self, values: list[cst.BaseExpression]) -> Iterator[cst.CSTNode]:
        """Yield what local samples come from: what the training loops make and feed, and what is cut."""
        seen: set[cst.CSTNode] = set()
        todo: list[cst.CSTNode] = list(values)
        while todo:
            value = todo.pop()
            if value in seen:
                continue
            seen.add(value)
            names = [n for n in walk(value) if isinstance(n, cst.Name) and not self.script.is_part(n)]
            for binding in (b for n in names if not self.number(n) for b in self.script.bindings_of(n)):
                if binding.how == "param":
                    todo += given(self.flow, binding)
                elif binding.value is not None and self._in_loop(binding.node):
                    counted = isinstance(binding.value, cst.Call) and self.number_of(binding.value)
                    yield binding.value.args[0].value if counted else binding.value  # type: ignore[attr-defined]
            if self._in_loop(value) and not names and isinstance(value, cst.Call):
                yield value  # {z: sample(64)}
        yield from local_samples.cut(self.feeds)
        for feed in self.feeds.found.values():
            yield from feed.picks if feed.how in ("arrays", "positions") else self._there(feed)

    def number_of(self, value: cst.Call) -> bool:
        """Tell whether ``value`` hands out entries with their numbers: ``enumerate(batches)``."""
        return self.script.name_of(value.func) == "builtins.enumerate" and bool(value.args)

    def _there(self, feed: Feed) -> list[cst.CSTNode]:
        return [feed.node] if feed.how == "array" else []

    def _in_loop(self, node: cst.CSTNode) -> bool:
        return any(up in self.loops.training for up in (node, *self.script.above(node)))

    def _gathers(self, call: cst.Call) -> bool:
        """Tell whether ``call`` fetches a loss that is minimized, or a mean or sum that the graph computes."""
        losses = {o.node for loss in self.gradients.losses() for o in self.flow.origins(loss)}
        for part in parts(fetched(call)):
            for made in (o.node for o in self.flow.origins(part)):
                name = plain(self.script.name_of(made.func)) if isinstance(made, cst.Call) else ""
                if made in losses or name.endswith(_GATHERS):
                    return True
        return False
