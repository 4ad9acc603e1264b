"""Every number that is shown, saved or decided by, with its place: which of them ranks have otherwise.

With parameters that stay, n ranks that take whole batches have gone through the serial script's when each has made 1/n
of its steps. What follows from all of them, such as a sum, a count or a mean, is the serial number then. What follows
from the last batch alone is another one for each rank, and their mean is shown: that of the serial script's last n.
"""

from __future__ import annotations

import ast
import functools
import math
import operator
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dlrun.verify.checks.output import BAR, DURATION, NUMBER, close, is_time, shown
from dlrun.verify.trace import Event, Run, Trace
from dlrun.verify.tracer.conditions import SHARED, TURNS
from dlrun.verify.verdict import Check, failed, passed, unjudged
from dlrun.verify.written import holds_same, numbers_in, said

NAME = "every number"
TODO = {
    "shown-in-part": "a sum over one rank's samples or steps is shown alone, or divided by a number of all: dl.total() "
    "of the sum, or dl.steps(N) of the number of steps",
    "shown-n-fold": "a mean is summed over the ranks, or a sum of all divided by one rank's count: dl.average() of it",
    "shown-otherwise": "make it of all ranks' samples before it is shown: dl.total() of sums and counts, dl.gather() "
    "of what is collected, dl.average() of means",
}
NAMED = re.compile(r"(?<=tfevents).*|\d")  # what differs between the names of two runs' files
RATE = re.compile(r"\b(?:lr|learning[ _]?rate)\W*$", re.IGNORECASE)  # judged by itself
DAY = 86_400.0  # seconds
RATES = "rate "  # marks the places of such numbers
TIMES = "time "  # ... and of what is one of seconds by its words
SURE = 6  # digits in which two runs do not agree by chance
BYTES = re.compile(r"\s*(?:[kmgt]i?b|bytes)\b", re.IGNORECASE)  # of memory that is in use
UNSIGNED = str.maketrans("", "", "+-.")
WIDEST = 6  # columns of a table that is written into one line
DRAWN = re.compile(r"([^\w\s])\1+")  # as long as a bar of such signs, or a rule, may be
FRACTION = re.compile(r"\d*\.\d+")
WRAPS = SHARED | {"compound", "lr_scale", "serial_steps", "steps"}
MINUTES = 5  # that a run may have taken before it wrote a file that is named by its beginning
Key = tuple[str, str, str]  # what it is: printed, in which file, saved; the words around it; which of the numbers there


@dataclass(frozen=True)
class Number:
    """A number in its place: as it is written, after how many batches, and the words and the line that show it.

    ``within``: an epoch of the training is going on, more batches of which may come. ``rows``: of a file, how many rows
    of numbers like this one it has. ``file``: which it is of, where the text does not say so.
    """

    digits: str
    batches: int
    within: bool
    text: str
    at: str
    rows: int = 0
    file: str = ""

    @property
    def said(self) -> str:
        """The text, and the file that it is in."""
        return f"{self.text[:70]!r}{f' in {self.file}' * bool(self.file)}"

    @property
    def value(self) -> float:
        """The number as such."""
        return float(self.digits)


Numbers = Mapping[Key, Sequence[Number]]


@dataclass(frozen=True)
class Pair:
    """A number of the serial script and the port's in the same place, the ``turn``-th there."""

    key: Key
    turn: int
    serial: Number
    port: Number


@dataclass(frozen=True)
class Compared:
    """``same`` of the serial numbers are a port's; ``other`` are not; to ``unpaired`` ones it has none beside them.

    ``known``: the places all of whose numbers are the port's. ``empty``: fractions that are 0 throughout, as a rate of
    hits is of a model that has none: what is a part of it, or n times as much, is 0, too.
    """

    same: int
    other: tuple[Pair, ...]
    unpaired: tuple[Number, ...]
    loose: tuple[Pair, ...] = ()  # others that lie among what the serial script has of single batches
    known: frozenset[Key] = frozenset()
    empty: tuple[Number, ...] = ()


