"""What a pass yields: an Edit where it knows, a Doubt where it does not; and ``apply``, the one walk that writes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import libcst as cst

from dlrun.port.program.nodes import children

Rewrite = Callable[[Any], Any]
Danger = Literal["high", "medium", "low"]


def unchanged(node: Any) -> Any:
    """Return ``node``."""
    return node


@dataclass(frozen=True, eq=False)
class Edit:
    """One change: where, why, and how. ``node`` belongs to the tree that the facts came from.

    ``rewrite`` gets the node with all edits inside it already done. ``before`` and ``after`` are whole statements;
    for them ``node`` is a statement. ``step`` is the step of the port it belongs to, filled in by the driver.
    """

    node: cst.CSTNode
    why: str
    rewrite: Rewrite = unchanged
    before: tuple[cst.CSTNode, ...] = ()
    after: tuple[cst.CSTNode, ...] = ()
    step: str = ""


NAMES = {
    "start": "name-differs",
    "broadcast": "ranks-diverge",
    "gradients": "not-averaged",
    "shard": "not-shared",
    "rate": "rate-not-scaled",
    "steps": "counts-steps",
    "metrics": "local-number",
    "output": "several-writers",
    "finish": "no-caller",
}
"""The name of a doubt of each step that has none of its own."""


@dataclass(frozen=True, eq=False)
class Doubt:
    """What a pass saw and would not touch: where, what is at stake, and the line a person could write.

    ``name`` is the kind of doubt, in kebab case; ``DOUBTS.md`` explains each. Without one it is the step's, see NAMES.
    """

    node: cst.CSTNode
    why: str
    danger: Danger = "medium"
    write: str = ""
    step: str = ""
    name: str = ""

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", NAMES.get(self.step, ""))


@dataclass(frozen=True, eq=False)
class Note:
    """What was left as it is, and is right so: where, and why."""

    node: cst.CSTNode
    why: str


_LEAVES = (cst.Return, cst.Break, cst.Continue, cst.Raise)


class _Walk(cst.CSTTransformer):
    """Carries out all edits of a tree in one walk, innermost first; it goes down only where one is."""

    def __init__(self, module: cst.Module, edits: Sequence[Edit]) -> None:
        super().__init__()
        self.edits: dict[int, list[Edit]] = {}
        for edit in edits:
            self.edits.setdefault(id(edit.node), []).append(edit)
        self.around: set[int] = set()
        self._note(module)

    def _note(self, node: cst.CSTNode) -> bool:
        """Note which nodes hold edits, and tell whether ``node`` does or has one itself."""
        below = [self._note(child) for child in children(node)]
        if any(below):
            self.around.add(id(node))
        return id(node) in self.around or id(node) in self.edits

    def on_visit(self, node: cst.CSTNode) -> bool:
        return id(node) in self.around

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        updated: Any = super().on_leave(original_node, updated_node)
        edits = self.edits.get(id(original_node))
        if not edits:
            return updated
        node = updated
        for edit in edits:
            node = edit.rewrite(node)
        before = [statement for edit in edits for statement in edit.before]
        after = [statement for edit in edits for statement in edit.after]
        if not before and not after:
            return node
        if isinstance(original_node, cst.BaseSmallStatement):
            before, after = [_small(s) for s in before], [_small(s) for s in after]
            node = node.with_changes(semicolon=cst.MaybeSentinel.DEFAULT)
        elif before and isinstance(before[0], cst.SimpleStatementLine):
            # The blank lines above the anchor move above what is inserted; its comments stay with it.
            blank, rest = _split(node.leading_lines)
            if not isinstance(original_node, (cst.FunctionDef, cst.ClassDef)):
                before[0] = before[0].with_changes(leading_lines=blank)
                node = node.with_changes(leading_lines=rest)
        kept = [] if node is cst.RemoveFromParent() else [node]
        left = _leaving(node) if after else None
        if left is not None:
            kept, after = [left[0]], [*after, left[1]]
        return cst.FlattenSentinel([*before, *kept, *after])


def _leaving(line: cst.CSTNode) -> tuple[cst.SimpleStatementLine, cst.SimpleStatementLine] | None:
    """Return a line that ends with one, before ``return`` or the like and from there: behind it nothing is run."""
    if not isinstance(line, cst.SimpleStatementLine) or len(line.body) < 2 or not isinstance(line.body[-1], _LEAVES):
        return None
    *first, last = line.body
    first[-1] = first[-1].with_changes(semicolon=cst.MaybeSentinel.DEFAULT)
    return (
        line.with_changes(body=first, trailing_whitespace=cst.TrailingWhitespace()),
        cst.SimpleStatementLine([last], trailing_whitespace=line.trailing_whitespace),
    )


def _small(statement: cst.CSTNode) -> cst.BaseSmallStatement:
    """Return the one small statement of a line, to be put beside others on a line: its comment has no place there."""
    assert isinstance(statement, cst.SimpleStatementLine) and len(statement.body) == 1
    return statement.body[0]


def _split(lines: Sequence[cst.EmptyLine]) -> tuple[list[cst.EmptyLine], list[cst.EmptyLine]]:
    """Return the blank lines at the head of ``lines``, and the rest."""
    first = next((i for i, line in enumerate(lines) if line.comment is not None), len(lines))
    return list(lines[:first]), list(lines[first:])


def apply(module: cst.Module, edits: Iterable[Edit], order: Sequence[str] = ()) -> cst.Module:
    """Return ``module`` with ``edits`` carried out; without edits, the very same text.

    Edits that meet at one node are done in the order of their steps, so that the text does not depend on the order
    in which the passes ran.
    """
    rank = {step: i for i, step in enumerate(order)}
    ordered = sorted(edits, key=lambda e: (rank.get(e.step, len(rank)), e.why))
    if not ordered:
        return module
    changed = module.visit(_Walk(module, ordered))
    assert isinstance(changed, cst.Module)
    return changed
