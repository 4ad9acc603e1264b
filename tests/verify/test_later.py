"""What frozen runs show of later epochs, of files in the end, and of tails that ranks do not share evenly."""

from __future__ import annotations

from dataclasses import replace

import pytest
from by_hand import event, optimizer, run, step

from dlrun.verify.checks.cadence import cadence
from dlrun.verify.checks.later import later
from dlrun.verify.checks.tails import tail_of, tails
from dlrun.verify.trace import Event


def passes(*epochs: list[int], files: tuple[str, ...] = (), how: str = "finished") -> list[Event]:
    """Passes through one data set, each in a batch; then files that are written."""
    events = [optimizer()]
    for number, samples in enumerate(epochs):
        events += [event("epoch", f"t.py:{number}", epoch=number, loader=number, data=0, size=8)]
        events += [event("trains", epoch=number), event("batch", epoch=number, indices=samples, hash=str(samples))]
        events += [step(number + 1, 0.9), event("over", epoch=number)]
    written = [event("file", path=f"/scratch/{name}", how="write", was="") for name in files]
    return [*events, *written, event("end", how=how)]


WHOLE, FIRST, SECOND = [0, 1, 2, 3, 4, 5, 6, 7], [0, 2, 4, 6], [1, 3, 5, 7]


def test_an_epoch_that_is_not_shared_as_the_first_one_was_is_named() -> None:
    serial = run(passes(WHOLE, WHOLE))
    assert later(serial, run(passes(FIRST, SECOND), passes(SECOND, FIRST))) is None
    found = later(serial, run(passes(FIRST, WHOLE), passes(SECOND, WHOLE)))
    assert found is not None
    assert (found.fault, found.where) == ("unsharded-loader", "t.py:1")
    assert later(serial, run(passes(WHOLE, WHOLE), passes(WHOLE, WHOLE))) is None  # judged by the first one


@pytest.mark.parametrize(
    ("files", "how", "fault"),
    [
        (("step8.pt", "step16.pt"), "finished", ""),
        (("step16.pt",), "finished", "missing-file"),
        (("step16.pt",), "stopped", ""),
    ],
)
def test_a_file_of_the_serial_script_that_rank_0_does_not_write_is_missing(files, how: str, fault: str) -> None:
    serial = run(passes(WHOLE, files=("step8.pt", "step16.pt")))
    found = later(serial, run(passes(FIRST, files=files, how=how), passes(SECOND)))
    assert (found.fault if found else "") == fault


def test_a_model_that_the_serial_script_reads_again_is_read_on_ranks_too() -> None:
    def reading(*events: Event) -> list[Event]:
        return [*passes(FIRST)[:-1], *events, event("end", how="finished")]

    serial, load = run(reading(event("restores", "t.py:9"))), event("return", fn="load")
    assert later(serial, run(reading(load), reading(load))) is None
    assert later(serial, run(reading(load), reading())) is None  # and broadcast
    found = later(serial, run(reading(), reading()))
    assert found is not None
    assert found.fault == "missing-restore"


def of_batches(*sizes: int, drops: bool = False) -> list[Event]:
    events = [optimizer(), event("loader", loader=0, drop_last=drops)]
    events += [event("epoch", epoch=0, loader=0, data=0, size=sum(sizes)), event("trains", epoch=0)]
    start = 0
    for number, size in enumerate(sizes, 1):
        samples = list(range(start, start + size))
        events += [event("batch", epoch=0, indices=samples, hash=str(samples)), step(number, 0.9)]
        start += size
    return [*events, event("over", epoch=0)]


def test_a_tail_is_what_ranks_do_not_share_in_whole_batches() -> None:
    assert tail_of(run(of_batches(4, 4, 4, 4)), 2, 3) is None
    tail = tail_of(run(of_batches(4, 4, 4, 1)), 2, 1)
    assert tail is not None
    assert (tail.spare, tail.serial, tail.ranks) == (5, 2 * 4, 2 * 2)  # 13 samples in 4 batches; 7 on each rank in 2
    tail = tail_of(run(of_batches(4, 4, 4, drops=True)), 2, 1)
    assert tail is not None
    assert (tail.serial, tail.ranks) == (2 * 3, 2 * 1)


@pytest.mark.parametrize(
    ("shown", "status"), [("13 0.50", "passed"), ("14 0.55", "passed"), ("7 0.50", "open"), ("13 2.90", "open")]
)
def test_with_a_tail_counts_differ_by_what_pads_a_share(shown: str, status: str) -> None:
    serial = run([*of_batches(4, 4, 4, 1), event("print", "t.py:9", text="seen 13 0.50")])
    tail = tail_of(serial, 2, 1)
    assert tail is not None
    ranks = run([*of_batches(4, 3), event("print", "t.py:9", text=f"seen {shown}")], of_batches(4, 3))
    assert tails(serial, ranks, serial, tail, (serial, serial)).status == status