def compared(serial: Run, run: Run, fewer: int, again: Sequence[Run] = ()) -> Compared:
    """Compare each number that is shown after the same batches, ``fewer`` serial ones for one of each rank.

    Left aside are times, learning rates, and what two serial runs, ``again``, have differently. What is one of seconds
    by its words, and the same in both of these, is no time that passes: an error in seconds, or a speed, is compared.
    """
    mine, theirs = numbers_of(serial), numbers_of(run)
    measured = steady([times_of(each) for each in again])
    mine |= {key: numbers for key, numbers in times_of(serial).items() if key in measured}
    theirs |= {key: numbers for key, numbers in times_of(run).items() if key in measured}
    loose = varying([numbers_of(each) for each in again])
    rates = [{f"{lr:.4g}" for step in r.root.steps for lr in step.lr} for r in (serial, run)]
    epochs = sum(epoch.complete for epoch in serial.root.epochs if epoch.trains) + 1
    bars = [_lengths_of_bars(each.root) for each in (serial, run)]
    same, other, unpaired, loose_ones, known = 0, list[Pair](), list[Number](), list[Pair](), set[Key]()
    empty = list[Number]()
    for key, ones in mine.items():
        if key in loose:
            continue
        if key[2].startswith(RATES):
            other += _rates_otherwise(key, ones, theirs.get(key, ()), rates[1], max(fewer, len(run.traces)))
            continue
        pairs = paired(ones, theirs.get(key, ()), fewer)
        fewer_lines = bool(pairs) and len(theirs[key]) < len(ones)  # of a port that shows them less often
        between = sum(not one.within for _, one, _ in pairs)
        unpaired += ones[:1] if between < sum(not one.within for one in ones) and not fewer_lines else []
        named = any(is_rate(one, rates[0]) and is_rate(two, rates[1]) for _, one, two in pairs)
        empty += [ones[0]] if pairs and key[0] != "decided" and not any(map(_tells, ones)) else []
        known |= {key} if pairs and all(alike(one.digits, two.digits) for _, one, two in pairs) else set()
        for turn, one, two in pairs:
            if alike(one.digits, two.digits):
                same += 1
            elif not (named or _numbers_batches(one, two, fewer) or (one.value in bars[0] and two.value in bars[1])):
                each = loose_ones if one.rows > epochs else other  # rows of single steps, which are made after others
                each.append(Pair(key, turn, one, two))
    return Compared(same, tuple(other), tuple(unpaired), tuple(loose_ones), frozenset(known), tuple(empty))


def _rates_otherwise(
    key: Key, ones: Sequence[Number], twos: Sequence[Number], rates: set[str], n: int
) -> Iterator[Pair]:
    """Yield learning rates that are shown and are none of the ranks', but n times n the serial one, or 1/n of it.

    On 1 rank these are others than the serial ones.
    """
    for turn, (one, two) in enumerate(zip(ones, twos, strict=False)):
        apart = any(one.value and is_fold(two.value, one.value, fold) for fold in (n * n, 1 / n))
        apart = apart if n > 1 else not alike(one.digits, two.digits)
        if len(ones) == len(twos) and apart and not is_rate(two, rates):
            yield Pair(key, turn, one, two)


def same_batches(serial: Run, run: Run) -> bool:
    """Whether the ranks have trained on the serial script's batches, each on one of them.

    Where no loader gives them, they are what the models were given for each step. What all ranks give them alike counts
    once, as the beginning of a text that is shown, or, beside batches of their own, for each, as points of a boundary.
    Where there is no module, batches are told by their losses, which follow from them while the parameters stay.
    """
    if any(epoch.trains for epoch in serial.root.epochs):
        mine, theirs = (Counter(h for trace in each.traces for h in _read(trace)) for each in (serial, run))
        return bool(mine) and mine == theirs
    by = _given if any(_given(serial.root)) else _losses
    mine = Counter(by(serial.root))
    each_rank = [Counter(by(trace)) for trace in run.traces]
    every, alike = sum(each_rank, Counter[str]()), functools.reduce(operator.and_, each_rank)
    again = len(each_rank) - 1
    once = {x: every[x] - again * alike[x] for x in mine | every}
    own = any(x not in alike for x in every)  # else all ranks do the same work
    return bool(mine) and all(mine[x] == number or (own and mine[x] == every[x]) for x, number in once.items())


def _read(trace: Trace) -> Iterator[str]:
    """Yield what steps were made of: what is read behind the last one is not trained on."""
    training = {event["epoch"] for event in trace.all("trains")}
    read = (event for step in trace.steps for event in step.before if event.kind == "batch")
    return (event["hash"] for event in read if event["epoch"] in training)


def _given(trace: Trace) -> Iterator[str]:
    return (event["hash"] for step in trace.steps for event in step.before if event.kind == "forward")


def _losses(trace: Trace) -> Iterator[str]:
    made = (event for step in trace.steps for event in step.before if event.kind == "backward")
    return (f"{loss:.9g}" for event in made if (loss := event.facts.get("loss")) is not None)


