"""Where values are kept: frames, objects, and the state that maps each location to a value."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import libcst as cst

from dlrun.port.placement.values import ANY, NOTHING, Value, constant, diverged, join, of_clock

REST = "[*]"  # an entry under a key that is not known
GROWN = "[]"  # what was appended
OTHERS = "**"  # what a call is given under names that are not known
CONTENT = "@"  # what an object of a library holds
LOCAL = "draws locally"  # of a library of random numbers: that each rank draws its own
VIEW = "view"  # the name of a list of what another container holds
PROPERTY = "property"  # the name of an object that stands for an attribute that functions compute


@dataclass(eq=False)
class Frame:
    """The variables of one call of a function, or of a module or class body."""

    function: cst.CSTNode
    parent: Frame | None  # of the function around it
    call: cst.CSTNode | None = None
    declared: dict[str, Frame] = field(default_factory=dict)  # global and nonlocal names
    looped: bool = False  # of a call in a loop or a comprehension: may stand for several


@dataclass(eq=False)
class Obj:
    """An object by the place that makes it: an instance, a list, a dict, a set, or something of a library's."""

    kind: str  # list, dict, set, deque, instance, foreign, generator
    site: cst.CSTNode
    frame: Frame
    cls: Any = None
    name: str = ""  # the qualified name of the foreign class or function that made it
    looped: bool = False  # made in a loop or a comprehension: may stand for several
    within: tuple[cst.CSTNode, ...] = ()  # the loops that made it, the outermost first
    number: int = field(default_factory=count().__next__)

    def __hash__(self) -> int:
        return self.number  # not the address: sets of objects have one order in every run


def length_of(ref: Obj) -> str:
    """Return the name of the length that ``ref`` has while a loop fills it."""
    return f"length of {ref.number}"


@dataclass(frozen=True, eq=False)
class Function:
    """A function or lambda of the program, with the frame it was defined in."""

    node: cst.FunctionDef | cst.Lambda
    frame: Frame
    owner: Any = None  # the class that it was defined in

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Function) and (self.node, self.frame) == (other.node, other.frame)

    def __hash__(self) -> int:
        return hash((self.node, self.frame))


@dataclass(frozen=True)
class Bound:
    """A method of the program, bound to its object; or a function with arguments that were given early."""

    function: Function
    receiver: Value
    given: tuple[Value, ...] = ()
    named: tuple[tuple[str, Value], ...] = ()


@dataclass(frozen=True)
class Method:
    """A method of something that is no object of a class of the program: ``losses.append``, ``metric.update``."""

    receiver: Value
    name: str


@dataclass(eq=False)
class Class:
    """A class of the program; ``body`` is the frame of its class variables."""

    node: cst.ClassDef
    body: Frame
    bases: tuple[Value, ...] = ()


Location = tuple[Any, str]  # a Frame or an Obj (or a Class' body), and a name, an attribute, or a key
State = dict[Location, Value]


def merge(a: State | None, b: State | None) -> State | None:
    """Return what holds where two ways meet that all ranks go alike; None is a way that does not arrive."""
    if a is None or b is None:
        return b if a is None else a
    if a is b:
        return a
    out = dict(a)
    for location, value in b.items():
        known = out.get(location)
        if known is not value:
            out[location] = _given(location, value, a) if known is None else join(known, value)
    return _only_of(out, a, b)


def _given(location: Location, value: Value, other: State) -> Value:
    """Return what ``location`` holds that one of two ways has written, and ``other`` has not.

    Something of a library's had it before: ``if not torch.cuda.is_available(): args.amp = False`` leaves ``args.amp``
    what the command line says elsewhere. So had a dict whose keys are not known.
    """
    owner, name = location
    if value.const is NOTHING or not isinstance(owner, Obj):
        return value
    if owner.kind == "foreign" and name.isidentifier():
        return replace(value, const=NOTHING)
    rest = other.get((owner, REST)) if owner.kind == "dict" and name.startswith("[") and name != GROWN else None
    return value if rest is None else join(rest, value)


def _only_of(out: State, a: State, b: State) -> State:
    """Return what two ways leave, with what the first one alone has written as ``_given``."""
    if a.keys() <= b.keys():
        return out
    for location in a.keys() - b.keys():
        out[location] = _given(location, a[location], b)
    return out


def merge_diverged(a: State | None, b: State | None, test: cst.CSTNode, drawn: bool = False) -> State | None:
    """Return what holds where two ways meet that some ranks go one and some the other."""
    if a is None or b is None:
        return b if a is None else a
    out = dict(a)
    for location, value in b.items():
        known = out.get(location)
        if known is not value:
            out[location] = _given(location, value, a) if known is None else diverged(known, value, test, drawn)
    return _only_of(out, a, b)


def set_by_clock(out: State | None, a: State | None, b: State | None) -> None:
    """Mark in ``out`` what a test of the clock, outside loops over shards, has set: ``a`` on some ranks, or ``b``."""
    if out is not None and a is not None and b is not None:
        changed = [at for at in a.keys() & b.keys() if a[at] is not b[at] and a[at] != b[at]]
        out.update({at: of_clock(out[at]) for at in changed})


@dataclass(frozen=True)
class Member:
    """A member of one of the program's enumerations, as ``text`` names it: ``Phase.TRAIN``."""

    text: str

    def __repr__(self) -> str:
        return self.text


_PLAIN = (str, int, bool, Member)


def key_of(const: Any) -> str | None:
    """Return the key under which an entry ``[const]`` is kept; None for what is no plain constant."""
    if isinstance(const, str):
        return f"[{json.dumps(const)}]"
    if isinstance(const, tuple):
        return f"[{const!r}]" if const and all(isinstance(each, _PLAIN) for each in const) else None
    return f"[{const!r}]" if isinstance(const, (int, bool, Member)) else None


def of_key(key: str) -> Value:
    """Return what is kept under ``key`` is asked by; nothing is known of one that is made of others."""
    text = key[1:-1]
    if text[:1] == '"':
        return constant(json.loads(text))
    if text.lstrip("-").isdigit():
        return constant(int(text))
    return Value(const=Member(text)) if text.replace(".", "").isidentifier() and "." in text else ANY


def key_in(value: Value) -> Any:
    """Return the constant that a value is as a key; of a tuple of constants that tuple."""
    if value.const is NOTHING and value.items:
        each = tuple(item.const for item in value.items)
        return each if all(isinstance(const, _PLAIN) for const in each) else NOTHING
    return value.const


__all__ = [
    "ANY",
    "CONTENT",
    "GROWN",
    "LOCAL",
    "OTHERS",
    "PROPERTY",
    "REST",
    "VIEW",
    "Bound",
    "Class",
    "Frame",
    "Function",
    "Location",
    "Method",
    "Obj",
    "State",
    "key_of",
    "merge",
    "merge_diverged",
    "set_by_clock",
]
