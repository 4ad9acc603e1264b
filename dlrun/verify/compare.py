"""The verdict on three runs of a port, from what they left in their traces. Starts nothing."""

from __future__ import annotations

from dataclasses import replace

from dlrun.verify.checks import data, gradients, ranks, rate
from dlrun.verify.checks.choices import choices
from dlrun.verify.checks.held import held
from dlrun.verify.checks.iterations import turns
from dlrun.verify.checks.metrics import evaluated_whole
from dlrun.verify.checks.moving import moving
from dlrun.verify.checks.normed import normed
from dlrun.verify.checks.options import NAME as OPTIONS
from dlrun.verify.checks.options import options
from dlrun.verify.checks.same import ALONE, same
from dlrun.verify.checks.scaled import scaled
from dlrun.verify.checks.shown import numbers_shown
from dlrun.verify.checks.start import broadcast
from dlrun.verify.checks.sums import NAME as SUMS
from dlrun.verify.checks.sums import divided, sums
from dlrun.verify.checks.weights import NAME as WEIGHTS
from dlrun.verify.checks.weights import classes, weights
from dlrun.verify.trace import Event, Run
from dlrun.verify.verdict import Check, failed, skipped

SHARDED = "sharded run"
# With data of its own, or another copy of a model that it evaluates, a rank finds other numbers, and decides otherwise.
OTHERS = ("copies-differ", "data-differs", "leaking-split", "overlapping-shards")

SAME_WORK = ("equal-seeds", "unsharded-loader")  # of which ranks come to the same numbers


def compare(serial: Run, again: Run, identity: Run, replicate: Run, sharded: Run) -> list[Check]:
    """Return the checks of a port: on 1 rank, on ranks that repeat the serial run, on ranks that share the data.

    ``again`` is a second serial run: what differs between the two is not held against the port. What follows from
    another fault fails without a fault of its own.
    """
    alone = ran(identity, "identity") or same("identity", serial, again, identity)
    found = _sharded(serial, again, identity, sharded)
    if alone.status == "failed":
        alike = {"other-rate": "other-rate", "other-steps": "too-few-steps"}.get(alone.fault)
        found = [replace(c, fault="", todo="see identity") if c.fault and c.fault == alike else c for c in found]
        return [alone, skipped("replicate", "1 rank differs already: see identity"), *found]
    repeated = ran(replicate, "replicate") or same("replicate", serial, again, replicate)
    if repeated.status == "passed" and replicate.name == ALONE and sharded.root.steps:
        repeated = scaled(serial, replicate, sharded) or repeated
    if repeated.fault == "no-mean":  # all that goes into the loss weighs less then
        lighter = (SUMS, WEIGHTS)
        found = [replace(c, fault="", todo="see replicate") if c.name in lighter and c.fault else c for c in found]
    return [alone, _own(repeated, found), *found]