def paired(ones: Sequence[Number], twos: Sequence[Number], fewer: int) -> list[tuple[int, Number, Number]]:
    """Return (iteration, serial, port's) of the numbers that are shown after the same batches, in turn.

    Of a port that shows fewer each has one beside it, or they are others.
    """
    if len(ones) != len(twos):
        after = {fewer * two.batches: two for two in twos}
        found = [(turn, one, after[one.batches]) for turn, one in enumerate(ones) if one.batches in after]
        return found if len(found) == len(twos) == len(after) else []
    every = [(turn, one, two) for turn, (one, two) in enumerate(zip(ones, twos, strict=True))]
    return [each for each in every if each[1].batches == fewer * each[2].batches]


def alike(a: str, b: str) -> bool:
    """Whether two numbers are equal: whole ones exactly, others up to what rounding makes of the last digit.

    That is nothing where it is the only one: 0.6 is seldom 0.7 for that, and 0.02 is twice 0.01.
    """
    if a == b or (a.isdigit() and b.isdigit()):
        return a == b
    return not _has_one_digit(a, b) and close(a, b) and close(b, a)


def _has_one_digit(*numbers: str) -> bool:
    """Whether none of these fractions shows more than one digit behind its zeros, and they are not all the same."""
    shown = [number.translate(UNSIGNED).lstrip("0") for number in numbers]
    fractions = all("." in number and "e" not in number.lower() for number in numbers)
    return fractions and len(set(shown)) > 1 and max(map(len, shown)) <= 1


def _numbers_batches(one: Number, two: Number, fewer: int) -> bool:
    """Whether these are the numbers of the batch that came last: from 0 on, that of the ranks' first one is shown."""
    return one.within and one.digits.isdigit() and two.digits.isdigit() and 0 < one.value - two.value < fewer


def _tells(number: Number) -> bool:
    """Whether a number is no 0 of a fraction."""
    return number.value != 0 or "." not in number.digits


def is_fold(x: float, y: float, fold: float) -> bool:
    """Whether a number is so many times another one."""
    return math.isclose(x, fold * y, rel_tol=1e-3)


def numbers_of(run: Run) -> dict[Key, list[Number]]:
    """Return what rank 0 prints, saves, decides by and writes into text files, in order."""
    return _by_place(run, times=False)


def times_of(run: Run) -> dict[Key, list[Number]]:
    """Return the fractions that are times by their words, of what rank 0 prints and writes into text files."""
    found = _by_place(run, times=True)
    return {key: numbers for key, numbers in found.items() if all("." in number.digits for number in numbers)}


def _by_place(run: Run, times: bool) -> dict[Key, list[Number]]:
    found: dict[Key, list[Number]] = defaultdict(list)
    for key, number in (*_of_trace(run.root, times), *_of_files(run, times)):
        if key[2].startswith(TIMES) is times:
            found[key].append(number)
    return found


def _of_trace(trace: Trace, times: bool) -> Iterator[tuple[Key, Number]]:
    batches, open_epochs = 0, set[int]()
    training = {event["epoch"] for event in trace.all("trains")}
    kind = "batch" if training else "step"  # of the first optimizer
    printed = set(map(id, trace.printed))
    for event in trace.events:
        if event.kind == kind == "batch" and event["epoch"] in training:
            batches += 1
            open_epochs.add(event["epoch"])
        elif event.kind == kind == "step":
            batches += event["optimizer"] == 0
        elif event.kind in ("over", "cut"):
            open_epochs.discard(event["epoch"])
        within = bool(open_epochs)
        if event.kind == "print" and id(event) in printed:
            for words, place, digits, text in in_line(event["text"], times):
                yield ("shown", words, place), Number(digits, batches, within, text, event.at)
        elif event.kind in ("decision", "choice", "stored"):
            yield from _of_values(event, batches, within)


def _of_values(event: Event, batches: int, within: bool) -> Iterator[tuple[Key, Number]]:
    """Yield the numbers that are saved, and those that a condition compares; counts and moments are left aside."""
    saved = event.kind == "stored"
    what = "" if saved else str(event["what"])
    for name, value in event["values"].items():
        moment = abs(value - time.time()) < DAY  # of the clock of one run: start = time.time()
        if not moment and (saved or not (value.is_integer() or name == TURNS)):
            text = f"{name} in {f'`{what}`' if what else 'what is saved'} is {value:.6g}"
            key = ("saved", what, name) if saved else ("decided", serially(what), serially(name))
            yield key, Number(f"{value:.9g}", batches, within, text, event.at)


