"""Where an expression compares the samples of a batch with each other: part of what a loss does to them."""

from __future__ import annotations

import re

import libcst as cst

from dlrun.port.program.script import Script, argument, walk

_TURNS = ("flip", "roll")  # their axes come last
_TRANSPOSED = ("T", "t")  # of matrices alone: the samples come to the other axis
_FREE = ("Module", "CosineSimilarity", "Softmax", "LogSoftmax", "PairwiseDistance", "ReLU", "Sigmoid", "Identity")
STATISTICS = ("std", "var", "std_mean", "var_mean", "cov", "corrcoef")


def turned(script: Script, call: cst.Call, last: str, first: int) -> bool:
    """Tell whether ``call`` puts the samples in another order: ``e.flip(0)``; ``first`` is its first other argument."""
    if last == "flipud":
        return True
    if last not in _TURNS:
        return False
    axes = argument(call, "dims", first + (last == "roll"))
    return axes is None or "0" in re.findall(r"-?\d+", script.code(axes))


def paired(script: Script, call: cst.Call, name: str, last: str) -> bool:
    """Tell whether ``call`` takes each sample of an array with each of another: ``torch.cdist(e, e)``."""
    texts = [script.code(arg.value) for arg in call.args if arg.keyword is None]
    if name.endswith("cdist"):
        return len(texts) > 1 and texts[0] == texts[1]
    if name.endswith("einsum") and texts:
        found = re.fullmatch(r"\s*(\w)\w*\s*,\s*(\w)\w*\s*->\s*(\w+)\s*", texts[0].strip("'\""))
        return found is not None and found[1] != found[2] and {found[1], found[2]} <= set(found[3])
    if last in ("matmul", "mm", "inner"):
        return last == "inner" or any(map(_transposed, (arg.value for arg in call.args[-1:])))
    return False


def crossed(script: Script, left: cst.BaseExpression, right: cst.BaseExpression, op: cst.CSTNode | None) -> bool:
    """Tell whether samples meet others: ``q @ k.T``, ``e[:, None] - e[None]``, ``s[:-1] - s[1:]``."""
    if isinstance(op, cst.MatrixMultiply):
        return _transposed(left) or _transposed(right)
    axes = {_new_axis(script, left), _new_axis(script, right)}
    if axes == {0, 1}:
        return True
    parts = [_axis(side) for side in (left, right)]
    sides = [side.value for side in (left, right) if isinstance(side, cst.Subscript)]
    cut = all(isinstance(part, cst.Slice) and _bounded(part) for part in parts)
    return cut and script.code(sides[0]) == script.code(sides[1]) and script.code(left) != script.code(right)


def redrawn(script: Script, index: cst.BaseExpression) -> bool:
    """Tell whether ``index`` is a random order, or is bound to one: ``torch.randperm(len(e))``."""
    found = (
        [b.value for b in script.bindings_of(index) if b.value is not None] if isinstance(index, cst.Name) else [index]
    )
    calls = [n for value in found for n in walk(value) if isinstance(n, cst.Call)]
    return any(script.name_of(call.func).rpartition(".")[2] in ("randperm", "permutation") for call in calls)


def computes(script: Script, cls: cst.ClassDef) -> bool:
    """Tell whether ``cls`` has no weights of its own: a loss that is written as a module."""
    names = [script.name_of(n.func) for n in walk(cls) if isinstance(n, cst.Call)]
    made = [name for name in names if name.startswith("torch.nn.") and not name.startswith("torch.nn.functional.")]
    return all(name.endswith("Loss") or name.rpartition(".")[2] in _FREE for name in made)


def _transposed(node: cst.CSTNode) -> bool:
    called = node.func if isinstance(node, cst.Call) else node
    return isinstance(called, cst.Attribute) and called.attr.value in _TRANSPOSED


def _axis(node: cst.CSTNode) -> cst.CSTNode | None:
    """Return what a subscript takes of the first axis."""
    return node.slice[0].slice if isinstance(node, cst.Subscript) else None


def _bounded(part: cst.Slice) -> bool:
    return part.lower is not None or part.upper is not None


def _new_axis(script: Script, node: cst.CSTNode) -> int | None:
    """Return at which axis ``node`` gives an array one more: ``e[:, None]``, ``e.unsqueeze(0)``; else None."""
    if isinstance(node, cst.Subscript):
        texts = [script.code(element.slice) for element in node.slice]
        return next((i for i, text in enumerate(texts[:2]) if text in ("None", "np.newaxis", "numpy.newaxis")), None)
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value == "unsqueeze":
        at = argument(node, "dim", 0)
        text = script.code(at) if at is not None else ""
        return int(text) if text in ("0", "1") else None
    return None
