"""Does the serial script repeat itself? Where it does not, what it draws from is named, not the port."""

from __future__ import annotations

from dlrun.verify.trace import Run, Trace
from dlrun.verify.verdict import Check, each_step, failed, passed

NAME = "repeats itself"
SEEDING = {
    "torch": "torch.manual_seed(0)",
    "cuda": "torch.manual_seed(0)",
    "numpy": "numpy.random.seed(0)",
    "random": "random.seed(0)",
    "tensorflow": "tf.random.set_seed(0)",
    "keras": "keras.utils.set_random_seed(0)",
    "graph": "tf.compat.v1.set_random_seed(0)",
}
WHAT = {"graph": "the random ops of the graph", "tensorflow": "TensorFlow", "keras": "Keras"}


def repeats(serial: Run, again: Run, hashed: Run | None = None) -> Check:
    """Compare two serial runs; ``hashed`` is one whose sets and dicts are in the first one's order (PYTHONHASHSEED)."""
    one, two = serial.root, again.root
    first = differing_step(one, two)
    if first is None:
        return passed(NAME, f"two serial runs leave the same bits {each_step(len(one.steps))}")
    place = {"step": first, "where": one.steps[min(first, len(one.steps)) - 1].at}
    so = f"two runs of the serial script differ after step {first}"
    if hashed is not None and differing_step(one, hashed.root) is None:
        return failed(
            NAME,
            f"{so}: the order of a set or of hash() decides what it trains on",
            "sort what comes from sets; or set PYTHONHASHSEED=0, for verify and for every launch",
            "hash-order",
            **place,
        )
    if late := _seeded_late(one, two):
        return failed(NAME, f"{so}: {late[0]}", late[1], "unseeded", **place | {"where": late[2]})
    names, at = _unseeded(one, two, first)
    if names:
        seedings = dict.fromkeys(SEEDING.get(name, f"{name}(0)") for name in names)
        whose = "which is not seeded" if len(names) == 1 else "which are not seeded"
        return failed(
            NAME,
            f"{so}: random numbers come from {' and '.join(WHAT.get(name, name) for name in names)}, {whose}",
            f"add {' and '.join(seedings)} to the script, or run dlrun verify with --seed 0",
            "unseeded",
            **(place | ({"where": at} if at else {})),
        )
    workers = any(event["workers"] for event in one.all("loader"))
    cause = "DataLoader workers" if workers else "time, threads or a kernel without a fixed order"
    todo = "look for time.time(), os.urandom, uuid or a generator's own seed() in what it trains on"
    todo = "verify with num_workers=0" if workers else todo
    return failed(NAME, f"{so}, and all shared random generators agree: {cause}", todo, "not-repeatable", **place)


def differing_step(one: Trace, two: Trace) -> int | None:
    """Return the number of the first step after which parameters differ, None if they never do."""
    for a, b in zip(one.steps, two.steps, strict=False):
        if any(p["hash"] != q["hash"] for p, q in zip(a.params, b.params, strict=False)):
            return a.number
    if len(one.steps) != len(two.steps):
        return min(len(one.steps), len(two.steps)) + 1
    return None


def _seeded_late(one: Trace, two: Trace) -> tuple[str, str, str] | None:
    """Return (finding, todo, line) where a generator is seeded after it was drawn from, or otherwise in each run."""
    begun = [trace.first("begin") for trace in (one, two)]
    for a, b in zip(one.all("seed"), two.all("seed"), strict=False):
        name = a["generator"]
        call = SEEDING.get(name, f"{name}(0)")
        started = [event["states"].get(name) for event in begun if event is not None]
        if a["fixed"] and a.facts.get("late") and len(set(started)) > 1:
            finding = f"{WHAT.get(name, name)} is drawn from before it is seeded (a model's weights, say)"
            return finding, f"move {call} up, to before what draws, or run dlrun verify with --seed 0", a.at
        if a["fixed"] and a.at == b.at and a.facts.get("seed") != b.facts.get("seed"):
            finding = f"{WHAT.get(name, name)} is seeded with {a['seed']}, and with {b['seed']} in another run"
            return finding, f"seed it with the same number in each run: {call}", a.at
    return None


def _unseeded(one: Trace, two: Trace, step: int) -> tuple[list[str], str]:
    """Return the generators that the script drew from, in other states in two runs, and never gave a fixed seed.

    Of one that the script itself made without a seed, also the line.
    """
    for event in one.all("seed"):
        if not event["fixed"]:
            return [event["generator"]], event.at
    fixed = {event["generator"] for event in one.all("seed")}
    at = min(step, len(one.steps), len(two.steps)) - 1
    begin = one.first("begin")
    if at < 0:
        return [], ""
    states, others = one.steps[at].states, two.steps[at].states
    apart = [name for name, state in states.items() if name not in fixed and others.get(name, state) != state]
    drawn = [name for name in apart if begin is None or begin["states"].get(name) != states[name]]
    # TensorFlow's has no state that shows draws while nobody has seeded it; "random ops" are the graph's, too.
    return [name for name in drawn or {"tensorflow"}.intersection(apart) if name != "random ops"], ""
