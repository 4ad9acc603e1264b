"""A port that must do exactly what the serial script does: on 1 rank, and on n ranks that repeat it."""

from __future__ import annotations

import re
from pathlib import Path

from dlrun.verify.checks.lengths import loops
from dlrun.verify.checks.numbers import alike, numbers_of
from dlrun.verify.checks.output import first_difference, shown
from dlrun.verify.trace import Event, Run, Step, Trace
from dlrun.verify.tracer.conditions import TURNS
from dlrun.verify.verdict import Check, distance, each_step, failed, passed

ALONE = "alone"  # the name of a run whose ranks are told so
ORDER = ("zero_grad", "backward", "clip", "unscale", "step")


def same(name: str, serial: Run, again: Run, run: Run) -> Check:
    """Compare every rank of ``run`` with the serial run: parameters bit by bit after each step, then the output."""
    for trace in run.traces:
        differing = _parameters(name, serial.root, again.root, trace) or _to_come(name, serial.root, again.root, trace)
        if differing:
            return differing
    difference = first_difference(serial.root.printed, again.root.printed, run.root.printed)
    if difference:
        said = "nothing" if difference.printed is None else f"{shown(difference.printed).strip()!r}"
        wanted = "nothing" if difference.expected is None else f"{shown(difference.expected).strip()!r}"
        return failed(
            name,
            f"the output differs: {wanted} became {said}",
            "a port prints what the serial script prints",
            "other-output",
            where=difference.at,
        )
    if kept := _kept_otherwise(name, serial, again, run) or _written_otherwise(name, serial, again, run):
        return kept
    other = {without_time(name) for name in files_of(run) - files_of(serial)}
    alike = (files_of(serial) & files_of(again)) - files_of(run)
    missing = sorted(name for name in alike if without_time(name) not in other)
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        finding, todo = f"{missing[0]}{more}, which the serial script writes, is not written", "write it on rank 0"
        return failed(name, finding, todo, "missing-file", where=_writes(serial, missing[0]))
    steps, ranks = len(run.root.steps), len(run.traces)
    who = "1 rank leaves" if ranks == 1 else f"{ranks} ranks that repeat the serial run leave"
    if run.name == ALONE:
        who = f"{ranks} ranks, each told that it is rank 0 of 1, as the port shares its data by their numbers, leave"
    return passed(name, f"{who} its parameters bit for bit {each_step(steps)}, and its output")


def _kept_otherwise(name: str, serial: Run, again: Run, run: Run) -> Check | None:
    """Return a check that failed because other tensors are saved, as those of a model before its last update."""
    every = [[event for event in each.root.all("stored") if event.facts.get("kept")] for each in (serial, again, run)]
    if len({len(events) for events in every}) > 1:
        return None
    for number, (one, two, mine) in enumerate(zip(*every, strict=True), 1):
        alike = {key: bits for key, bits in one["kept"].items() if two["kept"].get(key) == bits}
        if other := [key for key, bits in alike.items() if mine["kept"].get(key, bits) != bits]:
            more = f" and {len(other) - 1} more" if len(other) > 1 else ""
            finding = f"{other[0]}{more}, saved at {mine.at}, is another one than the serial script saves"
            finding += f" (save {number} of {len(every[0])})" if len(every[0]) > 1 else ""
            todo = "save what the serial script saves, behind the same update"
            return failed(name, finding, todo, "other-output", where=mine.at)
    return None


def _written_otherwise(name: str, serial: Run, again: Run, run: Run) -> Check | None:
    """Return a check that failed because of a number in a file, or in the name of one; of none that two runs differ in.

    What is printed, or decides, is compared as it comes.
    """
    mine, other, theirs = (numbers_of(each) for each in (serial, again, run))
    for key, ones in mine.items():
        twos, repeats = theirs.get(key, ()), [x.digits for x in other.get(key, ())] == [x.digits for x in ones]
        if key[0] in ("shown", "decided") or not repeats or len(ones) != len(twos):
            continue
        for one, two in zip(ones, twos, strict=True):
            if not alike(one.digits, two.digits) and two.digits != f"{one.digits}.0":  # of a tensor's integers
                finding = f"{two.said}, where the serial script writes {one.text[:70]!r}"
                where = two.at if ":" in two.at else ""
                return failed(name, finding, "a port writes what the serial script writes", "other-output", where=where)
    return None