def test_with_a_tail_learning_rates_are_left_aside() -> None:
    serial = run([*of_batches(4, 4, 4, 4, 4, 4, 1), event("print", "t.py:9", text="epoch 1 0.40 1.0e-01")])
    tail = tail_of(serial, 2, 3)
    assert tail is not None
    shown = event("print", "t.py:9", text="epoch 1 0.40 2.0e-01")
    ranks = [
        [replace(e, facts=e.facts | {"lr": [0.2]}) if e.kind == "step" else e for e in (*of_batches(4, 4, 4, 3), *more)]
        for more in ([shown], [])
    ]
    assert tails(serial, run(*ranks), serial, tail, (serial, serial)).status == "passed"


def test_a_tail_that_1_rank_weighs_otherwise_is_named() -> None:
    serial = run([*of_batches(4, 4, 4, 1), event("print", "t.py:9", text="loss 0.5000")])
    alone = run([*of_batches(4, 4, 4, 1), event("print", "t_dist.py:9", text="loss 0.5400")])
    tail = tail_of(serial, 2, 1)
    assert tail is not None
    check = tails(serial, run(of_batches(4, 3), of_batches(4, 3)), alone, tail, (serial, serial))
    assert (check.fault, check.where) == ("shown-otherwise", "t_dist.py:9")


@pytest.mark.parametrize(("rate", "fault"), [("0.02450", ""), ("0.04900", "shown-otherwise")])
def test_on_1_rank_a_rate_that_no_step_has_used_yet_is_the_serial_one(rate: str, fault: str) -> None:
    serial = run([*of_batches(4, 4, 4, 1), event("print", "t.py:9", text="seen 13 lr 0.02450")])
    alone = run([*of_batches(4, 4, 4, 1), event("print", "t_dist.py:9", text=f"seen 13 lr {rate}")])
    tail = tail_of(serial, 2, 1)
    assert tail is not None
    ranks = run([*of_batches(4, 3), event("print", "t_dist.py:9", text="seen 14 lr 0.04900")], of_batches(4, 3))
    assert tails(serial, ranks, alone, tail, (serial, serial)).fault == fault


def evaluating(steps: int, *after: int) -> list[Event]:
    """So many steps in an epoch, with passes through other data after some of them."""
    events = [optimizer(), event("epoch", epoch=0, loader=0, data=0, size=99), event("trains", epoch=0)]
    for number in range(1, steps + 1):
        events += [event("batch", epoch=0, indices=[number], hash=str(number)), step(number, 0.9)]
        events += [event("epoch", "t.py:5", epoch=number, loader=1, data=1, size=9)] if number in after else []
    return [*events, event("over", epoch=0)]


@pytest.mark.parametrize(
    ("after", "fault"), [((4, 8, 12), ""), ((8,), "too-seldom"), ((1, 8), ""), ((12,), ""), ((), "")]
)
def test_what_is_evaluated_every_so_many_steps_comes_after_as_many_samples(after: tuple[int, ...], fault: str) -> None:
    found = cadence(run(evaluating(24, 8, 16, 24)), run(evaluating(12, *after), evaluating(12, *after)), 2)
    assert (found.fault if found else "") == fault
    by_epochs = run(evaluating(8, 4, 8)), run(evaluating(4, 2, 4), evaluating(4, 2, 4))
    assert cadence(*by_epochs, 2) is None
    assert cadence(run(evaluating(8, 4, 8)), run(evaluating(8, 4, 8)), 2) is None  # what is not shared is told so


@pytest.mark.parametrize(
    ("every", "after", "fault"), [(8, 4, ""), (8, 8, "too-seldom"), (1, 1, "")], ids=["divided", "undivided", "each"]
)
def test_what_is_saved_every_so_many_steps_is_saved_after_as_many_samples(every: int, after: int, fault: str) -> None:
    def saving(steps: int, k: int) -> list[Event]:
        events = evaluating(steps)
        for number in range(k, steps + 1, k):
            at = next(i for i, e in enumerate(events) if e.kind == "step" and e["step"] == number)
            events.insert(at + 1, event("file", "t.py:6", how="write", path=f"out/at{number}.pt", was=""))
        return events

    found = cadence(run(saving(24, every)), run(saving(12, after), evaluating(12)), 2)
    assert (found.fault if found else "") == fault


@pytest.mark.parametrize(("every", "fault"), [(4, ""), (8, "too-seldom")], ids=["divided", "undivided"])
def test_a_target_that_is_copied_every_so_many_steps_is_copied_after_as_many_samples(every: int, fault: str) -> None:
    def copying(steps: int, k: int, condition: str) -> list[Event]:
        events = [optimizer()]
        for number in range(1, steps + 1):
            taken = {"taken": True} if number % k == 0 else {}
            events += [step(number, 0.9), event("change", "t.py:7", what=condition, values={}, **taken)]
        return events

    condition = "it % dl.steps(8) == 0" if every == 4 else "it % 8 == 0"
    found = cadence(
        run(copying(24, 8, "it % 8 == 0")), run(*[copying(12 if every == 4 else 16, every, condition)] * 2), 2
    )
    assert (found.fault if found else "") == fault
