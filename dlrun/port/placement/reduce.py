"""The reductions behind each loop over a shard, and a Doubt where a value is shown that nothing makes serial."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import libcst as cst

from dlrun.port.edits import Doubt, Edit
from dlrun.port.facts import ScriptFacts
from dlrun.port.facts.keras import KerasFacts
from dlrun.port.feeds.iterated import Iterated
from dlrun.port.feeds.positions.counting import counts_too
from dlrun.port.insert import statements
from dlrun.port.placement.interpret import Interpreter
from dlrun.port.placement.interpret.control_flow import ENDS, is_endless
from dlrun.port.placement.interpret.exits import Exit
from dlrun.port.placement.values import Place
from dlrun.port.program.ends import ends
from dlrun.port.program.script import dotted, names_in, walk

_WHY = {
    "total": "sums over all ranks' samples",
    "gather": "all ranks' entries, in the serial order",
    "maximum": "the greatest of all ranks'",
    "minimum": "the least of all ranks'",
    "average": "means over the ranks",
}
_WIDTH = 92  # of a line of names
_ORDER = ("total", "gather", "maximum", "minimum", "average", "quotient")


@dataclass(frozen=True)
class Line:
    """One reduction behind a loop, of several locations at once."""

    how: str
    each: tuple[tuple[str, str], ...]
    store: str  # "[:]" or "[...]" where the object stays, and others hold it too
    since: bool
    exits: tuple[Exit, ...]
    bound: tuple[str, ...] = ()  # tests of whether its locations are there at all
    by_key: bool = False  # of dicts whose entries are of their keys


_MONITORED = re.compile(r"^tensorflow\.(compat\.v1\.)?train\.\w*Monitored\w*Session$")


class Reductions:
    """The reductions of a script, loop by loop."""

    def __init__(self, facts: ScriptFacts, run: Interpreter) -> None:
        """Take what the abstract run has found."""
        self.facts = facts
        self.script = facts.script
        self.run = run
        self._names: dict[tuple[cst.CSTNode, Exit], str] = {}  # of snapshots, by the first that each holds
        self.wanted: set[Exit] = set()  # what is reduced inside its loop, and so needs what was there before

    def before(self, place: Place, node: cst.CSTNode) -> str:
        """Return the expression for what ``node``, which is placed so, was before its loop; "" where it sees none.

        Of what reads an array, or a multiple, it is the same expression: ``before.sum()`` of ``counts.sum()``.
        Of a metric there is what its states were, and not what it was asked for.
        """
        above = {node, *self.script.above(node)}
        for made in self.run.exits:
            named = made.how in ("total", "gather") and not made.path.each and made.owner != "metric"
            if made.at == place.at and not made.zero and named and self.script.function_of(made.loop) in above:
                text, code = made.path.text, self.script.code(node)
                part = made.whole or made.how == "gather" or "scaled" in place.adds
                reads = re.compile(rf"(?<![\w.]){re.escape(text)}(?!\w)")
                if part and not reads.search(code):
                    return ""
                self.wanted.add(made)
                name = self._name_of(made)
                return name.join(reads.split(code)) if part and name else name
        return ""

    def _name_of(self, made: Exit) -> str:
        """Return the name of the snapshot that ``made`` is in, with its place there."""
        self.wanted.add(made)
        self.__dict__.pop("by_loop", None)
        for line in _lines(self.by_loop[made.loop]):
            texts = [_text(e) for e in line.exits]
            if line.since and made.path.text in texts:
                name = self._fresh(made.loop, line.exits[0])
                return name if len(texts) == 1 else f"{name}[{texts.index(made.path.text)}]"
        return ""

    @cached_property
    def by_loop(self) -> dict[cst.CSTNode, list[Exit]]:
        """The exits that are read later, loop by loop, each path once: where calls differ, the more careful form."""
        found: dict[cst.CSTNode, dict[object, Exit]] = {}
        for made in self.run.exits:
            if (made in self.run.used or made in self.wanted) and (made.loop, made.path.key) not in self.run.counters:
                known, key = found.setdefault(made.loop, {}), made.path.key
                made = self._where_bound(replace(made, zero=made.zero and made not in self.run.kept_on))
                first = known.get(key)
                if first is None or not (made.zero or first.how == "quotient"):
                    known[key] = made
        return {
            loop: [made for made in paths.values() if not _with_all(made, paths.values())]
            for loop, paths in found.items()
        }

    def _where_bound(self, made: Exit) -> Exit:
        """Return an exit that asks for its name where some calls leave it unbound: ``if test: a = []``.

        Likewise for its key, which the dicts of some objects lack, on all ranks alike: ``self.sums["kd"]``.
        """
        runs, name = self.run.names_behind.get(made.loop, []), made.path.text.split(".")[0].split("[")[0]
        known = [name in names for names in runs]
        if made.path.bound:
            return made
        if any(known) and not all(known):
            return replace(made, path=replace(made.path, bound=(f'"{name}" in locals()',)))
        box, _, key = made.path.text.rpartition("[")
        dicts = [held[box] for held in self.run.dicts_behind.get(made.loop, []) if box in held]
        have = {ref for ref, keys in dicts if f"[{key}" in keys}
        if not have or all(ref in have for ref, _ in dicts):
            return made
        return replace(made, path=replace(made.path, bound=(f"{key[:-1]} in {box}",)))

    def edits(self) -> Iterator[Edit | Doubt]:
        """Yield one Edit for each loop over a shard that leaves something to be reduced."""
        for loop, exits in self.by_loop.items():
            before: list[cst.CSTNode] = []
            after: list[cst.CSTNode] = []
            over = self.over(loop)
            shared = loop in self.run.plain_loops
            hers = not isinstance(loop, (cst.For, cst.While))  # Keras goes through the batches
            nameless = shared and not over and loop in self.run.sharded and not hers
            if nameless:
                yield self._nameless(loop, exits)
                continue
            for line in _lines(exits):
                if line.how == "quotient":
                    for quotient in line.exits:
                        texts = {"target": quotient.path.text, "over": quotient.of[0], "under": quotient.of[1]}
                        after += _if_bound(line, statements("quotient", each=line.each, **texts))
                    continue
                made = any(over.startswith(f"{self.facts.alias}.entries(") for _, over in line.each)
                hidden = (isinstance(loop, cst.FunctionDef) or made) and line.since
                hidden = hidden or (not isinstance(loop, (cst.For, cst.While, cst.FunctionDef)) and self._returns(loop))
                if hidden or (line.store == "update" and line.exits[0].owner == "deque"):
                    yield self._doubted(loop, line)
                    continue
                name, each = "", line.each
                if line.since:
                    name = self._fresh(loop, line.exits[0])
                    values = [each[0][1].removesuffix(".values()")] if each else [self._asked(e) for e in line.exits]
                    before += _if_bound(line, statements("snapshot", dl=self.facts.alias, name=name, values=values))
                    name, each = _side_by_side(line, name)
                targets = [_text(e) for e in line.exits]
                names = _several(targets)
                reduced = statements(
                    "reduced",
                    dl=self.facts.alias,
                    how=line.how,
                    targets=targets,
                    names=names,
                    store=line.store,
                    each=each,
                    since=name,
                    owner=line.exits[0].owner,
                    over=(over or self._numbers(loop, line)) if shared or line.how == "gather" else "",
                    by_key=line.by_key,
                    why=_why(line),
                )
                for ordered in (e.path.text for e in line.exits if e.ordered):
                    reduced += statements("sorted", of=ordered)
                after += _if_bound(line, reduced)
            names = ", ".join(dict.fromkeys(e.path.text for e in exits))
            noisy = loop in self.run.shards.noisy
            why = f"{names}: each rank has " + ("drawn random numbers" if noisy else "gone through its share")
            if isinstance(loop, cst.FunctionDef):  # behind the batches that Keras goes through
                yield Edit(self._first_line(loop), why, before=tuple(after))
                continue
            place, first = self._left_by(loop)
            if place is loop and is_endless(loop):
                why = f"{names}: local to rank 0: nothing behind this loop is come by, it ends by an exception"
                yield Doubt(loop, why, "medium", name="unknown-placement")
                continue
            left = ends(loop) if place is loop else []
            if any(isinstance(n, cst.BaseSmallStatement) for n in left) and not _short(after):
                why = f"{names}: local to rank 0: this loop ends within a line, in which other lines have no place"
                yield Doubt(loop, why, "medium", name="unknown-placement")
                continue
            yield Edit(loop, why, before=tuple(before), after=tuple(after) if place is loop and not left else ())
            for end in left if after else ():
                yield Edit(end, why, before=tuple(after))
            if place is not loop:
                yield Edit(place, why, before=tuple(after)) if first else Edit(place, why, after=tuple(after))

    def _left_by(self, loop: cst.CSTNode) -> tuple[cst.CSTNode, bool]:
        """Return what is left where ``loop`` ends by an exception, and whether it is before that that a line comes by.

        The block of a monitored session swallows that all is read; where more stands in it the loop ends by itself.
        What catches the end of a ``while True`` begins where that ends.
        """
        parents, left = self.facts.script.parents, loop
        while isinstance(block := parents.get(left), cst.IndentedBlock) and block.body[-1] is left:
            around = parents[block]
            if isinstance(around, cst.Try) and around.body is block and is_endless(loop):
                catches = _ending(around)
                lines = catches.body.body if catches is not None else [loop]
                return (lines[0], lines[0] is not loop) if isinstance(lines[0], cst.BaseStatement) else (around, False)
            items = around.items if isinstance(around, cst.With) else ()
            opened = [item.item.func for item in items if isinstance(item.item, cst.Call)]
            if any(_MONITORED.search(self.facts.script.name_of(made)) for made in opened):
                return around, False
            if not items or not is_endless(loop):
                break
            left = around
        return loop, False

    def _returns(self, line: cst.CSTNode) -> bool:
        """Tell whether nothing can stand behind a line: ``return model.fit(x, y)``."""
        small = line.body[-1] if isinstance(line, cst.SimpleStatementLine) else line
        return not isinstance(small, (cst.Assign, cst.AnnAssign, cst.Expr))

    def _asked(self, made: Exit) -> str:
        """Return the expression for what a location held before its loop; None where a dict had no such key then."""
        begins = any(e.zero for e in self.run.exits if (e.loop, e.path.text) == (made.loop, made.path.text))
        found = re.fullmatch(r"(.*)\[(\"[^\"]*\")\]", made.path.text)
        if begins and found is not None:
            return f"{found[1]}.get({found[2]})"
        deeper = re.fullmatch(r"(.*?)\[(\"[^\"]*\")\].+", made.path.text)
        if begins and deeper is not None:
            return f"({made.path.text} if {deeper[2]} in {deeper[1]} else None)"
        return made.path.text

    def _nameless(self, loop: cst.CSTNode, exits: list[Exit]) -> Doubt:
        """Return the doubt about a loop over a share at times, where no name there tells whether it is one."""
        names = ", ".join(dict.fromkeys(map(_text, exits)))
        why = f"{names}: local to rank 0: this loop goes through shares and through whole data, and nothing there tells"
        return Doubt(loop, why, "medium", name="unknown-placement")

    def _doubted(self, loop: cst.CSTNode, line: Line) -> Doubt:
        """Return the doubt about what goes on from before a loop where no line can keep what it was."""
        names = ", ".join(map(_text, line.exits))
        why = f"{names}: local to rank 0: it goes on over the epochs, and no line holds what it was before this one"
        return Doubt(loop, why, "medium", name="unknown-placement")

    def _first_line(self, function: cst.FunctionDef) -> cst.CSTNode:
        """Return the first statement of a method, but for its docstring and a call of its base."""
        lines: list[cst.CSTNode] = list(getattr(function.body, "body", ()))
        for line in lines:
            small = line.body[0] if isinstance(line, cst.SimpleStatementLine) else None
            text = isinstance(small, cst.Expr) and isinstance(small.value, (cst.SimpleString, cst.ConcatenatedString))
            if not text:
                return line
        return lines[0]

    def over(self, loop: cst.CSTNode) -> str:
        """Return the name of what the loop runs over: it knows what pads a share, and where it is none."""
        source = self.run.over.get(loop)
        if source is None or loop in self.run.nameless:
            return ""
        text = self.script.code(source)
        if source in self.run.shards.whole:
            return f'{self.facts.alias}.shard({text}, whole="batches")'
        kept = ', batch="global"' if self.run.shards.parts else ""
        return f"{self.facts.alias}.shard({text}{kept})" if source in self.run.shards.made else text

    def _numbers(self, loop: cst.CSTNode, line: Line) -> str:
        """Return the numbers of the batches that a loop picks, where lists get several entries of each of these."""
        several = any(made.at is not None and made.at[0] in self.run.extended for made in line.exits)
        if not several or not isinstance(loop, cst.For) or self.run.shards.parts:
            return ""
        if isinstance(self.facts, KerasFacts):
            numbers = Iterated(self.facts.flow).source(loop.iter) if loop in self.facts.sharded else None
            how = "turns" if counts_too(self.facts.flow, loop) else "shard"
        else:
            feeds = [f for f in getattr(self.facts, "feeds", ()) if f.how in ("indices", "positions")]
            source = Iterated(self.facts.flow).counted(loop.iter)
            feed = next((f for f in feeds if f.node is source or f.node in set(walk(loop.iter))), None)
            numbers, how = (feed.node, "turns" if feed.how == "positions" else "shard") if feed else (None, "")
        if numbers is None:
            return ""
        trains = self.run.shards.turns.get(numbers)
        by_turns = f', whole="" if {self.script.code(trains)} else "batches"' if trains is not None else ""
        return f"{self.facts.alias}.{how}({self.script.code(numbers)}{by_turns})"

    def _fresh(self, loop: cst.CSTNode, made: Exit) -> str:
        """Return the name of the snapshot before ``loop`` that begins with what ``made`` reduces."""
        if (loop, made) in self._names:
            return self._names[loop, made]
        last = made.path.text.replace('"', "").replace("]", "").replace("[", ".").split(".")[-1]
        name = f"{last}_before" if last.isidentifier() else "before"
        taken = {n.value for n in self.script.of(cst.Name)} | set(self._names.values())
        while name in taken:
            name += "_"
        self._names[loop, made] = name
        return name


def _why(line: Line) -> str:
    """Return what a line does, in its comment."""
    if line.by_key:
        return "all ranks' entries, by their keys"
    return _WHY[line.how] if all(made.in_order for made in line.exits) else "all ranks' entries"


def _short(lines: Iterable[cst.CSTNode]) -> bool:
    """Tell whether each of the lines is one small statement."""
    return all(isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1 for line in lines)


def _lines(exits: list[Exit]) -> list[Line]:
    found: dict[tuple[str, tuple[tuple[str, str], ...], str, bool, tuple[str, ...], bool], list[Exit]] = {}
    for made in exits:
        since = not made.zero and made.how in ("total", "gather") and made.owner != "set"
        store = _store(made)
        # A line with `[:] =` stands for one object; others share an exchange.
        alone = store and store != "in place"
        key = (made.how, made.path.each, store + (made.path.text if alone else ""), since, made.path.bound, made.by_key)
        found.setdefault(key, []).append(made)
    lines = [
        Line(how, each, _store(group[0]), since, tuple(group), bound, by_key)
        for (how, each, _, since, bound, by_key), group in found.items()
    ]
    return sorted(lines, key=lambda line: _ORDER.index(line.how))


def _if_bound(line: Line, body: tuple[cst.CSTNode, ...]) -> tuple[cst.CSTNode, ...]:
    """Return the statements of a line, under a test where some runs never bind what it reduces."""
    if not line.bound:
        return body
    made = cst.parse_module(f"if {' and '.join(line.bound)}:  # not in every run\n    pass\n").body[0]
    assert isinstance(made, cst.If)
    return (made.with_changes(body=made.body.with_changes(body=body)),)


def _side_by_side(line: Line, name: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Return what ``since`` is, and the loop around it: over what a container holds, beside what it held before.

    ``name`` is the snapshot: of the container, where the line stands in a loop over it.
    """
    if not line.each:
        return name, line.each
    (each, over), before = line.each[0], f"{line.each[0][0]}_before"
    held = [_text(e).replace(each, before, 1) for e in line.exits]
    beside = f"{name}.values()" if over.endswith(".values()") else name
    since = held[0] if len(held) == 1 else f"({', '.join(held)})"
    return since, ((f"{each}, {before}", f"zip({over}, {beside})"), *line.each[1:])


