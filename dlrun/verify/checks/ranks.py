"""Do the ranks stay together: same parameters, same steps and decisions, own random numbers, one writer?"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

from dlrun.verify.trace import Epoch, Event, Run, Step, Trace
from dlrun.verify.tracer.changes import CHANGE
from dlrun.verify.tracer.conditions import TURNS
from dlrun.verify.verdict import Check, distance, each_step, failed, passed, skipped

EQUAL, STEPS, NOISE, FILES = "same parameters", "same steps", "own random numbers", "one writer"


def equal(run: Run, cause: str = "") -> Check:
    """All ranks hold the same bits after each step. ``cause``: the failed check that explains a difference."""
    root, checked = run.root, 0
    for together in zip(*(trace.steps for trace in run.traces), strict=False):
        checked += 1
        for rank, step in enumerate(together[1:], 1):
            for i, (p, q) in enumerate(zip(together[0].params, step.params, strict=False)):
                if p["hash"] == q["hash"]:
                    continue
                parameter, size = root.names[step.optimizer][i], distance(p, q)
                finding = f"rank {rank} differs from rank 0 by {size:.1e} in {parameter} after step {step.number}"
                place = {"where": step.at, "step": step.number, "rank": rank, "parameter": parameter, "size": size}
                if cause:
                    return failed(EQUAL, f"{finding}: see {cause}", **place)
                if step.lr != together[0].lr:
                    return _other_rates(run, rank, step, together[0], f"{finding}: ", place)
                todo = "every update must come from averaged gradients and values that all ranks share"
                return failed(EQUAL, finding, todo, "ranks-differ", **place)
    return passed(EQUAL, f"{len(run.traces)} ranks hold the same bits {each_step(checked)}")


def _other_rates(run: Run, rank: int, step: Step, other: Step, finding: str, place: dict[str, Any]) -> Check:
    """Return a check that failed because ranks have other learning rates, with the line of the schedule if one has."""
    mine, theirs = next(pair for pair in zip(step.lr, other.lr, strict=False) if pair[0] != pair[1])
    finding += f"its learning rate is {mine:g} there, {theirs:g} on rank 0"
    for one, two in zip(run.root.all("peaks"), run.traces[rank].all("peaks"), strict=False):
        if one["made"] != two["made"]:
            finding += f", whose schedule has made {one['made']} steps, and {two['made']} on rank {rank}"
            place |= {"where": one["where"] or two["where"] or place["where"]}
            break
    todo = "let all ranks set their rates, and step their schedules, alike"
    return failed(EQUAL, finding, todo, "rank-dependent-rate", **place)


def steps(run: Run) -> Check:
    """All ranks decide alike, make as many steps and come to the end."""
    decision = _decision(run)
    if decision:
        return decision
    counts = [len(trace.steps) for trace in run.traces]
    failure = run.error[1] if run.error else None
    if failure and not of_dl_comm(failure):
        return skipped(STEPS, f"a rank failed after {min(counts)} steps")
    left_alone = not run.whole and len({trace.ended for trace in run.traces}) > 1
    if len(set(counts)) > 1 or run.hung or left_alone or failure:  # dl_comm's: the ranks called different things
        where = " and ".join(f"rank {trace.rank} {_place(trace)}" for trace in (run.root, _other(run)))
        how = "the ranks wait for each other for ever" if run.hung else "the ranks went apart"
        todo = "every rank must make the same steps and call the same dl_comm functions in the same order"
        left = min(run.traces, key=lambda t: (len(t.steps), not _has_left(t), t.rank))
        return failed(
            STEPS, f"{how}: {where}", todo, "uneven-steps", where=_at(left), step=min(counts) + 1, rank=left.rank
        )
    made = f"{counts[0]} step{'s' * (counts[0] != 1)}"
    return passed(STEPS, f"{len(counts)} ranks make {made}, and leave the loop together")


def of_dl_comm(error: Event) -> bool:
    """Whether an error is dl_comm's: under its own name, or in its words where TensorFlow's op raised it."""
    return error["type"] == "CommError" or re.search(r"\bteam \d+, call \d+, ", error["message"]) is not None


def _decision(run: Run) -> Check | None:
    """Return the first condition whose operands differ between ranks, None where all agree."""
    sequences = [_decisions(trace) for trace in run.traces]
    for rank, other in enumerate(sequences[1:], 1):
        for key, events in sequences[0].items():
            for a, b in zip(events, other.get(key, []), strict=False):
                for name, x in a["values"].items():
                    y = b["values"].get(name, x)
                    if x == y or (math.isnan(x) and math.isnan(y)):
                        continue
                    return _apart(a, name, x, y, rank)
    return None


def _apart(event: Event, name: str, x: float, y: float, rank: int) -> Check:
    plateau = event["what"].endswith(".step")
    what = "the metric of ReduceLROnPlateau" if plateau else f"{name} in `{event['what']}`"
    finding = f"{what} is {x:.6g} on rank 0 and {y:.6g} on rank {rank}"
    end = "their learning rates drift apart" if plateau else "one rank may leave the loop before the others"
    todo = f"decide on what all ranks share: dl.average({'metric' if plateau else name})"
    fault = "rank-dependent-rate" if plateau else "rank-dependent-exit"
    if event.kind == CHANGE:
        end, fault = "the ranks may train on otherwise, such as at other rates", "rank-dependent-change"
    if name in event.facts.get("ranks", ()):
        finding = f"`{event['what']}` leads out of the training loop, and asks for the rank's number"
        end = "a rank that leaves lets the others wait for ever"
        todo = "let all ranks go through the same steps: data that do not divide evenly are dl.shard()'s to shard"
        fault = "uneven-steps"
    if name == TURNS:
        todo = "let all ranks count alike: what the loop counts, such as the epoch of a checkpoint, has to be rank 0's"
        fault = "uneven-steps"
    return failed(STEPS, f"{finding}: {end}", todo, fault, where=event.at, rank=rank, size=abs(x - y))


def _decisions(trace: Trace) -> dict[tuple[str, str, tuple[int, int]], list[Event]]:
    """Return the decisions of each line, by the pass through data and the step that they belong to."""
    found = defaultdict(list)
    for event, place in trace.in_passes("decision", CHANGE):
        found[event.at, event["what"], place].append(event)
    return found


def _other(run: Run) -> Trace:
    """Return the trace of a rank that did something else than rank 0; of the last one where all did the same."""
    root = (len(run.root.steps), run.root.ended, run.root.waiting and run.root.waiting.at)
    others = run.traces[1:]
    return next((t for t in others if (len(t.steps), t.ended, t.waiting and t.waiting.at) != root), others[-1])


def _has_left(trace: Trace) -> bool:
    """Whether a rank is done with its training."""
    return trace.ended or (trace.waiting is not None and trace.waiting["fn"] == "finalize")


def _place(trace: Trace) -> str:
    """Return where a rank is."""
    made = f"after {len(trace.steps)} steps"
    if trace.ended:
        return f"ended {made}"
    if trace.waiting:
        name = trace.waiting["fn"]
        return f"waits in {name if '.' in name else f'dl.{name}'}() at {trace.waiting.at} {made}"
    return f"was at {_at(trace)} {made}"


def _at(trace: Trace) -> str:
    return next((event.at for event in reversed(trace.events) if event.at), "")


def own_noise(run: Run) -> Check:
    """Random numbers drawn while training (dropout, noise, augmentation) differ between the ranks."""
    drew: set[str] = set()
    for together in zip(*(trace.steps for trace in run.traces), strict=False):
        for name in sorted(_training_draws(together[0].before, together[0].drew)):
            drew.add(name)
            if len({step.states.get(name) for step in together}) > 1:
                continue
            finding = f"all ranks draw the same random numbers from {name} while training: equal dropout masks or noise"
            todo = "call dl.reseed() before the training loop, after the model is built"
            at = next((e.at for e in together[0].before if e.kind == "forward"), together[0].at)
            return failed(NOISE, finding, todo, "equal-seeds", where=at, step=together[0].number)
    for line, alike in _draws_of_the_script(run).items():
        if alike:
            finding = f"all ranks draw the same noise at {line} in each step"
            todo = "call dl.reseed() before the training loop, after the model is built; a generator of the script's "
            todo += "own needs dl.reseed(generator), or seed + dl.get_rank()"
            return failed(NOISE, finding, todo, "equal-seeds", where=line)
        drew |= set() if "torch" in drew else {f"what generates them at {line}"}
    for generator, (where, alike) in _draws_of_workers(run).items():
        if alike:
            finding = f"the DataLoader's workers draw the same random numbers from {generator} on all ranks"
            todo = "call dl.reseed() before the training loop; seeds that worker_init_fn sets need the rank's number"
            return failed(NOISE, finding, todo, "equal-seeds", where=where)
        drew.add(f"{generator} in the DataLoader's workers")
    if not drew:
        return skipped(NOISE, "none are drawn while training")
    return passed(NOISE, f"each rank draws its own from {' and '.join(sorted(drew))}")


def _draws_of_the_script(run: Run) -> dict[str, bool]:
    """Return the lines that draw noise for one step after another, and whether all ranks draw the same there."""
    found: dict[str, bool] = {}
    before: dict[int, dict[str, list[str]]] = {}  # by optimizer
    for together in zip(*(trace.steps for trace in run.traces), strict=False):
        draws = [_drawn(step) for step in together]
        for line, mine in draws[0].items():
            if line in before.get(together[0].optimizer, {}):
                found[line] = found.get(line, True) and all(other.get(line) == mine for other in draws)
        before[together[0].optimizer] = draws[0]
    return found


def _draws_of_workers(run: Run) -> dict[str, tuple[str, bool]]:
    """Return the generators that training loaders' workers draw from: the line, and whether all ranks draw alike."""
    found: dict[str, tuple[str, bool]] = {}
    own, *others = ([_of_workers(trace, epoch) for epoch in trace.epochs if epoch.trains] for trace in run.traces)
    for mine, *theirs in zip(own, *others, strict=False):
        for look, (at, drawn) in mine.items():
            for name, state in drawn.items():
                alike = all(each.get(look, (at, {}))[1].get(name) == state for each in theirs)
                found[name] = (at, alike or found.get(name, (at, False))[1])
    return found


