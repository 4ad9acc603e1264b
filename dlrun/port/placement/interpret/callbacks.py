"""Callbacks of Keras: what ``fit()`` runs batch by batch is a loop over a shard that stands in the library."""

from __future__ import annotations

from typing import Any

import libcst as cst

from dlrun.port.placement.interpret.control_flow import ControlFlow
from dlrun.port.placement.store import Class, Frame, Function, Obj, merge
from dlrun.port.placement.values import ANY, COUNT, ENTRY, RATIO, SAME, Value

_BATCH = ("on_train_batch_begin", "on_batch_begin", "on_train_batch_end", "on_batch_end")
_BEHIND = ("on_epoch_end", "on_train_end")


class Callbacks(ControlFlow):
    """Runs the callbacks that ``fit()`` is given."""

    def fitted(self, given: list[Value], node: cst.CSTNode) -> None:
        """Run the methods of the program's callbacks as ``fit()`` does: epochs of batches of this rank's shard."""
        held = [Value(refs=frozenset([r])) for r in self.reachable(given) if r.kind == "instance"]
        own = [value for value in held if self._is_callback(value)]
        if not own or self.loop is not None:
            return
        for value in own:
            self._told(value, node)
            self.dunder(value, "on_train_begin", [ANY], node)
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
            self.dunder(value, "on_train_end", [ANY], node)

    def _is_callback(self, value: Value) -> bool:
        return any(
            base.endswith("Callback")
            for ref in value.refs
            if isinstance(ref, Obj) and ref.cls is not None
            for base in self.foreign_bases(ref.cls)
        )

    def _epoch(self, value: Value, node: cst.CSTNode) -> None:
        self.dunder(value, "on_epoch_begin", [Value(scalar=True), ANY], node)
        ref = next(iter(value.refs))
        behind = self._behind_batches(ref.cls)
        batch = self._at_batches(ref.cls)
        if batch and behind is not None:
            frame = self.frame_of("callback", behind, function=behind, parent=None)
            before, self.frame = self.frame, frame
            self.write((frame, behind.params.params[0].name.value), value)
            self.over_shard(behind, lambda: self._batch(value, batch, node))
            self.frame = before
        self.dunder(value, "on_epoch_end", [Value(scalar=True), self._logs(node, "epoch", SAME)], node)

    def _told(self, value: Value, node: cst.CSTNode) -> None:
        """Let a callback know what ``fit()`` tells it: of how many batches this rank's epochs are."""
        told = self.new("dict", node, "params")
        self.write((told, '["steps"]'), Value(COUNT, scalar=True))
        self.write((next(iter(value.refs)), "params"), Value(refs=frozenset([told])))

    def _until_the_end(self, value: Value, node: cst.CSTNode) -> None:
        """Run the batches of a callback that has no method behind them: what they leave is read behind ``fit()``."""
        cls = next(iter(value.refs)).cls
        batch = self._at_batches(cls)
        if batch and self._behind_batches(cls) is None:
            at = self.script.line_of(self.script.statement_of(node))
            self.over_shard(at, lambda: self._batch(value, batch, node))

    def _at_batches(self, cls: Class) -> list[str]:
        return [name for name in _BATCH if self.member(cls, name) is not None]

    def _batch(self, value: Value, names: list[str], node: cst.CSTNode) -> None:
        for name in names:
            given = [Value(self.index, scalar=True), self._logs(node, "batch", RATIO)]
            self.dunder(value, name, given, node)

    def _logs(self, node: cst.CSTNode, tag: str, place: Any) -> Value:
        made = self.new("dict", node, f"logs {tag}")
        self.write((made, "[*]"), Value(place, scalar=True))
        return Value(refs=frozenset([made]))

    def _behind_batches(self, cls: Class) -> Any:
        """Return the method that is run behind the batches of an epoch."""
        for name in _BEHIND:
            for ref in (self.member(cls, name) or ANY).refs:
                if isinstance(ref, Function) and isinstance(ref.node, cst.FunctionDef):
                    return ref.node
        return None


__all__ = ["ENTRY", "Callbacks", "Frame"]