def _with_all(made: Exit, exits: Iterable[Exit]) -> bool:
    """Tell whether what is kept under a key, ``meters["lr"].total``, is reduced with what is under all of them."""
    for other in exits:
        each, over = other.path.each[-1] if other.path.each else ("", "")
        held = over.removesuffix(".values()")
        held = held[held.index("(") + 1 : -1] if ".entries(" in held else held
        field = other.path.text.removeprefix(each)
        inside = made.path.text.startswith(f"{held}[") and made.path.text.endswith(f"]{field}")
        if each and inside and not made.path.each and made.how == other.how and len(other.path.each) == 1:
            return True
    return False


def _several(texts: list[str]) -> str:
    """Return names side by side, or, where they are too many for a line, in rows between brackets."""
    if sum(map(len, texts)) + 2 * len(texts) <= _WIDTH // 2:
        return ", ".join(texts)
    rows, row = [], ""
    for text in texts:
        if row and len(row) + len(text) + 2 > _WIDTH:
            rows.append(row)
            row = ""
        row += f"{text}, "
    return "\n" + "".join(f"    {line.rstrip()}\n" for line in (*rows, row))


def _store(made: Exit) -> str:
    if made.owner == "metric" and made.whole:
        return "in place"
    if made.owner == "variable" and made.whole:
        return "assign"
    if not (made.shared or made.path.each) or not made.whole:
        return ""
    return {"list": "[:]", "foreign": "[...]"}.get(made.owner, "update")


def _text(made: Exit) -> str:
    return made.path.text


__all__ = ["Reductions", "dotted"]


def _ending(block: cst.Try) -> cst.ExceptHandler | None:
    """Return what catches the end of the data: the only handler, or that which names it."""
    named = [
        h
        for h in block.handlers
        if h.type is not None and not {n.split(".")[-1] for n in names_in(h.type)}.isdisjoint(ENDS)
    ]
    found = named or [*block.handlers][: len(block.handlers) == 1]
    return found[0] if len(found) == 1 else None
