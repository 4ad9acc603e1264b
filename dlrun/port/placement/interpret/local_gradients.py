"""Gradients between the backward pass that makes them and the statement that averages them: who reads them there."""

from __future__ import annotations

from collections.abc import Mapping

import libcst as cst

_LEFT = ("zero_", "requires_grad", "shape", "device", "dtype", "is_sparse")
_NONE = (cst.Is, cst.IsNot, cst.Equal, cst.NotEqual)


class LocalGradients:
    """Notes, in the order of the run, which backward passes made gradients that something reads while they are local.

    ``early`` has, by the statement that averages, the first read before it; ``made`` the backward passes whose
    gradients it averages. ``diverged`` are those that ranks may run more or less often than others. ``left`` has what
    reads gradients that no statement of their loop averages: of a Fisher matrix, say.
    """

    def __init__(self, averaged: Mapping[cst.CSTNode, cst.CSTNode]) -> None:
        """Begin without gradients; ``averaged`` are the statements before which they are averaged, by their lines."""
        self.averaged = averaged
        self.early: dict[cst.CSTNode, cst.CSTNode] = {}
        self.made: dict[cst.CSTNode, dict[cst.Call, None]] = {}
        self.diverged: set[cst.Call] = set()
        self.left: dict[cst.CSTNode, None] = {}
        self._fresh: dict[cst.Call, None] = {}
        self._reads: dict[cst.CSTNode, None] = {}

    def backward(self, call: cst.Call, diverged: bool) -> None:
        """Note that ``call`` makes gradients of this rank's samples; what was read of earlier ones counts, too."""
        self._fresh[call] = None
        if diverged:
            self.diverged.add(call)

    def read(self, node: cst.CSTNode) -> None:
        """Note that ``node`` reads gradients."""
        if self._fresh:
            self._reads[node] = None

    def loop_ends(self) -> None:
        """Note that a loop over a shard ends: what its iterations have made is not averaged behind it."""
        self.left.update(self._reads)
        self._fresh, self._reads = {}, {}

    def statement(self, node: cst.CSTNode) -> None:
        """Note that ``node`` is run next: where gradients are averaged before it, they are local no longer."""
        before = self.averaged.get(node)
        if before is None:
            return
        self.made.setdefault(before, {}).update(self._fresh)
        if self._reads:
            self.early.setdefault(before, next(iter(self._reads)))
        self._fresh, self._reads = {}, {}


def leaves_them(node: cst.Attribute, parent: cst.CSTNode | None) -> bool:
    """Tell whether ``p.grad`` is only asked whether it is there, or set to zero."""
    if isinstance(parent, cst.Attribute):
        return parent.attr.value in _LEFT
    if isinstance(parent, cst.Comparison):
        return all(isinstance(c.operator, _NONE) for c in parent.comparisons)
    return isinstance(parent, (cst.If, cst.UnaryOperation, cst.Del))
