"""Lists of numbers: made empty, and filled one by one, as the losses of all batches are."""

from __future__ import annotations

from collections.abc import Callable

import libcst as cst

from dlrun.port.program.dicts import pairs
from dlrun.port.program.flow import Flow
from dlrun.port.program.script import Binding, Path, argument, calls_method, dotted

FILLS = ("append", "extend", "insert")
_ARRAYS = ("numpy.array", "numpy.asarray", "numpy.stack", "torch.tensor", "torch.Tensor")
_ROWS = ("builtins.list", "builtins.tuple", "builtins.sorted", "builtins.reversed")


class Lists:
    """Tells which expressions are lists that a script fills with ``append``, and with what."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self.script = flow.script

    def filled(self, box: cst.CSTNode, how: tuple[str, ...] = ("append",)) -> list[cst.Call]:
        """Return the calls that fill the list ``box``, a name, ``self.losses`` or ``kept["loss"]``.

        None where it is not made empty everywhere, or filled in other ways than ``how``. The empty list itself stands
        for one of several, ``[[] for _ in nets]``, which loops fill by names of their own.
        """
        if isinstance(box, cst.List):
            return self._by_others({box})
        passed: list[cst.CSTNode] = []
        while (other := self._returned(box)) is not None and other not in passed:
            passed.append(other)
            box = other
        if not isinstance(box, (cst.Name, cst.Attribute, cst.Subscript)):
            return []
        root = box.value if isinstance(box, cst.Subscript) else box
        bindings, keyed = self._bindings(root), root is not box
        bindings = [b for b in bindings if not self._is_turned(b, box)]
        if any(b.path[:1] == ("each",) for b in bindings) or (keyed and self._numbered(root)):
            return self._by_others({o.node for o in self.flow.origins(box)})
        if not bindings or not all(
            b.how == "assign" and self._is_empty(b.written, box if keyed else None) for b in bindings
        ):
            return []
        fills = [call for call in self.script.calls if self._into(call, box, bindings)]
        plain = all(len(c.args) == 1 and c.func.attr.value in how for c in fills)  # type: ignore[attr-defined]
        return fills if plain else []

    def _numbered(self, root: cst.CSTNode) -> bool:
        """Tell whether ``root`` is made of several lists: ``[[] for _ in nets]``."""
        made = [o.node for o in self.flow.origins(root)]
        return bool(made) and all(isinstance(n, (cst.List, cst.ListComp, cst.DictComp)) for n in made)

    def _by_others(self, made: set[cst.CSTNode]) -> list[cst.Call]:
        """Return the calls that fill the lists ``made``, by whatever name: ``for h in histories: h.append()``."""
        if not made or not all(isinstance(n, cst.List) and not n.elements for n in made):
            return []
        adds = [c for c in self.script.calls if calls_method(c, *FILLS)]
        fills: list[cst.Call] = [c for c in adds if made & {o.node for o in self.flow.origins(c.func.value)}]
        return fills if all(len(c.args) == 1 and calls_method(c, "append") for c in fills) else []

    def of(self, box: cst.CSTNode, are: Callable[[cst.BaseExpression], bool]) -> bool:
        """Tell whether ``box`` is a list of what ``are`` accepts."""
        fills = self.filled(box)
        return bool(fills) and all(are(call.args[0].value) for call in fills)

    def _returned(self, box: cst.CSTNode) -> cst.Name | None:
        """Return the name of the list that a function of the script returns, if ``box`` is what it returned."""
        bindings = self._bindings(box)
        if len(bindings) != 1 or not isinstance(bindings[0].value, cst.Call) or len(bindings[0].path) > 1:
            return None
        ends = [r for t in self.flow.targets(bindings[0].value) for r in self.flow.returns(t)]
        only, at = ends[0] if len(ends) == 1 else None, bindings[0].path[0] if bindings[0].path else None
        if isinstance(only, cst.Tuple) and isinstance(at, int) and at < len(only.elements):
            only = only.elements[at].value
        elif at is not None:
            return None
        return only if isinstance(only, cst.Name) and not any(b.how == "param" for b in self._bindings(only)) else None

    def _into(self, call: cst.Call, box: cst.Name | cst.Attribute | cst.Subscript, bindings: list[Binding]) -> bool:
        """Tell whether ``call`` fills ``box``, which ``bindings`` make; an attribute also by another name before it."""
        func = call.func
        if not isinstance(func, cst.Attribute) or func.attr.value not in FILLS:
            return False
        other, keyed = func.value, isinstance(box, cst.Subscript)
        roots = [n.value if keyed and isinstance(n, cst.Subscript) else n for n in (other, box)]
        same = self._alike(other, box)
        if not same and all(isinstance(n, cst.Attribute) for n in roots):
            entry = not keyed or (isinstance(other, cst.Subscript) and _text(other) == _text(box) is not None)  # type: ignore[arg-type]
            same = entry and len({n.attr.value for n in roots if isinstance(n, cst.Attribute)}) == 1
        return same and all(b in self._bindings(roots[0]) for b in bindings)

    def _alike(self, one: cst.CSTNode, other: cst.CSTNode) -> bool:
        """Tell whether both are called the same, in whatever quotation marks their keys are written."""
        if isinstance(one, cst.Subscript) and isinstance(other, cst.Subscript) and _text(one) is not None:
            return _text(one) == _text(other) and self.script.code(one.value) == self.script.code(other.value)
        return self.script.code(one) == self.script.code(other)

    def _bindings(self, node: cst.CSTNode) -> list[Binding]:
        return self.script.kept_bindings(node) or self.flow.bindings(node)

    def _is_turned(self, binding: Binding, box: cst.CSTNode) -> bool:
        """Tell whether ``binding``, after ``box`` or around it, makes an array of the list: ``x = np.array(x)``."""
        made, script = binding.written, self.script
        into = isinstance(made, cst.Call) and script.name_of(made.func) in _ARRAYS and made.args
        after = script.inside(box, binding.node) or script.order[box] < script.order[binding.node]
        return bool(into) and script.code(made.args[0].value) == script.code(box) and after  # type: ignore[union-attr]

    def _is_empty(self, made: cst.BaseExpression | None, entry: cst.CSTNode | None = None) -> bool:
        """Tell whether ``made`` is an empty list, or where it is kept as an ``entry``, a dict that begins it so."""
        match made:
            case cst.List():
                return not made.elements and entry is None
            case cst.Dict() | cst.Call(func=cst.Name("dict")) if isinstance(entry, cst.Subscript):
                begun, key = pairs(made), _text(entry)
                own = [value for k, value in begun if isinstance(k, cst.SimpleString) and k.evaluated_value == key]
                if key is None or not own:
                    return all(k is not None and self._is_empty(value) for k, value in begun)
                return all(map(self._is_empty, own))
            case cst.Call():
                name = self.script.name_of(made.func)
                if name == "dataclasses.field":
                    factory = argument(made, "default_factory")
                    return factory is not None and dotted(factory) == "list" and entry is None
                of_lists = [dotted(a.value) for a in made.args] == ["list"] and name == "collections.defaultdict"
                return of_lists if entry is not None else name == "builtins.list" and not made.args
        return False


def _text(entry: cst.Subscript) -> str | bytes | None:
    """Return the key of ``entry``, where it is written out: ``kept["loss"]``."""
    key = _key(entry)
    return key.evaluated_value if isinstance(key, cst.SimpleString) else None


def turned(value: cst.CSTNode, path: Path) -> cst.CSTNode | None:
    """Return the box whose entries a loop over ``value`` gives one by one at ``path``: of zip() an argument."""
    if path[:1] != ("each",) or isinstance(value, (cst.Name, cst.Attribute)):
        return value if path == ("each",) else None
    match value:
        case cst.Call(func=cst.Name("enumerate"), args=[cst.Arg(value=over), *_]) if path[1:2] == (1,):
            return turned(over, ("each", *path[2:]))
        case cst.Call(func=cst.Name("zip"), args=args):
            at = path[1] if len(path) > 1 else None
            return turned(args[at].value, ("each", *path[2:])) if isinstance(at, int) and at < len(args) else None
        case cst.Call(func=cst.Attribute(value=box, attr=cst.Name("values")), args=[]) if path == ("each",):
            return box
        case cst.Call(func=cst.Attribute(value=box, attr=cst.Name("items")), args=[]) if path == ("each", 1):
            return box
    return None


def keys_are_written(
    flow: Flow, entries: cst.CSTNode, alone: bool = False, within: frozenset[str] = frozenset()
) -> bool:
    """Tell whether ``entries`` are those of a dict whose keys are all written out, and so alike on all ranks.

    They are the items of one, or (``alone``) its keys: ``for phase in loaders``, ``for phase in sorted(loaders)``.
    A loop over a dict (of those ``within``) brings it no new keys: ``for k in weights: weights[k] = ...``.
    """
    while isinstance(entries, cst.Call) and flow.script.name_of(entries.func) in _ROWS and entries.args:
        entries = entries.args[0].value
    box = entries if alone else None
    if calls_method(entries, "keys" if alone else "items") and isinstance(entries.func, cst.Attribute):
        box = entries.func.value
    made = [o.node for o in flow.origins(box)] if box is not None else []
    begun = [key for n in made for key, _ in pairs(n)]
    code = flow.script.code(box) if box is not None else ""
    if code and code in within:
        return True
    within |= {code}
    boxes = [t.target for n in flow.script.of(cst.Assign) for t in n.targets if isinstance(t.target, cst.Subscript)]
    filled = [entry for entry in boxes if flow.script.code(entry.value) == code]
    dicts = bool(made) and all(
        isinstance(n, cst.Dict) or flow.keyworded(n) or _keyed_alike(flow, n, within) for n in made
    )
    written = all(_text(entry) is not None or _turns_written(flow, _key(entry), within) for entry in filled)
    return dicts and all(isinstance(key, cst.SimpleString) for key in begun) and written


def _keyed_alike(flow: Flow, made: cst.CSTNode, within: frozenset[str]) -> bool:
    """Tell whether the keys of a dict are those of a loop: ``{p: loader(p) for p in ["train", "val"]}``."""
    if isinstance(made, cst.Call) and flow.script.name_of(made.func) == "builtins.dict" and len(made.args) == 1:
        return _texts(flow, made.args[0].value, True, within)
    return isinstance(made, cst.DictComp) and _turns_written(flow, made.key, within)


def _turns_written(flow: Flow, key: cst.CSTNode | None, within: frozenset[str]) -> bool:
    """Tell whether ``key`` is bound by loops alone, each of which goes through texts that are written out."""
    bound = flow.bindings(key) if isinstance(key, cst.Name) else []
    iterations = [b for b in bound if b.path in (("each",), ("each", 0)) and b.value is not None]
    return (
        bool(bound)
        and bound == iterations
        and all(_texts(flow, b.value, b.path != ("each",), within) for b in iterations)
    )


def _texts(flow: Flow, entries: cst.CSTNode | None, first: bool, within: frozenset[str]) -> bool:
    """Tell whether a loop over ``entries`` gets texts that are written out, or as the ``first`` of what it gets."""
    if isinstance(entries, cst.Call) and flow.script.name_of(entries.func) == "builtins.zip" and first:
        return bool(entries.args) and _texts(flow, entries.args[0].value, False, within)
    made = [o.node for o in flow.origins(entries)] if entries is not None and not first else []
    if made and all(isinstance(n, (cst.List, cst.Tuple)) for n in made):
        return all(isinstance(e.value, cst.SimpleString) for n in made for e in n.elements)  # type: ignore[attr-defined]
    return entries is not None and keys_are_written(flow, entries, not first, within)


def _key(entry: cst.Subscript) -> cst.CSTNode | None:
    at = entry.slice[0].slice
    return at.value if isinstance(at, cst.Index) else None