def _of_workers(trace: Trace, epoch: Epoch) -> dict[tuple[int, int], tuple[str, dict[str, str]]]:
    """Return, by a worker's number and its turn, the epoch's line and the states of what it drew from."""
    found: dict[tuple[int, int], tuple[str, dict[str, str]]] = {}
    for event in trace.all("worker"):
        if event["dataset"] == epoch.dataset:
            turn = sum(worker == event["worker"] for worker, _ in found)
            found[event["worker"], turn] = (epoch.at, event["drawn"])
    return found


def _drawn(step: Step) -> dict[str, list[str]]:
    """Return what was drawn for a step from generators of the script's own, by line."""
    found: dict[str, list[str]] = {}
    for event in step.before:
        for line, drawn in event["noise"] if event.kind == "carried" else ():
            found.setdefault(line, []).append(drawn)
        if event.kind == "return" and event.facts.get("type", "range") not in ("range", "DataLoader"):
            found = {}  # what was drawn is sharded, so that all have to draw alike
        if event.kind == "draw":
            found.setdefault(event.at, []).append(event["hash"])
    return found


def _training_draws(before: tuple[Event, ...], drew: tuple[str, ...]) -> set[str]:
    """Return the generators drawn from in the model, or between a loader's batch and the step."""
    inside = {name for event in before if event.kind == "forward" for name in event["drew"]}
    return inside | (set(drew) if any(event.kind == "batch" for event in before) else set())


def one_writer(run: Run) -> Check:
    """Rank 0 alone touches files."""
    writers: dict[str, dict[int, Event]] = defaultdict(dict)
    moved = {event["was"] for trace in run.traces for event in trace.all("file") if event["was"]}
    for trace in run.traces:
        for event in trace.all("file"):
            hidden = any(part.startswith(".saving-") for part in Path(event["path"]).parts)
            if event["path"] not in moved and not hidden and event["how"] != "mkdir":
                writers[event["path"]].setdefault(trace.rank, event)
    for path, ranks in writers.items():
        rank = next((r for r in sorted(ranks) if r > 0), None)
        if rank is not None:
            who = " and ".join(f"rank {r}" for r in sorted(ranks))
            finding = f"{Path(path).name} is touched ({ranks[rank]['how']}) by {who}"
            todo = "write on rank 0 alone: dl.save(), or dl.rank0(function)(...)"
            return failed(FILES, finding, todo, "save-by-every-rank", where=ranks[rank].at, rank=rank)
    if not writers:
        return skipped(FILES, "no file was written in these steps")
    names = ", ".join(Path(path).name for path in list(writers)[:3])
    return passed(FILES, f"rank 0 alone wrote {names}")