def _parameters(name: str, serial: Trace, again: Trace, trace: Trace) -> Check | None:
    for a, b in zip(serial.steps, trace.steps, strict=False):
        for i, (p, q) in enumerate(zip(a.params, b.params, strict=False)):
            if p["hash"] != q["hash"]:
                names = trace.names.get(b.optimizer, [])
                parameter = names[i] if i < len(names) else f"parameter {i}"
                other = again.steps[a.number - 1].states if len(again.steps) >= a.number else {}
                finding, todo, fault, where = _cause(a, b, {g for g, s in a.states.items() if other.get(g, s) != s})
                size = distance(p, q)
                if fault == "other-data":
                    finding, todo = _order_of_sampler(serial, trace) or (finding, todo)
                if fault in ("other-data", "other-randomness"):
                    finding, todo, where = _seeded_again(serial, trace, a.number) or (finding, todo, where)
                if fault in ("other-data", "other-randomness"):
                    finding, todo, fault, where = _other_turns(serial, trace) or (finding, todo, fault, where)
                if fault == "other-rate":
                    finding, todo, where = _turns_of_schedule(serial, trace) or (finding, todo, where)
                return failed(
                    name,
                    f"{parameter} differs by {size:.1e} after step {a.number}: {finding}",
                    todo,
                    fault,
                    where=where,
                    step=a.number,
                    rank=trace.rank,
                    parameter=parameter,
                    size=size,
                )
        if len(a.params) != len(b.params):
            finding = f"the optimizer holds {len(b.params)} parameters, the serial one {len(a.params)}"
            return failed(name, finding, "compare the optimizers' arguments", "other-model", where=b.at)
    if len(serial.steps) != len(trace.steps):
        last = trace.steps[-1].at if trace.steps else ""
        finding = f"the serial script makes {len(serial.steps)} steps, rank {trace.rank} of the port {len(trace.steps)}"
        return failed(name, finding, "loop bounds and step counts must not change on 1 rank", "other-steps", where=last)
    return None


def _to_come(name: str, serial: Trace, again: Trace, trace: Trace) -> Check | None:
    """Return a check that failed because an epoch goes on otherwise than the serial one, beyond where it was cut."""
    epochs = ([epoch for epoch in t.epochs if epoch.trains] for t in (serial, again, trace))
    for number, (a, other, b) in enumerate(zip(*epochs, strict=False), 1):
        one, two, mine = ([*epoch.batches, *epoch.rest] for epoch in (a, other, b))
        if one != two or one == mine or not (a.complete and b.complete):
            continue
        first = next((i for i, (x, y) in enumerate(zip(one, mine, strict=False), 1) if x != y), 0)
        finding = f"batch {first} of epoch {number} is another one than in the serial script"
        if len(one) != len(mine):
            finding = f"epoch {number} has {len(mine)} batches, {len(one)} in the serial script"
        todo = "make the loader as the serial script does: same samples, batch size, drop_last, sampler and seed"
        return failed(name, finding, todo, "other-data", where=b.at, rank=trace.rank)
    return None


def _cause(a: Step, b: Step, loose: set[str]) -> tuple[str, str, str, str]:
    """Return (finding, todo, fault, line) for the first thing that differs in the making of a step.

    ``loose``: generators in another state in each serial run, which nothing was drawn from.
    """
    serial, port = _order(a), _order(b)
    if serial != port:
        finding = f"serial does {' > '.join(serial)}, the port {' > '.join(port)}"
        stale = port.count("zero_grad") < serial.count("zero_grad") or _backward_last(port) > _backward_last(serial)
        if stale:
            todo = "the update used a gradient of an earlier step: put zero_grad, backward and step in the serial order"
            return f"stale gradient, {finding}", todo, "stale-gradient", b.at
        return finding, "keep the serial order of the training step", "other-order", b.at
    if _batches(a) != _batches(b):
        line = next((e.at for e in b.before if e.kind == "batch"), b.at)
        one, other = len(_batches(a)), len(_batches(b))
        if one and other and one != other:
            finding = f"it is made of {other} batch{'es' * (other > 1)}, the serial one of {one}"
            return finding, "let as many batches go into an update as in the serial script", "other-data", b.at
        return "it read other samples", "sharding must change nothing here: same sampler, same seed", "other-data", line
    if [f"{rate:g}" for rate in a.lr] != [f"{rate:g}" for rate in b.lr]:  # of updates by hand they are measured
        finding = f"the learning rate is {b.lr[0]:g}, not {a.lr[0]:g}"
        return finding, "scale the rate with dl.lr_scale(), which leaves it alone here", "other-rate", b.at
    changed = [name for name, state in a.states.items() if b.states.get(name, state) != state and name not in loose]
    if changed:
        todo = f"the port draws other numbers from {changed[0]} than the serial script; leave its stream alone"
        return f"the random numbers of {' and '.join(changed)} differ", todo, "other-randomness", b.at
    if a.count("forward") and _inputs(a) != _inputs(b):
        return "the model was given another input", "compare what is computed before the model", "other-data", b.at
    used = [(g, h) for g, h in zip(a.grads, b.grads, strict=False) if (g or {}).get("hash") != (h or {}).get("hash")]
    if used:
        ratio = (used[0][1] or {}).get("norm", 0) / ((used[0][0] or {}).get("norm", 0) or 1)
        finding = f"its gradient is {ratio:.6g} times the serial one"
        todo = "average each gradient once, as a mean, and compute the loss as the serial script does"
        return finding, todo, "other-gradient", b.at
    return "same data, rate and gradients: the update differs", "compare the optimizers' options", "other-update", b.at


