"""Lists and dicts of models, or of optimizers: ``nets = [make() for _ in range(5)]``."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import libcst as cst

from dlrun.port.facts.models.kinds import Kinds
from dlrun.port.program.dicts import pairs
from dlrun.port.program.script import dotted, walk


def contents(kinds: Kinds, box: cst.CSTNode) -> list[cst.BaseExpression]:
    """Return what the list or dict ``box`` holds: written out, by a comprehension, appended or put under keys."""
    found: list[cst.BaseExpression] = []
    for origin in kinds.flow.origins(box):
        match origin.node:
            case cst.List() | cst.Tuple() as made:
                found += [e.value for e in made.elements]
            case cst.Dict() | cst.Call(func=cst.Name("dict")) as made:
                found += [value for _, value in pairs(made)]
                found += [value for _, value in kinds.flow.stored(made)]
            case cst.ListComp() as made:
                found.append(made.elt)
            case cst.DictComp() as made:
                found.append(made.value)
            case _:
                return []
    return [*found, *_appended(kinds, box)]


def _appended(kinds: Kinds, box: cst.CSTNode) -> list[cst.BaseExpression]:
    """Return what ``append`` puts into ``box``."""
    fills = [c for c in kinds.script.calls if dotted(c.func) == f"{dotted(box)}.append" and len(c.args) == 1]
    same = kinds.script.bindings_of(box)
    return [c.args[0].value for c in fills if kinds.script.bindings_of(c.func.value) == same]  # type: ignore[attr-defined]


def boxed(
    kinds: Kinds, candidates: Iterable[tuple[str, cst.CSTNode]], bodies: Iterable[cst.CSTNode], known: Collection[str]
) -> Iterator[str]:
    """Yield those of ``candidates``, used in ``bodies``, that hold models or optimizers, not only ``known`` ones."""
    bodies = list(bodies)
    used = {n.value for body in bodies for n in walk(body) if isinstance(n, cst.Name)}
    for name, node in candidates:
        if name not in known and name.rsplit(".", 1)[-1] in used and not kinds.of(node):
            held = [entry for entry in contents(kinds, node) if not kinds.script.inside(entry, bodies[0])]  # not later
            trained = {kinds.of(entry) for entry in held} in ({"module"}, {"optimizer"})
            if trained and not all(dotted(entry) in known for entry in held):
                yield name
