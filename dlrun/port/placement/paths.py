"""How a line in a function names what is kept somewhere: ``stats.right``, ``sums["train"]``, ``m.count`` of each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import libcst as cst

from dlrun.port.placement.store import GROWN, REST, VIEW, Bound, Class, Frame, Function, Obj, State
from dlrun.port.placement.values import Value
from dlrun.port.program.script import names_in

if TYPE_CHECKING:
    from dlrun.port.placement.interpret.machine import Machine

_LONGEST = 4  # steps from a variable


@dataclass(frozen=True)
class Path:
    """An expression, valid at the end of a loop; with the loops over containers that it stands in."""

    text: str
    each: tuple[tuple[str, str], ...] = ()
    named: bool = True  # a plain name of this function, which may be bound again
    late: bool = False  # of entries that iterations may have been the first to make
    bound: tuple[str, ...] = ()  # tests of whether it is there at all, where some runs never bind it
    fresh: bool = False  # whether its name is bound in the loop, and not before
    fixed: bool = False  # whether it is in what holds the same objects for ever: a tuple, a frozen data class

    @property
    def key(self) -> tuple[str, tuple[tuple[str, str], ...]]:
        """What it names: loops over two containers may call their entries alike."""
        return self.text, self.each

    def __add__(self, more: str) -> Path:
        return Path(self.text + more, self.each, False, self.late, self.bound, self.fresh)


def paths(machine: Machine, frame: Frame, before: State) -> dict[Any, list[Path]]:
    """Return the paths to every location and object that can be named in ``frame``, the shortest first.

    What was named so ``before`` the loop comes before what is named in it.
    """
    found: dict[Any, list[Path]] = {}
    several = _several(machine)
    todo: list[tuple[Value, Path, int]] = []
    up: Frame | None = frame
    hidden: set[str] = set()
    while up is not None:
        own = up is frame
        known = sorted(machine.fields(up), key=lambda field: (up, field[0]) not in before)
        for name, value in known:
            home = frame.declared.get(name)
            if (
                name in hidden
                or not name.isidentifier()
                or value.late
                or (isinstance(up.function, cst.ClassDef) and not own)
            ):
                continue
            hidden.add(name)
            space = "locals" if own or up.parent is not None else "globals"
            bound = (f'"{name}" in {space}()',) if before.get((up, name), value).unbound else ()
            if own or home is up:
                found.setdefault((up, name), []).append(Path(name, bound=bound))
            fresh = (up, name) not in before or before[up, name].late
            todo.append((value, Path(name, (), own or home is up, bound=bound, fresh=fresh), 0))
        up = up.parent
    for name, value_frame in frame.declared.items():
        found.setdefault((value_frame, name), []).append(Path(name))
        if (outer := (machine.state or {}).get((value_frame, name))) is not None:
            todo.append((outer, Path(name), 0))
    seen: set[Any] = set()
    shared = {ref for made in machine.defaults.values() for ref in made.refs if isinstance(ref, Obj)}
    last = [each for each in todo if each[1].fresh or each[0].refs & shared]
    todo = [each for each in todo if not (each[1].fresh or each[0].refs & shared)]
    while todo or last:
        value, path, depth = todo.pop(0) if todo else last.pop(0)  # names of defaults, and of a loop, are not there yet
        for i, item in enumerate(value.items or ()):
            if depth < _LONGEST:
                todo.append((item, replace(path + f"[{i}]", fixed=True), depth + 1))
        for ref in value.refs if len(value.refs) == 1 or _made_alike(value, path) else ():
            if isinstance(ref, (Function, Bound)) and not _one_of_several(ref, several, path):
                todo += _captured(machine, ref, path, depth, found)
            if isinstance(ref, Function):
                todo += _into(machine, ref, path, depth, found)
                todo[:0] = _defaults(machine, ref, path, depth)
            if isinstance(ref, Frame) and ref not in seen:  # a module of the project
                seen.add(ref)
                todo += _into(machine, ref, path, depth, found)
            if isinstance(ref, Class):
                todo += _into(machine, ref.body, path, depth, found)
            if not isinstance(ref, Obj) or depth > _LONGEST:
                continue
            if ref.looped and ref in several and not path.each:
                continue  # one of several that are made in one place
            found.setdefault(ref, []).append(path)
            if ref in seen:
                continue
            seen.add(ref)
            todo += _into(machine, ref, path, depth, found, before)
            if (data := machine.data_of.get(ref)) is not None:
                todo.append((Value(refs=data), path + ".dataset", depth + 1))
    return found


def _made_alike(value: Value, path: Path) -> bool:
    """Tell whether ``path`` names each of what one line has made: the newest, and those that it made before."""
    each = bool(path.each) and path.text == path.each[-1][0]
    return each and len({ref.site if isinstance(ref, Obj) else ref for ref in value.refs}) == 1


def _captured(
    machine: Machine, ref: Function | Bound, path: Path, depth: int, found: dict[Any, list[Path]]
) -> list[tuple[Value, Path, int]]:
    """Note the paths to the variables that a function shares with the function around it, which has returned."""
    frame = ref.function.frame if isinstance(ref, Bound) else ref.frame
    if isinstance(ref, Bound) or depth > 1 or frame.parent is None or frame in machine.stack:
        return []
    used = names_in(ref.node.body)
    cells = Path(f"{machine.alias}.closure({path.text})", path.each, False)
    more = []
    for name, value in machine.fields(frame):
        if name in used:
            found.setdefault((frame, name), []).append(cells + f".{name}")
            more.append((value, cells + f".{name}", depth + 1))
    return more


def _defaults(machine: Machine, ref: Function, path: Path, depth: int) -> list[tuple[Value, Path, int]]:
    """Return the objects that parameters of a function default to, which its calls share."""
    params = ref.node.params
    plain = [p for p in (*params.posonly_params, *params.params) if p.default is not None]
    places = [(p, f".__defaults__[{i}]") for i, p in enumerate(plain)]
    places += [(p, f'.__kwdefaults__["{p.name.value}"]') for p in params.kwonly_params]
    kept = [(machine.defaults.get((p, ref.frame)), place) for p, place in places]
    return [(value, path + place, depth + 1) for value, place in kept if value is not None]


def _several(machine: Machine) -> set[Any]:
    """Return the objects that stand for several, which a container keeps under keys that are not known."""
    state = machine.state or {}
    return {
        ref
        for (owner, key), value in state.items()
        if key in (REST, GROWN) and isinstance(owner, Obj) and owner.kind != "foreign" and owner.name != VIEW
        for each in (value, *(value.items or ()))
        for ref in each.refs
    }


def _one_of_several(ref: Function | Bound, several: set[Any], path: Path) -> bool:
    """Tell whether a function is one of several that are defined by one line, each with variables of its own."""
    return isinstance(ref, Function) and ref.frame.looped and ref in several and not path.each


def _into(
    machine: Machine, owner: Any, path: Path, depth: int, found: dict[Any, list[Path]], before: State | None = None
) -> list[tuple[Value, Path, int]]:
    """Note the paths to what ``owner`` holds; return what is to be followed from there."""
    more: list[tuple[Value, Path, int]] = []
    container = isinstance(owner, Obj) and owner.kind != "instance"
    for key, value in machine.fields(owner):
        if key in (REST, GROWN):
            if (
                container
                and owner.kind == "dict"
                and not any(r.kind == "instance" for r in value.refs if isinstance(r, Obj))
            ):
                for ref in value.refs:  # reduced with the dict: ranks may hold other keys
                    found.setdefault(ref, []).append(path)
                    found.update(
                        {(ref, name): [path] for name, _ in machine.fields(ref)} if isinstance(ref, Obj) else {}
                    )
            elif container:
                born = {made for made, _ in machine.born}  # by iterations, for keys that were not there
                late = path.late or owner.name == "counter" or not born.isdisjoint(value.refs)
                over = f"{path.text}.values()" if owner.kind == "dict" else path.text
                if owner.name == "counter":  # each rank may have made others
                    over = f"{machine.alias}.entries({path.text})"
                more += [
                    (own, Path(_each(path), (*path.each, (_each(path), of)), False, late, path.bound), depth + 1)
                    for own, of in _by_class(value, over)
                ]
            continue
        here = path + key if key.startswith("[") else path + f".{key}"
        if isinstance(owner, Obj) and owner.cls is not None and machine.fixed(owner.cls):
            here = replace(here, fixed=True)
        if key == "@":
            continue
        if (before or {}).get((owner, key), value).unbound and not path.each:
            test = f"{key[1:-1]} in {path.text}" if key.startswith("[") else f'hasattr({path.text}, "{key}")'
            here = replace(here, bound=(*here.bound, test))
        found.setdefault((owner, key), []).append(here)
        more.append((value, here, depth + 1))
    return more


def _by_class(value: Value, over: str) -> list[tuple[Value, str]]:
    """Return what a container holds class by class, each with an expression for those of its class in ``over``."""
    classes = dict.fromkeys(ref.cls for ref in value.refs if isinstance(ref, Obj))
    if len(classes) == 1:
        return [(value, over)]
    found = []
    for cls in sorted((c for c in classes if c is not None), key=lambda c: c.node.name.value):
        own = frozenset(ref for ref in value.refs if isinstance(ref, Obj) and ref.cls is cls)
        found.append((replace(value, refs=own), f'[m for m in {over} if type(m).__name__ == "{cls.node.name.value}"]'))
    return found


def _each(path: Path) -> str:
    """Return a name for one of what ``path`` holds: ``metric`` of ``metrics``."""
    last = path.text.split(".")[-1].split("[")[0]
    return last[:-1] if last.endswith("s") and len(last) > 3 else f"each_{last}"