def _sharded(serial: Run, again: Run, identity: Run, sharded: Run) -> list[Check]:
    """Return the checks of the sharded run."""
    if not sharded.root.steps:
        return [ran(sharded, SHARDED) or failed(SHARDED, "rank 0 makes no step", "", "fails")]
    start, mean = broadcast(sharded, bool(gradients.otherwise(sharded))), gradients.mean_gradients(sharded, identity)
    cause = next((check.name for check in (mean, start) if check.status == "failed"), "")
    equal, shards, steps = ranks.equal(sharded, cause), data.shards(identity, sharded), ranks.steps(sharded)
    state = held(sharded, cause or (equal.name if equal.fault == "rank-dependent-rate" else ""))
    if steps.fault == "uneven-steps" and (shards.fault == "uneven-steps" or cause):
        steps = replace(steps, fault="", todo=f"see {shards.name if shards.fault else cause}")
    apart = next((check.name for check in (shards, state) if check.fault in OTHERS), "")
    if steps.fault in ("rank-dependent-exit", "rank-dependent-rate", "rank-dependent-change") and (cause or apart):
        steps = replace(steps, fault="", todo=f"see {cause or apart}")
    checks = [start, mean, equal, state, shards]
    rated = rate.learning_rate(serial, sharded)
    length = turns(serial, sharded)
    if length and length.fault == "too-many-steps" and shards.fault == "unsharded-loader":
        length = replace(length, fault="", todo=f"see {shards.name}")
    if length and length.fault and rated.fault == "double-scaling":  # a ramp of so few steps is as steep
        rated = replace(rated, fault="", todo=f"see {length.name}")
    checks += [data.global_batch(serial, sharded), rated]
    noise = ranks.own_noise(sharded)
    checks += [noise, steps, ranks.one_writer(sharded)]
    remarks = [] if cause else [choices(serial, again, sharded), numbers_shown(sharded), moving(identity, sharded)]
    added = sums(identity, sharded)
    if added and (alike := next((c.name for c in (shards, noise) if c.fault in SAME_WORK), "")):
        added = replace(added, fault="", todo=f"see {alike}")
    parts = [options(identity, sharded, rated.status == "failed"), added, divided(identity, sharded)]
    parts += [evaluated_whole(identity, sharded), length, normed(sharded), weights(identity, sharded), classes(sharded)]
    checks += [check for check in (*parts, *remarks) if check]
    if sharded.error and not sharded.hung:
        rank, event = sharded.error
        told = next((check.name for check in checks if check.fault), "")
        said = f"rank {rank} fails: {event['type']}: {event['message']}".splitlines()[0][:300]
        todo = f"see {told}" if told else _without_gradient(sharded, event) or "it runs on 1 rank"
        checks.append(failed(SHARDED, said, todo, "" if told else "fails", where=event["line"], rank=rank))
    elif not sharded.whole and not sharded.hung:
        told = next((check.name for check in checks if check.fault), "")
        said = " ".join(sharded.log.strip().splitlines()[-3:])
        said, todo = f"ended with code {sharded.code}: {said}"[:500], f"see {told}" if told else ""
        checks.append(failed(SHARDED, said, todo, "" if told else "fails"))
    return checks


def _own(repeated: Check, found: list[Check]) -> Check:
    """Return the check of the replicated run, as a consequence where the ranks that share the data show its cause."""
    cause = next((c.name for c in found if c.fault in ("uneven-steps", "rank-dependent-exit", "fails")), "")
    if cause and repeated.fault in ("other-data", "fails", "uneven-steps", "rank-dependent-exit"):
        return replace(repeated, fault="", todo=f"see {cause}")
    if repeated.fault == "other-update" and any(c.fault == "other-options" for c in found):
        return replace(repeated, fault="", todo=f"see {OPTIONS}")
    return repeated


def ran(run: Run, name: str) -> Check | None:
    """Return a failed check where a run did not come to its end."""
    if run.error and len(run.traces) > 1 and ranks.of_dl_comm(run.error[1]):  # they called different things
        return replace(ranks.steps(run), name=name)
    if run.error:
        rank, event = run.error
        said = f"the port fails on rank {rank} of {len(run.traces)}: {event['type']}: {event['message']}"
        said = said.splitlines()[0][:300]
        todo = _without_gradient(run, event) or "the serial script runs"
        return failed(name, said, todo, "fails", where=event["line"], rank=rank)
    if run.hung and len(run.traces) == 1:
        said = f"the port makes no progress any more after {len(run.root.steps)} steps"
        return failed(name, said, "the serial script comes to its end", "fails")
    if run.hung:
        check = ranks.steps(run)
        return replace(check, name=name, status="failed", fault=check.fault or "uneven-steps")
    if not run.whole:
        said = " ".join(run.log.strip().splitlines()[-3:])
        return failed(name, f"the port ended with code {run.code}: {said}"[:500], "", "fails")
    if run.root.first("face") is None:
        return failed(name, "the port never imported dl_comm", "port it with dlrun port", "not-ported")
    return None


def _without_gradient(run: Run, error: Event) -> str:
    """Return what to do where a loss has lost its gradient in one of dl_comm's functions; empty elsewhere."""
    lost = next((e for name in ("average", "total") for e in run.root.returns(name) if e.facts.get("attached")), None)
    if lost is None or "does not require grad" not in error["message"]:
        return ""
    so = f"what dl.{lost['fn']}() at {lost.at} gives back has no gradient"
    return f"{so}: call backward() on each rank's local loss, and dl.gradients(optimizer) between it and the step"
