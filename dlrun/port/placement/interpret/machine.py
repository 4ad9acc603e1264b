"""The machine under the abstract run: its state, its frames, and what it records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import libcst as cst

from dlrun.port.placement.interpret import parts
from dlrun.port.placement.interpret.local_gradients import LocalGradients
from dlrun.port.placement.interpret.raised import Raised
from dlrun.port.placement.rules import Row, of_function
from dlrun.port.placement.shards import Shards
from dlrun.port.placement.store import (
    CONTENT,
    GROWN,
    REST,
    Bound,
    Class,
    Frame,
    Function,
    Location,
    Method,
    Obj,
    State,
    merge,
    merge_diverged,
)
from dlrun.port.placement.values import (
    ANY,
    COUNT,
    EMPTY,
    ENTRY,
    INDEX,
    MIX,
    MIXED,
    NOTHING,
    SAME,
    Kind,
    Place,
    Value,
    combine,
    join,
    of_clock,
    unknown,
)
from dlrun.port.program.script import Script, children, dotted, walk

BUDGET = 150_000  # nodes that one run may evaluate
DEPTH = 24  # calls within calls
_MAKES = (Row.ZEROS, Row.FILLED, Row.KEEPS, Row.JOIN)  # an array of the program's own
_CONTAINERS = ("list", "set", "deque", "dict")


def _instead(refs: frozenset[Any], made: Obj, earlier: Obj) -> frozenset[Any]:
    return frozenset(earlier if ref is made else ref for ref in refs)


@cache
def encloses(function: cst.CSTNode) -> bool:
    """Tell whether functions are defined in ``function``, which may read its variables later."""
    todo = list(children(function))
    while todo:
        node = todo.pop()
        if isinstance(node, (cst.FunctionDef, cst.Lambda, cst.ClassDef, cst.GeneratorExp)):
            return True
        todo += children(node)
    return False


class LostError(Exception):
    """The budget is spent."""


@dataclass(eq=False)
class Sharded:
    """A loop over a shard that is being run: whose iterations the placements in it are about."""

    node: cst.CSTNode
    frame: Frame
    outer: int  # how many tests had diverged before it
    own: bool = False  # whether it goes through a shard itself, and not through what its body draws
    whole: cst.CSTNode | None = None  # the loader whose batches are sharded as they are
    inner: int = 0  # how deep in loops whose number of iterations differs between ranks
    asked: set[Obj] = field(default_factory=set)  # dicts that its body asks for what they hold


@dataclass(frozen=True)
class Field:
    """A field of a template, ``"{loss.avg}".format(loss=losses)``: what is given for it, and what it reads of that."""

    call: cst.Call
    named: str
    source: cst.BaseExpression
    read: cst.BaseExpression


@dataclass(eq=False)
class Sink:
    """A call that shows, writes or keeps, and whether all ranks come to it together."""

    call: cst.Call
    shows: tuple[cst.BaseExpression, ...]
    loop: Sharded | None
    diverged: tuple[cst.CSTNode, ...]
    kept: bool = False
    curve: bool = False  # whether it shows at numbers of steps, which are the serial ones in all iterations
    paces: tuple[cst.BaseExpression, ...] = ()
    ended: bool = False  # whether it is where a shard has ended, as often as in the serial script


@dataclass(frozen=True)
class CountInLiteral:
    """A mark on a count of iterations that stands in a literal, ``{"loss": total, "batches": len(loader)}``."""

    node: cst.CSTNode


@dataclass(eq=False)
class Tested:
    """A test of a branch or a loop."""

    node: cst.If | cst.While | cst.IfExp | cst.Assert
    loop: Sharded | None
    diverged: tuple[cst.CSTNode, ...]


@dataclass(eq=False)
class Flows:
    """The states that leave a loop or a function early."""

    breaks: list[State] = field(default_factory=list)
    continues: list[State] = field(default_factory=list)
    returns: list[tuple[Value, State]] = field(default_factory=list)
    called_in: Sharded | None = None  # the loop over a shard that the call, or the inner loop, stands in
    since: int = 0  # how many tests had diverged before the call, or the inner loop
    left_by: cst.CSTNode | None = None  # a test that diverges, by which the call, or the inner loop, is left
    yields: list[Value] = field(default_factory=list)
    yielded: State | None = None  # what holds where it yields
    drawn: bool = False  # whether it yields in a loop over a shard


class Machine:
    """Holds the state of the abstract run."""

    def __init__(self, script: Script, shards: Shards) -> None:
        """Begin with an empty module."""
        self.script = script
        self.shards = shards
        self.alias = script.alias
        self.module = Frame(script.module, None)
        self.frame = self.module
        self.state: State | None = {}
        self.stack: list[Frame] = [self.module]
        self.flows: list[Flows] = [Flows()]
        self.entered: dict[cst.CSTNode, Callable[[Value], None]] = {}  # what context managers run where they yield
        self.loop: Sharded | None = None
        self.diverged: list[cst.CSTNode] = []
        self.at_any_time: set[Location] = set()  # what handlers of signals, and other threads, set
        self.hoped: dict[Location, bool] = {}  # what may be one number on all ranks, and whether it is taken for one
        self.raised: dict[Raised, None] = {}  # what tests that diverge have raised so far
        self.clocks: set[cst.CSTNode] = set()  # tests that go by this rank's clock
        self.by_clock = False  # whether a test of the clock has left a block of this call, outside loops over shards
        self.matched: dict[cst.Match, None] = {}  # what goes by a local subject, or by a guard that diverges
        self.by_carried: dict[cst.CSTNode, bool] = {}  # whether such a test asks for more than this iteration's entries
        self.recording = True
        self.writes: list[dict[Location, None]] = []
        self.seen: dict[cst.CSTNode, list[Value]] = {}
        self.sinks: dict[cst.Call, list[Sink]] = {}
        self.tests: dict[cst.CSTNode, list[Tested]] = {}
        self.sharded: dict[cst.CSTNode, Frame] = {}  # the loops over shards that were run
        self.steered: dict[cst.BaseExpression, None] = {}  # what rates are set to in a loop over a shard
        self.gradients = LocalGradients(shards.before)
        self.by_samples: dict[cst.CSTNode, None] = {}  # gradients, by samples, of means over a part of the batch
        self.losses: dict[cst.Call, Place] = {}  # where gradients begin
        self.made_diverged: dict[
            cst.CSTNode, tuple[cst.CSTNode, ...]
        ] = {}  # formatted texts, by the tests they are under
        self.diverged_at: dict[
            cst.CSTNode, tuple[cst.CSTNode, ...]
        ] = {}  # statements at which ranks diverge, by the tests
        self.fields_of: dict[cst.Call, dict[str, Field]] = {}  # what templates read of what they are given
        self.zipped: dict[cst.CSTNode, list[Value]] = {}  # what calls of zip() went through last
        self.begun: State = {}  # the state in which an iteration over a shard began
        self.stepped: dict[cst.CSTNode, dict[Place, None]] = {}  # what a train_step() reads of its own, as it returns
        self.updated = False  # whether this iteration has come to an update
        self.held_back: set[Location] = set()  # counts to which tests that may differ let some iterations add
        self.over_grown: set[cst.CSTNode] = set()  # comprehensions over what this rank's iterations have filled
        self.from_zero: set[Location] = set()  # what began at zero, or empty
        self.paces: list[cst.BaseExpression] = []  # the tests around that hold as often as in the serial script
        self.by_serial_steps: set[Any] = set()  # the dicts that keep something under serial steps: curve[step] = x
        self.ended = 0  # how deep in handlers of an end of a shard, which comes as often as the serial script's data
        self.paced: dict[Any, bool] = {}  # of lists: whether all that grows them comes as often as in the serial script
        self.filled_by_memory: dict[Obj, cst.Call] = {}  # the makers of arrays that begin with what the memory holds
        self.uninitialised: dict[Any, cst.Call] = {}  # exits that add such arrays up, likewise
        self.restored: dict[cst.CSTNode, None] = {}  # counts that meet serial numbers
        self.left_serial: dict[cst.CSTNode, bool] = {}  # counts read behind the loop: whether they are reduced there
        self.extended: set[Obj] = set()  # lists that get several entries in an iteration
        self.compared: dict[cst.Comparison, bool] = {}  # of what is alike on all ranks: whether behind loops alone
        self.serial_entries: set[cst.CSTNode] = set()  # counts in literals that the run before has met so
        self.iteration_numbers: dict[cst.BaseExpression, tuple[int, int | str] | None] = {}  # see ``iteration_numbers``
        self.begins: dict[Location, set[int]] = {}  # what a number is known to have been as a loop over a shard began
        self.updates_of_graph: dict[Obj, Place] = {}  # variables that a session's runs update by this rank's samples
        self.used: set[Any] = set()  # the exits whose results are read
        self.forced: dict[cst.BaseExpression, Sharded] = {}  # numbers of a part that are made those of the iteration
        self.at_ends: set[cst.BaseExpression] = set()  # such ones in handlers of an end of a shard
        self.steers: set[cst.CSTNode] = set()  # the tests by which a loss is made that ranks answer differently
        self.refused: dict[cst.CSTNode, str] = {}  # loaders whose batches cannot be sharded whole, and why
        self.within_whole: dict[cst.CSTNode, dict[cst.CSTNode, None]] = {}  # what goes through such batches, and whose
        self.gone_through: dict[cst.CSTNode, set[cst.CSTNode]] = {}  # the loops that go through the batches of a loader
        self.lost: cst.CSTNode | None = None
        self.last_row: dict[Obj, tuple[Value, ...]] = {}  # what a list's tuples hold: rows[-1][1]
        self.guessed: dict[cst.CSTNode, None] = {}  # numbers of a part that are taken for means, see ``parts``
        self.guards: list[tuple[Location, str, str]] = []  # of branches on `value > best`: best, max, the value's text
        self.keys: dict[
            Any, dict[str, None]
        ] = {}  # of each frame and object, the names under which it ever kept something
        self.playing = 0  # how deep in loops that play episodes
        self.hooks: dict[Any, None] = {}  # the functions that forward passes run
        self.gradient_hooks: dict[Any, None] = {}  # those that backward passes run
        self.samples_in: dict[Any, str] = {}  # lists of the samples of this rank's part of a batch: see ``samples``
        self.at_first: set[cst.CSTNode] = set()  # tests of the first iteration, whose body is run before the loop
        self.in_unrolled: set[cst.CSTNode] = set()  # what loops evaluate entry by entry
        self._contained: set[Any] = set()  # what containers hold
        self._earlier: dict[Obj, Obj] = {}  # of what a place makes anew in each iteration: those of earlier iterations
        self.trained: set[Obj] = set()  # the variables for which gradients are taken
        self.unrolled: tuple[int, ...] = ()  # of loops that run once for each of known entries: which it is
        self.looping = 0  # how deep in loops and comprehensions
        self.loops: list[cst.CSTNode] = []  # those that it is in, but for a loop over a shard
        self.keyed_locally: set[Obj] = set()  # dicts whose keys are of this rank's samples
        self.keyed_behind: dict[Obj, Place] = {}  # likewise of those that are filled behind the loops
        self.data_of: dict[Obj, frozenset[Any]] = {}  # the program's data set that a loader was made of
        self.born: dict[Location, Value] = {}  # what lists began with that a dict keeps for a key that it lacked
        self.anew: dict[Obj, dict[Obj, list[tuple[str, Value]]]] = {}  # what defaultdicts make, and what that holds
        self.defaults: dict[tuple[cst.Param, Frame | None], Value] = {}  # what parameters default to, made once
        self._changed: dict[Any, frozenset[str]] = {}  # what data sets change as samples are drawn, by class
        self._spent = 0
        self._frames: dict[tuple[Any, ...], Frame] = {}
        self._modules: dict[cst.CSTNode, Frame] = {}
        self._importing: set[Frame] = set()  # of the modules that are being run
        self._objects: dict[tuple[Any, ...], Obj] = {}
        self._classes: dict[Any, Class] = {}

    @property
    def index(self) -> Place:
        """The placement of the number of an iteration over a shard."""
        return SAME if self.shards.parts else INDEX

    @property
    def updates(self) -> Place:
        """The placement of the number of updates so far, as an optimizer counts them."""
        return SAME if self.shards.parts else COUNT

    @property
    def cadenced(self) -> bool:
        """Whether all ranks come here as often as the serial script."""
        return bool(self.paces) or self.ended > 0

    @property
    def is_diverged(self) -> bool:
        """Whether the ranks may come here more or less often than others within an iteration."""
        return self.playing > 0 or (
            self.loop is not None and (self.loop.inner > 0 or len(self.diverged) > self.loop.outer)
        )

    @property
    def under_carried(self) -> cst.CSTNode | None:
        """The test around this line, if any, that asks for what this rank's earlier iterations have left."""
        if self.loop is None or self.shards.episodes:
            return None
        return next((test for test in self.diverged[self.loop.outer :] if self.by_carried.get(test)), None)

    # -- bookkeeping ---------------------------------------------------------------------------------------------

    def spend(self, node: cst.CSTNode) -> None:
        """Count one evaluated node."""
        self._spent += 1
        if self._spent > BUDGET:
            self.lost = self.lost or node
            raise LostError

    def note(self, node: cst.CSTNode, value: Value) -> None:
        """Keep what ``node`` was."""
        if self.recording:
            if self.unrolled:
                self.in_unrolled.add(node)
            found = self.seen.setdefault(node, [])
            if value not in found:
                if len(found) < 8:
                    found.append(value)
                else:
                    found[-1] = join(found[-1], value)

    def asks_cadence(self, test: cst.BaseExpression) -> bool:
        """Tell whether ``test`` asks for every so many steps, of which n ranks take 1/n."""
        if self.shards.parts or not self.shards.divided:
            return False
        nodes = list(walk(test))
        rests = [n for n in nodes if isinstance(n, cst.BinaryOperation) and isinstance(n.operator, cst.Modulo)]
        repeats = any((found := self.shards.cadences.get(n)) is not None and found.repeats for n in nodes)
        return repeats or any(n in self.shards.divided for rest in rests for n in walk(rest.right))

    def is_paced(self, value: Value, otherwise: bool = False) -> bool:
        """Tell whether a test, which is ``value``, holds (``otherwise``: fails) as often as in the serial script."""
        names = ("between", "remainder") if otherwise else ("cadence",)
        return self.loop is not None and not self.shards.parts and value.place.uniform and value.name in names

    @contextmanager
    def at_pace(self, test: cst.BaseExpression, value: Value, otherwise: bool = False) -> Iterator[None]:
        """Run what ``test``, which is ``value``, lets run, or leaves to run, ``otherwise``."""
        before = len(self.paces)
        self.paces += [test] if self.is_paced(value, otherwise) else []
        try:
            yield
        finally:
            del self.paces[before:]

    def seen_last(self, node: cst.CSTNode) -> Value:
        """Return what ``node`` was when it was evaluated last."""
        return next(reversed(self.seen.get(node, ())), ANY)

    def frame_of(self, *key: Any, function: cst.CSTNode, parent: Frame | None) -> Frame:
        """Return the frame of a call, the same one each time that this call is run from the same frame."""
        key = (*key, self.unrolled)
        if key not in self._frames:
            self._frames[key] = Frame(function, parent, looped=self.looping > 0)
        return self._frames[key]

    def forget(self, frame: Frame) -> None:
        """Forget the variables of a call that begins, or has ended."""
        for key in self.keys.get(frame, ()):
            if self.state is not None:
                self.state.pop((frame, key), None)

    def new(self, kind: str, site: cst.CSTNode, tag: str = "", **more: Any) -> Obj:
        """Return the object that ``site`` makes, with nothing in it."""
        key = (kind, site, self.frame, tag, more.get("cls"), self.unrolled)
        if key not in self._objects:
            self._objects[key] = Obj(kind, site, self.frame, looped=self.looping > 0, within=tuple(self.loops), **more)
        made = self._objects[key]
        if made in self._contained and kind in _CONTAINERS and self.loop is None:
            self._put_aside(made)
        elif self.looping and self.loop is None and kind in (*_CONTAINERS, "instance") and made in self.keys:
            self._put_aside(made, self._bound_by(site))
        if self.state is not None:
            for name in self.keys.get(made, ()):
                self.state.pop((made, name), None)
        if kind in _CONTAINERS:
            self.write((made, REST if kind == "dict" else GROWN), EMPTY)
        return made

    def new_class(self, node: cst.ClassDef, site: cst.CSTNode, bases: tuple[Value, ...]) -> Class:
        """Return the class that ``site`` makes, as ``node`` has it, before its body is run."""
        body = self.frame_of(site, self.frame, function=node, parent=self.frame)
        return self._classes.setdefault((site, self.frame), Class(node, body, bases))

    def array(self, value: Value, node: cst.CSTNode, name: str = "") -> Value:
        """Return an array that ``node`` makes, in which iterations may store: it holds what ``value`` does."""
        made = self.new("foreign", node, name=name)
        self.write((made, CONTENT), Value(value.place, zero=value.zero, reduced=value.reduced))
        return Value(refs=frozenset([made]), scalar=value.scalar)

    def fixed(self, cls: Class) -> bool:
        """Tell whether the fields of a class' objects cannot be set; see ``classes``."""
        raise NotImplementedError

    def _bound_by(self, site: cst.CSTNode) -> frozenset[str]:
        """Return the names that are bound anew where ``site`` makes something: ``meter = Meter()``."""
        line = self.script.statement_of(site)
        return frozenset(dotted(t.target) for t in line.targets) if isinstance(line, cst.Assign) else frozenset()

    def _is_bound(self, at: Location, bound: frozenset[str]) -> bool:
        """Tell whether a location is one of the names that are ``bound``: a variable, or an attribute of ``self``."""
        if isinstance(at[0], Frame):
            return at[1] in bound
        owner = (self.state or {}).get((self.frame, "self"))
        return f"self.{at[1]}" in bound and owner is not None and at[0] in owner.refs

    def _put_aside(self, made: Obj, bound: frozenset[str] | None = None) -> None:
        """Let those that the place of ``made`` made before, and containers hold, be another object than the newest.

        With names that are ``bound`` anew, those that other names hold: ``best`` of ``if meter < best: best = meter``.
        """
        state = self.state or {}
        if bound is None:
            self._contained.discard(made)
        holders = [
            at
            for at, value in state.items()
            if (at[1] in (REST, GROWN)) is (bound is None)
            and (made in value.refs or any(made in i.refs for i in value.items or ()))
            and not (bound is not None and (at[0] is made or self._is_bound(at, bound)))
        ]
        if not holders:
            return
        if made not in self._earlier:
            self._earlier[made] = Obj(
                made.kind, made.site, made.frame, made.cls, made.name, looped=True, within=made.within
            )
        earlier = self._earlier[made]
        for at in holders:
            items = state[at].items
            if items is not None:
                items = tuple(replace(i, refs=_instead(i.refs, made, earlier)) for i in items)
            state[at] = replace(state[at], refs=_instead(state[at].refs, made, earlier), items=items)
        for name in list(self.keys.get(made, ())):
            if (value := state.get((made, name))) is not None:
                known = state.get((earlier, name))
                self.write((earlier, name), value if known is None else join(known, value))

    def force(self, node: cst.BaseExpression | None, value: Value) -> Value:
        """Return ``value``, a number of this rank's part, as that of the iteration, which ``node`` is made to be."""
        if node is None or self.is_diverged or self.loop is None:
            return value
        if self.recording:
            self.forced[node] = self.loop
            if self.ended:
                self.at_ends.add(node)
            self._note_held(node)
        return value.at(SAME)

    def _note_held(self, node: cst.CSTNode) -> None:
        """Note of an array, and of the list that it is made of, what they hold now: ``torch.tensor([loss, hits])``."""
        value = self.seen_last(node)
        if value.refs and (place := self.content(value)) != value.place:
            self.seen[node][-1] = replace(value, place=place)
            for arg in node.args if isinstance(node, cst.Call) else ():
                self._note_held(arg.value)

    @contextmanager
    def unrecorded(self) -> Iterator[None]:
        """Record nothing meanwhile: what is found is not final."""
        before, self.recording = self.recording, False
        try:
            yield
        finally:
            self.recording = before

    # -- locations -----------------------------------------------------------------------------------------------

    def read(self, location: Location, default: Value | None = None) -> Value | None:
        """Return what ``location`` holds."""
        if self.state is None:
            return default
        value = self.state.get(location, default)
        if value is not None:
            self.use(value)
        return replace(value, unbound=False) if value is not None and value.unbound else value

    def use(self, *values: Value) -> None:
        """Note that ``values`` are read: what makes them serial is needed."""
        for value in values if self.recording else ():
            self.used.update(value.pending)

    def write(self, location: Location, value: Value) -> None:
        """Set ``location`` to ``value``."""
        if location in self.at_any_time:
            value = of_clock(value)
        if self.state is not None:
            self.state[location] = value
            if location[1] in (REST, GROWN):
                for held in (value, *(value.items or ())):
                    self._contained.update(held.refs)
            self.keys.setdefault(location[0], {})[location[1]] = None
            for each in self.writes:
                each[location] = None

    def lose_written(self, before: State, node: cst.CSTNode, why: str) -> None:
        """Make unknown the numbers that were written since ``before``: nothing makes serial what ``node`` runs."""
        for at, value in list((self.state or {}).items()):
            foreign = isinstance(at[0], Obj) and at[0].kind == "foreign"
            if not foreign and not value.refs and value != before.get(at) and value.place.kind is not Kind.SHARD:
                self.write(at, replace(value.at(unknown(node, why, at)), items=None))

    def note_left(self) -> None:
        """Note that a call, or an inner loop, is left here; and by which test, where it diverges."""
        flows = self.flows[-1]
        if self.loop is not None and self.loop is flows.called_in and len(self.diverged) > flows.since:
            asked = [test for test in self.diverged[flows.since :] if test not in self.clocks]
            flows.left_by = asked[-1] if asked else flows.left_by
            self.by_clock = self.by_clock or not asked

    def met(self, a: State | None, b: State | None, test: cst.CSTNode | None) -> State | None:
        """Return what holds where two ways meet: by a ``test`` that diverges, or, without one, alike on all ranks."""
        return merge(a, b) if test is None else merge_diverged(a, b, test)

    def in_callback(self) -> bool:
        """Tell whether a method runs that ``fit()`` calls: ``on_epoch_end(self, epoch, logs)``."""
        functions = (frame.function for frame in self.stack)
        return any(isinstance(f, cst.FunctionDef) and f.name.value.startswith("on_") for f in functions)

    def in_training(self, node: cst.CSTNode) -> bool:
        """Tell whether ``node``, or a call that leads to it, stands in a loop that trains, or in a callback."""
        if self.in_callback():
            return True
        places = [node, *(frame.call for frame in self.stack if frame.call is not None)]
        return any(up in self.shards.training for place in places for up in self.script.above(place))

    def home(self, name: str) -> Frame | None:
        """Return the frame whose variable ``name`` is, seen from the frame that runs."""
        frame: Frame | None = self.frame
        if frame is not None and name in frame.declared:
            return frame.declared[name]
        while frame is not None:
            own = frame is self.frame or not isinstance(frame.function, cst.ClassDef)
            if own and self.state is not None and (frame, name) in self.state:
                return frame
            frame = frame.parent
        return None

    def root(self, frame: Frame) -> Frame:
        """Return the frame of the module in which ``frame`` is."""
        while frame.parent is not None:
            frame = frame.parent
        return frame

    # -- what a value holds --------------------------------------------------------------------------------------

    def content(self, value: Value) -> Place:
        """Return the placement of a value with all that its objects hold, as a function of it would see it."""
        if value.items is not None:
            inner = [*map(self.content, value.items)]
            summed = any(v.reduced and p.kind is Kind.SAME for v, p in zip(value.items, inner, strict=True))
            if summed and {p.kind for p in inner} == {Kind.SAME, Kind.COUNT} and value.place.kind is Kind.SAME:
                return MIXED
            return MIX if _beside_the_time(inner) else self._beside([*value.items], combine([value.place, *inner]))
        if not any(isinstance(ref, Obj) for ref in value.refs):
            return value.place
        held = [v for v in self.held(value) if not v.refs and (v.items is None or v.items)]
        places = [flat(v) for v in held]
        if _beside_the_time(places):
            return MIX
        if {p.kind for p in places} == {Kind.SAME, Kind.COUNT} and value.place.kind is Kind.SAME:
            counted = [p for p in places if p.kind is Kind.COUNT]
            beside = [v for v, p in zip(held, places, strict=True) if p.kind is Kind.SAME and _may_be_shown(v)]
            if beside and counted:
                return MIXED  # counts beside serial numbers
        keys = [self.keyed_behind[r] for r in value.refs if r in self.keyed_behind and self.loop is None]
        return self._beside(held, combine([value.place, *keys, *(flat(v) for v in self.held(value))]))

    def _beside(self, held: list[Value], place: Place) -> Place:
        """Return the placement of what holds ``held`` and is placed so; sums of parts beside serial numbers are bent.

        All ranks add the 1 of ``sums += np.array([hits, 1])``: what adds up over them is the hits alone.
        """
        if not self.shards.parts or place.kind is not Kind.ENTRY or place.adds != {"summed"}:
            return place
        serial = [v for v in held if v.place.kind is Kind.SAME and not (v.refs or v.items or v.zero or v.name)]
        beside = any(v.scalar and _may_be_shown(v) for v in serial)
        return replace(place, adds=frozenset({"bent"})) if beside else place

    def held(self, value: Value) -> list[Value]:
        """Return what the objects of ``value`` hold, as deep as they go; what was pending there is read."""
        if self.state is None:
            return []
        found = self._below([value])[1]
        if self.recording:
            for v in found:
                if v.pending:
                    self.used.update(v.pending)
        return [v for v in found if v.place.kind is not Kind.SHARD and v.name != "empty"]

    def one_run(self, value: Value) -> Place | None:
        """Return the run that ``value`` holds, if that is all: the sum of a histogram is linear in it."""
        if not value.refs and value.place.kind is not Kind.RUN:
            return None
        places = {v.place for v in self.held(value)} | ({value.place} - {SAME})
        runs = [p for p in places if p.kind is Kind.RUN]
        return runs[0] if len(runs) == 1 and len(places - {SAME}) == 1 else None

    def serial(self, value: Value) -> bool:
        """Tell whether ``value``, or what it holds, is made of what a reduction made serial."""
        return (
            value.reduced
            or any(v.reduced for v in value.items or ())
            or (any(isinstance(r, Obj) for r in value.refs) and any(v.reduced for v in self.held(value)))
        )

    def entries(self, value: Value) -> Value:
        """Return what one of the entries of ``value`` is."""
        if value.items is not None:
            return self.of_chosen(value, _joined(value.items))
        found: Value | None = None
        for ref in value.refs:
            if isinstance(ref, Obj):
                for key, _ in self.fields(ref):
                    held = self.read((ref, key)) if key.startswith("[") else None
                    if held is not None and held.name != "empty":
                        found = join(found, self.entry_of(held, key), beside=True)
                if ref.kind == "foreign":
                    inner = self.read((ref, CONTENT)) or ANY
                    place = combine([value.place, inner.place])
                    found = join(found, Value(place=place, reduced=inner.reduced, of=self.memory_of(value)))
        if found is None:
            place = value.place if value.place.kind is not Kind.SHARD else Place(Kind.ENTRY)
            kept = isinstance(place.at, tuple) and place.at[1] == REST  # of a key: a sum so far, as a rank has it
            place = (MIX if kept else ENTRY) if place.kind is Kind.RUN else place
            return Value(place=place, reduced=value.reduced)
        return self.of_chosen(value, found)

    def memory_of(self, value: Value) -> frozenset[Any]:
        """Return the arrays of the program's own making whose memory ``value`` has, or shares."""
        made = (r for r in value.refs if isinstance(r, Obj) and r.kind == "foreign")
        return value.of | {r for r in made if of_function(r.name) in _MAKES}

    def lose_shared(self, value: Value, node: cst.CSTNode) -> None:
        """Make unknown the arrays whose memory ``value`` shares, which is changed: ``row = table[1]``, ``row += x``."""
        text = f"{self.script.code(node)} may share its memory, and each rank changes that"
        for ref in value.of if self.loop is not None and not self.cadenced else ():
            if (held := (self.state or {}).get((ref, CONTENT))) is not None:
                fresh = _is_fresh(held.place)
                self.write((ref, CONTENT), held.at(ENTRY if fresh else unknown(node, text, (ref, CONTENT))))
        name = node.value if isinstance(node, cst.Subscript) and value.of and not value.refs else None
        home = self.home(name.value) if isinstance(name, cst.Name) and self.loop is not None else None
        if home is not None and isinstance(name, cst.Name):
            fresh = _is_fresh(value.place)
            self.write((home, name.value), value.at(ENTRY if fresh else unknown(node, text, (home, name.value))))

    def of_chosen(self, owner: Value, held: Value) -> Value:
        """Return what ``owner`` holds: an entry, where an iteration has chosen it by its samples: ``graphs[pick]``."""
        functions = any(isinstance(r, (Function, Bound, Method, Class)) for r in held.refs)
        if owner.place.kind is not Kind.ENTRY or held.place.kind is not Kind.SAME or functions:
            return held
        if owner.refs and not any((ref, key) in self.begun for ref in owner.refs for key in self.keys.get(ref, ())):
            return held  # of a row that this iteration has made
        items = tuple(self.of_chosen(owner, item) for item in held.items) if held.items is not None else None
        return replace(held.at(owner.place), items=items)

    def entry_of(self, held: Value, key: str) -> Value:
        """Return one entry of what is kept under ``key``: of this rank's list of entries so far, an entry."""
        kept = held.place.adds if held.place.kind is Kind.RUN else frozenset()
        if kept and kept <= ({"fires", "same"} if self.shards.parts else {"fires"}):
            return held.at(SAME)
        if "ordered" in kept:
            return held.at(MIX)  # each rank's entries have an order of their own
        if kept and (key == GROWN or kept <= {"stored", "placed", "set"}):
            return held.at(parts.of_each(held.place.adds) if self.shards.parts else ENTRY)
        return held

    def fields(self, owner: Any) -> list[tuple[str, Value]]:
        """Return what ``owner`` holds, by name."""
        names = self.keys.get(owner)
        if not names or not self.state:
            return []
        known = [(name, self.state.get((owner, name))) for name in names]
        return [(name, value) for name, value in known if value is not None]

    def note_asked(self, ref: Obj) -> None:
        """Note that an iteration over a shard asks what a dict holds so far, which is what this rank has put there."""
        if self.loop is not None and ref.kind == "dict":
            self.loop.asked.add(ref)

    def is_row(self, ref: Obj, state: State) -> bool:
        """Tell whether ``ref`` is a list of entries that ``state`` knows one by one: ``[seen, 0.0]``."""
        names = [k for k in self.keys.get(ref, ()) if (held := state.get((ref, k))) and held.name != "empty"]
        return ref.kind == "list" and bool(names) and all(name[1:-1].isdigit() for name in names)

    def reachable(self, roots: list[Value]) -> list[Obj]:
        """Return the objects that can be reached from ``roots``, each once."""
        return self._below(roots)[0]

    def _below(self, roots: list[Value]) -> tuple[list[Obj], list[Value]]:
        """Return the objects that can be reached from ``roots``, each once, and what they hold."""
        found: dict[Obj, list[Value]] = {}
        todo = list(roots)
        while todo:
            value = todo.pop()
            if value.items:
                todo.extend(value.items)
            for ref in value.refs:
                if isinstance(ref, (Bound, Method)):
                    todo.append(ref.receiver)
                elif isinstance(ref, Obj) and ref not in found:
                    found[ref] = held = [v for _, v in self.fields(ref)]
                    todo.extend(v for v in held if v.refs or v.items)
        return list(found), [v for held in found.values() for v in held]

    def grown(self, value: Value) -> list[Location]:
        """Return the locations of lists and sets in ``value`` that this rank's iterations have filled so far."""
        places = [(ref, GROWN) for ref in value.refs if isinstance(ref, Obj)]
        known = self.state or {}
        return [at for at in places if at in known and known[at].place.kind is Kind.RUN]


def _may_be_shown(value: Value) -> bool:
    """Tell whether a value that all ranks hold may be a number: no text, no None."""
    return value.const is NOTHING or isinstance(value.const, (int, float))


def arrays(value: Value) -> bool:
    """Tell whether ``value`` may be an array, or what else a library has made."""
    return any(isinstance(ref, Obj) and ref.kind == "foreign" for ref in value.refs)


def _is_fresh(place: Place) -> bool:
    """Tell whether an array is made by this iteration, of its samples or for as many: ``zeros(len(x), 3)``."""
    return place.kind is Kind.ENTRY and place.adds <= {"summed"}


def flat(value: Value) -> Place:
    """Return the placement of a value with that of its items."""
    return value.place if value.items is None else combine([value.place, *map(flat, value.items)])


def _joined(values: tuple[Value, ...]) -> Value:
    found: Value | None = None
    for value in values:
        found = join(found, value)
    return found or ANY


def _beside_the_time(places: list[Place]) -> bool:
    """Tell whether counts are held beside the time."""
    kinds = {p.kind for p in places} - {Kind.SAME}
    return kinds == {Kind.COUNT, Kind.CLOCK}
