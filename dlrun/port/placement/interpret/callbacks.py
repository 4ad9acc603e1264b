"""Callbacks of Keras: what ``fit()`` runs batch by batch is a loop over a shard that stands in the library."""

from __future__ import annotations

from typing import Any

import libcst as cst

from dlrun.port.placement.interpret.control_flow import ControlFlow
from dlrun.port.placement.store import Frame, Function, Location, Obj, merge
from dlrun.port.placement.values import ANY, ENTRY, RATIO, SAME, Kind, Value, unknown

_BATCH = ("on_train_batch_begin", "on_batch_begin", "on_train_batch_end", "on_batch_end")
_BEHIND = ("on_epoch_end", "on_train_end")
_MODELS = ("keras.Model", "keras.Sequential", "keras.models.")
_BOXES = ("list", "dict", "set", "deque")
_AROUND = ("on_train_begin", "on_epoch_begin", *_BATCH, *_BEHIND)


class Callbacks(ControlFlow):
    """Runs the callbacks that ``fit()`` is given, and the steps that a model takes by a method of its own."""

    def fitted(self, receiver: Value, given: list[Value], node: cst.CSTNode) -> Value | None:
        """Run what of the program ``fit()`` runs: epochs of batches of this rank's shard.

        Return what it returns, a history of the epochs' logs, where these are the serial script's whatever is kept in
        callbacks.
        """
        if self.loop is not None:
            return None
        self._epochs_logs: dict[Obj, None] = {}
        held = [Value(refs=frozenset([r])) for r in self.reachable(given)]
        own = [value for value in held if self._is_callback(value)]
        before = self._stepped_on = self._as_callbacks_find(receiver, own, node)
        if own and self.shards.parts:  # fit() gives each batch's logs as the serial script does
            for value in own:
                for name in _AROUND:
                    self._hooked(value, name, [Value(scalar=True), self._logs(node, name, SAME)], node)
                    self._step_on()
        elif own:
            self._all_epochs(own, node)
        for at, (found, was) in before.items():
            if (self.state or {}).get(at) == found:
                self.write(at, was)
        self._own_steps(receiver, node)
        if not own or not self.content(Value(refs=frozenset(self._epochs_logs))).uniform:
            return None
        made = self.new("foreign", node, "history", name=".fit")
        self.write((made, "params"), self._params(node))
        logs = self.new("dict", node, "history", name=".fit")  # apart from the numbers of its batches
        self.write((logs, "[*]"), Value())
        self.write((made, "history"), Value(refs=frozenset([logs])))
        return Value(refs=frozenset([made]))

    def _as_callbacks_find(
        self, receiver: Value, own: list[Value], node: cst.CSTNode
    ) -> dict[Location, tuple[Value, Value]]:
        """Let callbacks find what a ``train_step()`` has counted so far; return that, and what was there before."""
        stepping = self._stepping(receiver)
        if not own or not stepping:
            return {}
        before, exits = dict(self.state or {}), dict(self.exits)
        with self.unrecorded():
            self._own_steps(receiver, node)
        changed = {at: was for at, was in before.items() if (self.state or {}).get(at) != was}
        self.state, self.exits = before, exits
        for value in own:
            self.write((next(iter(value.refs)), "model"), Value(refs=frozenset(stepping)))
        found: dict[Location, tuple[Value, Value]] = {}
        for at, was in changed.items():
            place = self._last_places.get(at, SAME)
            if place.kind is Kind.RUN and place.counts and self._is_zero(was):
                place = self.updates
            elif not place.uniform or place.kind is Kind.RUN:
                place = unknown(node, "a train_step() keeps it of this rank's batches", at)
            found[at] = (Value(place, scalar=was.scalar), was)
            self.write(at, found[at][0])
        return found

    def _step_on(self) -> None:
        """Let steps come between two methods of a callback: what one sets at the start of an epoch is counted on."""
        for at, (found, _) in self._stepped_on.items():
            self.write(at, found)

    def _stepping(self, receiver: Value) -> list[Obj]:
        """Return the models of the program that step or count by themselves; of a model of Keras's its layers.

        Likewise those of a model of Keras's that one of the program steps with: ``self.net = keras.Model(a, b)``.
        """
        refs = [r for r in receiver.refs if isinstance(r, Obj)]
        found = [r for r in refs if r.cls is not None and (self.member(r.cls, "train_step") or self.keeps(r))]
        held = {r for r in self.reachable([Value(refs=frozenset(found))]) if isinstance(r, Obj)}
        foreign = any(r.name.startswith(_MODELS) for r in held) if found else any(r.cls is None for r in refs)
        return found + [r for r in self.layers() if foreign and r not in held and self.keeps(r)]

    def _all_epochs(self, own: list[Value], node: cst.CSTNode) -> None:
        for value in own:
            self._told(value, node)
            self._hooked(value, "on_train_begin", [ANY], node)
            self._step_on()
        first = dict(self.state or {})
        exits = dict(self.exits)
        with self.unrecorded():  # what is carried from epoch to epoch
            for value in own:
                self._epoch(value, node)
        self.exits = exits
        self.state = merge(first, self.state)
        for value in own:
            self._epoch(value, node)
        for value in own:
            self._until_the_end(value, node)
        for value in own:
            self._hooked(value, "on_train_end", [ANY], node)

    def _own_steps(self, receiver: Value, node: cst.CSTNode) -> None:
        """Run the step of a model of the program: what it, or its layers, count in variables is read later."""
        stepping = self._stepping(receiver)
        if not stepping:
            return
        known, before = dict(self.exits), dict(self.state or {})
        at = self.script.line_of(self.script.statement_of(node))
        value = Value(refs=frozenset(stepping))
        self.over_shard(at, lambda: self._step(value, node))
        own: set[Any] = set()
        if self._runs_eagerly():
            own = {r for r in self.reachable([value]) if isinstance(r, Obj) and r.kind in _BOXES} | set(stepping)
        for made in [e for e in self.exits if e not in known]:
            if made.owner != "variable" and not (made.at is not None and made.at[0] in own):
                del self.exits[made]  # metrics are summed up by fit() itself
        kept = {at: v for at, v in (self.state or {}).items() if self._is_variable(at) or at[0] in own}
        self.state = before | kept

    def _runs_eagerly(self) -> bool:
        """Tell whether a ``train_step()`` runs with every batch, and is not traced into a graph once."""
        asked = [
            a for c in self.script.calls for a in c.args if a.keyword is not None and a.keyword.value == "run_eagerly"
        ]
        called = any(self.script.name_of(c.func).endswith("run_functions_eagerly") for c in self.script.calls)
        return called or any(isinstance(a.value, cst.Name) and a.value.value == "True" for a in asked)

    def _step(self, value: Value, node: cst.CSTNode) -> None:
        for ref in sorted((r for r in value.refs if isinstance(r, Obj)), key=lambda r: r.number):
            one = Value(refs=frozenset([ref]))
            if self.dunder(one, "train_step", [Value(ENTRY)], node) is None:
                self.dunder(one, "call", [Value(ENTRY)], node, {"training": Value(const=True, scalar=True)})
            elif self.recording:
                self._note_logs(one)

    def _note_logs(self, model: Value) -> None:
        """Note what numbers of its own a ``train_step()`` reads: what it returns of them, ``fit()`` shows."""
        steps = [self.member(ref.cls, "train_step") for ref in model.refs if isinstance(ref, Obj) and ref.cls]
        methods = {r.node for step in steps for r in (step or ANY).refs if isinstance(r, Function)}
        for node, values in self.seen.items():
            if isinstance(node, cst.BaseExpression) and any(self.script.inside(node, m) for m in methods):
                held = [v for v in self.held(values[-1]) if not v.refs and v.items is None]
                whole = [v.place for v in (held if len(held) == 1 and values[-1].refs else values[-1:])]
                self.stepped.setdefault(node, {})[whole[0]] = None

    @staticmethod
    def _is_variable(at: Any) -> bool:
        return isinstance(at[0], Obj) and at[0].kind == "foreign" and at[0].name.endswith(("Variable", ".add_weight"))

    def _is_callback(self, value: Value) -> bool:
        return any(
            ref.name.endswith("LambdaCallback")
            if ref.cls is None
            else any(base.endswith("Callback") for base in self.foreign_bases(ref.cls))
            for ref in value.refs
            if isinstance(ref, Obj)
        )

    # -- the methods of a callback, or the functions that one is made of ------------------------------------------

    def _hook(self, value: Value, name: str) -> Function | None:
        """Return what a callback runs under ``name``."""
        ref = next(iter(value.refs))
        held = self.member(ref.cls, name) if ref.cls is not None else self.read((ref, name))
        return next((r for r in (held or ANY).refs if isinstance(r, Function)), None)

    def _hooked(self, value: Value, name: str, given: list[Value], node: cst.CSTNode) -> None:
        hook = self._hook(value, name)
        if hook is not None:
            whose = value if next(iter(value.refs)).cls is not None else None
            taken = len(hook.node.params.params) - (whose is not None)
            self.run_function(hook, given[: max(taken, 0)], {}, node, whose)

    def _epoch(self, value: Value, node: cst.CSTNode) -> None:
        self._hooked(value, "on_epoch_begin", [Value(scalar=True), ANY], node)
        self._step_on()
        behind = self._behind_batches(value)
        batch = self._at_batches(value)
        if batch and behind is not None:
            own = next(iter(value.refs)).cls is not None
            frame = self.frame_of("callback", behind.node, function=behind.node, parent=None if own else behind.frame)
            before, self.frame = self.frame, frame
            if own:
                self.write((frame, behind.node.params.params[0].name.value), value)
            self.over_shard(behind.node, lambda: self._batch(value, batch, node))
            self.frame = before
        elif batch and self._hook(value, "on_epoch_end") is not None:
            return  # no line can stand in it: see below
        self._hooked(value, "on_epoch_end", [Value(scalar=True), self._logs(node, "epoch", SAME)], node)

    def _told(self, value: Value, node: cst.CSTNode) -> None:
        """Let a callback know what ``fit()`` tells it: of how many batches this rank's epochs are."""
        self.write((next(iter(value.refs)), "params"), self._params(node))

    def _params(self, node: cst.CSTNode) -> Value:
        told = self.new("dict", node, "params")
        self.write((told, '["steps"]'), Value(self.updates, scalar=True))
        self.write((told, '["epochs"]'), Value(scalar=True))
        return Value(refs=frozenset([told]))

    def _until_the_end(self, value: Value, node: cst.CSTNode) -> None:
        """Run the batches of a callback that has no method behind them: what they leave is read behind ``fit()``."""
        batch = self._at_batches(value)
        if batch and self._behind_batches(value) is None:
            at = self.script.line_of(self.script.statement_of(node))
            self.over_shard(at, lambda: self._batch(value, batch, node))

    def _at_batches(self, value: Value) -> list[str]:
        return [name for name in _BATCH if self._hook(value, name) is not None]

    def _batch(self, value: Value, names: list[str], node: cst.CSTNode) -> None:
        for name in names:
            self._hooked(value, name, [Value(self.index, scalar=True), self._logs(node, "batch", RATIO)], node)
        if self._behind_batches(value) is None:  # a lambda at the end of an epoch shows what goes on so far
            self._hooked(value, "on_epoch_end", [Value(scalar=True), self._logs(node, "epoch", SAME)], node)

    def _logs(self, node: cst.CSTNode, tag: str, place: Any) -> Value:
        made = self.new("dict", node, f"logs {tag}")
        self.write((made, "[*]"), Value(place, scalar=True))
        if tag == "epoch":
            self._epochs_logs[made] = None
        return Value(refs=frozenset([made]))

    def _behind_batches(self, value: Value) -> Function | None:
        """Return the method that is run behind the batches of an epoch, if a line can stand in it."""
        hooks = (self._hook(value, name) for name in _BEHIND)
        return next((hook for hook in hooks if hook is not None and isinstance(hook.node, cst.FunctionDef)), None)


__all__ = ["ENTRY", "Callbacks", "Frame"]