def _order_of_sampler(serial: Trace, trace: Trace) -> tuple[str, str] | None:
    """Return (finding, todo) where a DistributedSampler of the port's own decides the order; None elsewhere."""
    trained = {epoch.loader for epoch in trace.epochs if epoch.trains}
    samplers = [event.facts.get("sampler") for event in trace.all("loader") if event["loader"] in trained]
    if "DistributedSampler" not in samplers:
        return None
    finding = "it read other samples: DistributedSampler has an order of its own, drawn from its seed and set_epoch()"
    orders = [epoch.samples for epoch in trace.epochs if epoch.trains and epoch.complete]
    if len(orders) > 1 and orders[0] == orders[1]:
        finding += ", which is not called: each epoch has the same order"
    if not any(event.facts.get("shuffle") or event["custom"] for event in serial.all("loader")):
        return finding, "give it shuffle=False, as the serial script does not shuffle, or dl.shard(loader) in its place"
    return finding, "dl.shard(loader) in its place takes the serial order, without set_epoch(): that can be proved"


def _seeded_again(serial: Trace, trace: Trace, number: int) -> tuple[str, str, str] | None:
    """Return (finding, todo, line) where the port seeds a generator once more, before a step; None where it does not.

    A DistributedSampler's order does not depend on it.
    """
    before, now = ([e for e in _until(t, number) if e.kind == "seed" and e["fixed"]] for t in (serial, trace))
    for generator in dict.fromkeys(event["generator"] for event in now):
        one, other = ([event for event in each if event["generator"] == generator] for each in (before, now))
        if len(other) > len(one) and not _order_of_sampler(serial, trace):
            finding = f"{generator} is seeded at {other[-1].at}, where the serial script goes on drawing as before"
            todo = "dl.reseed() in its place gives each rank its own, and leaves those of 1 rank as they are"
            return finding, todo, other[-1].at
    return None


def _until(trace: Trace, number: int) -> list[Event]:
    """Return the events before a step."""
    return [event for step in trace.steps[:number] for event in step.before]


def _other_turns(serial: Trace, trace: Trace) -> tuple[str, str, str, str] | None:
    """Return (finding, todo, fault, line) where a loop of steps makes other numbers of iterations, or None."""
    for a, b in zip(loops(serial), loops(trace), strict=False):
        if a["values"][TURNS] != b["values"][TURNS]:
            made, serial = b["values"][TURNS], a["values"][TURNS]
            finding = f"{b['what']} makes {made:g} iterations, {serial:g} in the serial script"
            return finding, "go through as many on 1 rank as the serial script", "other-steps", b.at
    return None


def _turns_of_schedule(serial: Trace, trace: Trace) -> tuple[str, str, str] | None:
    """Return (finding, todo, line) where a schedule of the script steps more often, or less; None where none does."""
    for a, b in zip(serial.all("peaks"), trace.all("peaks"), strict=False):
        if a["made"] != b["made"]:
            finding = f"a schedule of the learning rate has made {b['made']} steps, {a['made']} in the serial script"
            return finding, "step it where the serial script does, as often", b["where"]
    other = next((pair for pair in zip(serial.steps, trace.steps, strict=False) if pair[0].lr != pair[1].lr), None)
    if other is None or all(step.optimizer != other[0].optimizer for step in serial.steps[: other[0].number - 1]):
        return None  # or the first of its optimizer
    finding = f"the learning rate is {other[1].lr[0]:g}, not {other[0].lr[0]:g}"
    todo = "let its schedule be the serial one on 1 rank: take what it counts from dl.steps(count)"
    return finding, todo, other[1].at


def files_of(run: Run) -> set[str]:
    """Return the names of the files that a run writes."""
    return {Path(event["path"]).name for trace in run.traces for event in trace.all("file") if event["how"] == "write"}


def without_time(name: str) -> str:
    """Return the name of a file without its digits, where those are as many as a day and a time of it have."""
    return re.sub(r"\d", "", name) if len(re.findall(r"\d", name)) >= 8 else name


def _writes(run: Run, name: str) -> str:
    """Return the line that writes a file of this name."""
    return next(event.at for event in run.root.all("file") if Path(event["path"]).name == name)


def _order(step: Step) -> list[str]:
    """Return the kinds of events of a training step, repeats in a row counted once."""
    kinds = [e.kind for e in step.before if e.kind in ORDER] + ["step"]
    return [kind for i, kind in enumerate(kinds) if i == 0 or kinds[i - 1] != kind]


def _backward_last(order: list[str]) -> int:
    """Return how many events come between the last backward and the step; all of them without a backward."""
    return order[::-1].index("backward") if "backward" in order else len(order)


def _batches(step: Step) -> list[object]:
    return [e["indices"] or e["hash"] for e in step.before if e.kind == "batch"]


def _inputs(step: Step) -> list[str]:
    return [e["hash"] for e in step.before if e.kind == "forward"]