@functools.cache
def serially(condition: str) -> str:
    """Return what the serial script has for a port's condition: ``loss < 1e-3`` of ``dl.average(loss) < 1e-3``."""
    try:
        return ast.unparse(_Serially().visit(ast.parse(condition, mode="eval")))
    except SyntaxError:  # what a loop goes through has a name of its own
        return condition


class _Serially(ast.NodeTransformer):
    """Takes away calls of dl_comm's functions, by any name of its module, that leave what they are given."""

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        called = isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name)
        return node.args[0] if called and len(node.args) == 1 and node.func.attr in WRAPS else node  # type: ignore[attr-defined]


def _of_files(run: Run, times: bool) -> Iterator[tuple[Key, Number]]:
    training = {event["epoch"] for event in run.root.all("trains")}
    end = run.root.last("end")
    stopped = end is not None and end.facts.get("how") == "stopped"
    # One that is stopped has read a batch, as of the next phase of a training, that it made no step of.
    events = [event for step in run.root.steps for event in step.before] if stopped else run.root.events
    batches = sum(event.kind == "batch" and event["epoch"] in training for event in events)
    batches = batches or sum(step.optimizer == 0 for step in run.root.steps)
    lines = {event["path"]: event.at for event in run.root.all("file") if event["how"] == "write"}
    ats = {name: lines.get(str(file), "") or name for name, file in run.written.items()}
    for name, text in run.texts.items():
        counts = Counter(words for line in text.splitlines() for words, place, *_ in in_line(line) if place == "0")
        for line in text.splitlines():
            numbers = list(in_line(BAR.sub("", line), times))  # of a bar that is written into a file
            for words, place, digits, whole in numbers:
                rows, at = max(counts[words], len(numbers) // WIDEST), ats.get(name, name)
                yield (NAMED.sub("#", name), words, place), Number(digits, batches, False, whole, at, rows, name)
    for name in _named(run.written):
        for words, place, digits, _ in in_line(name, times):
            yield ("named", words, place), Number(digits, batches, False, f"the file {name}", ats[name])
    for name, file in run.written.items():
        for place, number, rows in numbers_in(file):
            what = f"{place or 'a number'} in {file.name}"
            yield (
                (NAMED.sub("#", name), place, ""),
                Number(said(number), batches, False, f"{what}: {number:.6g}", ats[name], rows),
            )


def _named(written: Mapping[str, Path]) -> list[str]:
    """Return the ways of files without a time in them, in the order in which the files were written last."""
    there = [(file.stat().st_mtime_ns, name) for name, file in written.items() if file.is_file()]
    return [name for when, name in sorted(there) if not _is_dated(name, when / 1e9)]


def _is_dated(name: str, when: float) -> bool:
    """Whether a name has the day, or the time, of about ``when`` among its whole numbers."""
    digits = "".join(filter(str.isdigit, FRACTION.sub("", name)))
    moments = [at(when - 60 * i) for at in (time.localtime, time.gmtime) for i in range(MINUTES)]
    marks = {time.strftime(form, moment) for form in ("%m%d", "%d%m", "%H%M") for moment in moments}
    return any(mark in digits for mark in (*marks, str(int(when))[:5]))


def in_line(text: str, times: bool = False) -> Iterator[tuple[str, str, str, str]]:
    """Yield (the words of the line, which number of it, the number, the line) for all that are no times, or are.

    Of the words, blanks and how often a sign is repeated are left aside: numbers of other lengths are aligned by other
    blanks, and a bar that is drawn of signs may be longer.
    """
    whole = shown(text).strip()
    line = DURATION.sub("a while", whole)
    words = "".join(DRAWN.sub(r"\1", NUMBER.sub("#", line)).split())
    for place, match in enumerate(NUMBER.finditer(line)):
        if BYTES.match(line, match.end()) or match.group().lower().startswith("0x"):
            continue
        if is_time(line, match) is times:
            mark = TIMES if times else RATES if RATE.search(line, 0, match.start()) else ""
            yield words, f"{mark}{place}", match.group(), line
    for place, match in enumerate(DURATION.finditer(whole) if times else ()):
        number = NUMBER.match(match.group())
        unit = match.group()[number.end() :].strip() if number else ""
        if number:
            yield words, f"{TIMES}{place} {unit}", number.group(), whole


def varying(runs: Sequence[Numbers]) -> set[Key]:
    """Return the places whose numbers are others in each of these runs."""
    first, *others = runs or [{}]
    digits = [{key: [x.digits for x in numbers] for key, numbers in each.items()} for each in (first, *others)]
    return {key for key, found in digits[0].items() for other in digits[1:] if other.get(key, found) != found}


def steady(runs: Sequence[Numbers]) -> set[Key]:
    """Return the places whose fractions are the same in each of several runs, in more digits than by chance."""
    first, *others = runs or [{}]
    digits = {key: [number.digits for number in numbers] for key, numbers in first.items()}
    return {
        key
        for key, found in digits.items()
        if others
        and all([number.digits for number in other.get(key, ())] == found for other in others)
        and sum(len(each.translate(UNSIGNED).lstrip("0")) for each in found) >= SURE
    }


def _lengths_of_bars(trace: Trace) -> set[float]:
    """Return the numbers of batches that Keras shows beside its progress bars: those of each rank."""
    fits = [event["epoch"] for event in trace.all("epoch") if event.facts.get("fit")]
    counts = Counter(event["epoch"] for event in trace.all("batch"))
    return {float(counts[epoch]) for epoch in fits}


def is_rate(number: Number, rates: set[str]) -> bool:
    """Whether a number is one of these learning rates."""
    fraction = not number.digits.isdigit()
    return fraction and (f"{number.value:.4g}" in rates or any(_near_rate(number.digits, rate) for rate in rates))


def _near_rate(digits: str, rate: str) -> bool:
    return close(digits, rate) and not _has_one_digit(digits, rate)


def judged(found: Compared, n: int, far: str) -> Check | None:
    """Return the check of what was compared in runs that came so ``far``; None where that was nothing."""
    if found.other:
        return _wrong(found, n)
    left = [(number.text, number.at) for number in (*(pair.serial for pair in found.loose), *found.unpaired)]
    if left:
        first = next(number.digits for number in (*(pair.serial for pair in found.loose), *found.unpaired))
        lines = list(dict.fromkeys(left))
        finding = f"{first} in {lines[0][0][:70]!r} of the serial script ({lines[0][1]})"
        finding += f" and {len(lines) - 1} more" if len(lines) > 1 else ""
        return unjudged(NAME, f"{finding}: the port has no number beside it to compare, or one of a single batch")
    if not found.same:
        return None
    if found.empty:
        one = found.empty[0]
        more = f" and {len(found.empty) - 1} more" if len(found.empty) > 1 else ""
        finding = f"{one.digits} in {one.text[:70]!r} ({one.at}){more} stays 0 with parameters that stay"
        return unjudged(NAME, f"{finding}: {found.same} numbers are the serial script's, but of this nothing is told")
    said = f"{found.same} numbers that are shown, saved or decided by between epochs are the serial script's"
    return passed(NAME, f"{said}, with the same parameters, {far}")


def unread(serial: Run, run: Run) -> Check | None:
    """Name a file whose numbers are not read, such as a picture, and of which ranks make another; None of none."""
    others = [
        name
        for name, file in serial.written.items()
        if name in run.written and name not in serial.texts and name not in run.texts
        if not holds_same(file, run.written[name])
    ]
    if not others:
        return None
    more = f" and {len(others) - 1} more" if len(others) > 1 else ""
    finding = f"{others[0]}{more} holds something else than the serial script's, with the same parameters, after the "
    return unjudged(NAME, f"{finding}same batches: what, is not read", "look at what is drawn or written there")


def _wrong(found: Compared, n: int) -> Check:
    pair = min(found.other, key=lambda pair: (pair.key[0] == "decided", pair.turn))
    one, two = pair.serial, pair.port
    ratio = two.value / one.value if one.value else math.nan
    near = next((f for f in (n, 1 / n) if math.isclose(ratio, f, rel_tol=1e-3)), None)
    fault = {n: "shown-n-fold", 1 / n: "shown-in-part"}.get(near or 0, "shown-otherwise")
    said = f": {two.digits} is {f'{n} times' if near == n else f'1 / {n} of'} {one.digits}" if near else ""
    finding = f"{two.said}, where the serial script with the same parameters, after the same batches, has "
    finding += f"{one.text[:70]!r}{said}"
    more = len({each.key for each in found.other}) - 1
    finding += f"; so have {more} more" if more else ""
    return failed(NAME, finding, TODO[fault], fault, where=two.at if ":" in two.at else "")
