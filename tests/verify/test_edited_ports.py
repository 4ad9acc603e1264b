"""What people get wrong where they edit ports: data that are local, counts divided twice; on traces by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from by_hand import epoch, event, optimizer, run, step

from dlrun.verify.checks import data, metrics, rate, repeat
from dlrun.verify.checks.contents import contents, made_otherwise
from dlrun.verify.checks.coverage import coverage
from dlrun.verify.checks.iterations import turns
from dlrun.verify.checks.options import options
from dlrun.verify.checks.same import same
from dlrun.verify.checks.scaled import scaled
from dlrun.verify.trace import Event
from dlrun.verify.tracer.conditions import TURNS


def reading(offset: int, noise: int = 0, turned: bool = False) -> list[Event]:
    """Three steps that each read four samples; a sample's content is its number and an offset.

    ``turned``: the last of a batch comes first.
    """
    events = [event("epoch", epoch=0, loader=0, data=0, size=12), event("trains", epoch=0)]
    for k in range(3):
        numbers = list(range(4 * k, 4 * k + 4))[:: -1 if turned else 1]
        events.append(event("batch", epoch=0, indices=numbers, hash=""))
        events.append(event("forward", rows={"input 1": [i + offset + noise * (k + 1) for i in numbers]}))
        events.append(step(k + 1, 0.9))
    return events


@pytest.mark.parametrize(("offset", "noise", "fault"), [(0, 0, ""), (100, 0, "data-differs"), (100, 1000, "")])
def test_data_that_each_rank_makes_for_itself_are_told_from_noise(offset, noise, fault) -> None:
    ranks = run(reading(0, 2 * noise, turned=True), reading(offset, 3 * noise))
    check = contents(run(reading(0, noise)), ranks, "shards")
    assert (check.fault if check else "") == fault
    assert check is None or "sample 0 is another one on rank 1" in check.finding


def test_noise_that_rank_0_draws_in_the_same_place_as_1_rank_is_no_sample() -> None:
    assert contents(run(reading(0)), run(reading(0), reading(100)), "shards") is None


def test_a_sequence_is_as_long_as_the_longest_of_its_batch() -> None:
    def padded(length: int) -> list[Event]:
        events = reading(0)
        *_, last = (event for event in events if event.kind == "forward")
        last.facts["rows"], last.facts["lengths"] = (
            {"input 1": [length * i for i in (8, 9, 10, 11)]},
            {"input 1": [length]},
        )
        return events

    assert contents(run(padded(5)), run(padded(5), padded(6)), "shards") is None


@pytest.mark.parametrize(
    ("rows", "targets", "fault"),
    [
        (([1, 3], [2, 4]), ([5, 7], [6, 8]), ""),
        (([11, 13], [12, 14]), ([5, 7], [6, 8]), "data-differs"),  # each scaled by the mean of its share
        (([11, 12, 13, 14], [21, 22, 23, 24]), ([5, 6, 7, 8],) * 2, "data-differs"),
        (([11, 13], [12, 14]), ([5, 5], [6, 6]), ""),  # what each rank has played by itself
        (([1], [2]), ([5], [6]), ""),
    ],
)
def test_rows_that_each_rank_computes_from_its_own_share_are_told_by_their_targets(rows, targets, fault) -> None:
    def held(x: list[int], y: list[int]) -> list[Event]:
        return [*epoch([[0]]), event("held rows", data=0, rows={"tensors[0]": x, "tensors[1]": y})]

    ranks = [held(x, y) for x, y in zip(rows, targets, strict=True)]
    check = made_otherwise(run(held([1, 2, 3, 4], [5, 6, 7, 8])), run(*ranks), "shards")
    assert (check.fault if check else "") == fault


@pytest.mark.parametrize(
    ("rows", "seeds", "fault"),
    [
        (([21, 22, 23, 24, 25, 26, 27, 28], [31, 32, 33, 34, 35, 36, 37, 38]), (0, 0), "data-differs"),
        (([21, 22, 23, 24, 25, 26, 27, 28], [31, 32, 33, 34, 35, 36, 37, 38]), (0, 1), ""),  # each draws its own
        (([1, 3, 5, 7, 9, 11, 13, 15], [2, 4, 6, 8, 10, 12, 14, 16]), (0, 0), ""),
    ],
)
def test_samples_without_targets_that_each_rank_scales_by_its_share_are_told_by_their_number(rows, seeds, fault):
    def held(x: list[int], seed: int) -> list[Event]:
        seeded = event("seed", generator="torch", fixed=True, seed=str(seed))
        return [
            seeded,
            *epoch([[0]]),
            event("held rows", data=0, rows={"tensors[0]": x}),
        ]

    ranks = [held(*each) for each in zip(rows, seeds, strict=True)]
    check = made_otherwise(run(held([*range(1, 17)], 0)), run(*ranks), "shards")
    assert (check.fault if check else "") == fault


@pytest.mark.parametrize(
    ("own", "divided", "late", "fault", "says"),
    [
        (False, False, True, "unsharded-loader", "every rank reads all 20 samples"),
        (True, False, True, "", "each rank reads 20 samples of its own, made after dl.reseed()"),
        (True, False, False, "unsharded-loader", "every rank reads all 20 samples"),
        (True, True, False, "data-differs", "dl.shard() shards one of them"),  # a seed of its own for the data
    ],
)
def test_episodes_that_each_rank_plays_are_no_data_that_none_shares(own, divided, late, fault, says) -> None:
    def reads(first: int) -> list[Event]:
        shards = [event("return", fn="shard", loaders=[0], shard=0)] * divided
        rows = {"tensors[0]": list(range(first, first + 20)), "done": [0, 1] * 10}
        made = [event("return", fn="reseed"), event("loader", loader=0)][:: 1 if late else -1]
        return [*made, *shards, *epoch([list(range(20))]), event("held rows", data=0, rows=rows), step(1, 0.9)]

    ranks = [reads(100 * (rank + 1) if own else 0) for rank in range(2)]
    check = data.shards(run(reads(0)), run(*ranks))
    assert (check.fault, says in check.finding) == (fault, True), check


def test_a_data_set_is_asked_for_what_it_holds_a_row_of_for_each_sample() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
    from dlrun.verify.tracer.tensors import held_by

    whole = torch.utils.data.TensorDataset(torch.zeros(4, 2), torch.zeros(4))
    whole.names, whole.scale = ["a"] * 4, torch.zeros(2)
    assert list(held_by(whole)) == ["tensors[0]", "tensors[1]"]
    assert held_by([1, 2]) == {}


def test_a_stream_of_samples_which_has_no_length_is_not_asked_for_what_it_holds() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
    from dlrun.verify.tracer.tensors import held_by

    class Stream(torch.utils.data.IterableDataset):
        def __init__(self) -> None:
            self.samples = torch.zeros(4, 2)

        def __iter__(self):
            return iter(self.samples)

    assert held_by(Stream()) == {}


def test_a_port_that_fails_before_its_first_step_is_not_run_with_the_serial_batch(tmp_path) -> None:
    from dlrun.verify.job import Job, Runs

    runs = Runs(Job(tmp_path / "a.py", tmp_path / "b.py", ()), tmp_path)
    assert runs.whole(run([]), run([], []), broken=True)[0].status == "n/a"


@pytest.mark.parametrize(("rest", "says"), [([[4, 5]], ""), ([[4, 5], [6]], "has 3 batches, 2"), ([[5, 4]], "batch 2")])
def test_an_epoch_is_compared_beyond_where_it_was_cut(rest, says) -> None:
    serial, port = (run([optimizer(), *epoch([[0, 1]], left), step(1, 0.9)]) for left in ([[4, 5]], rest))
    check = same("identity", serial, serial, port)
    assert check.fault == ("other-data" if says else "")
    assert says in check.finding


def steps_of(weight: float, backwards: int, told: str, batches: int = 1) -> list[Event]:
    made = [event("ranks in a loss", many=told == "logits")] if told else []
    made += [event("batch", epoch=0, indices=[k], hash="") for k in range(batches)]
    made += [event("weight", made="a.py:3", weight=weight)] * backwards
    return [*epoch([]), optimizer(), *made, step(1, 1.0)]


@pytest.mark.parametrize(
    ("weight", "backwards", "told", "fault"),
    [(1.0, 1, "loss", ""), (0.5, 1, "loss", "no-mean"), (1.0, 2, "loss", "no-mean"), (1.0, 1, "logits", "no-mean")],
)
def test_accumulation_may_be_divided_by_the_ranks_as_long_as_the_losses_weigh_the_same(
    weight, backwards, told, fault
) -> None:
    alone, port = steps_of(0.5, 2, ""), steps_of(weight, backwards, told)
    check = scaled(run(alone), run(alone, alone), run(port, port))
    assert (check.fault if check else "") == fault


@pytest.mark.parametrize(("batches", "says"), [(1, "as in the serial script"), (2, "2 times the serial 2")])
def test_the_global_batch_is_that_of_an_update_and_not_of_a_loss(batches, says) -> None:
    serial, port = (run(*[steps_of(1.0, 1, "", count)] * n) for n, count in ((1, 2), (2, batches)))
    assert says in data.global_batch(serial, port).finding


def loop(turns: int, passes: int, batches: int = 4, lr: float = 0.1) -> list[Event]:
    """A loop of so many turns, of which some are seen: passes over a loader, with two steps each, or one step."""
    events = [event("decision", "train.py:5", what="range(epochs)", values={TURNS: float(turns)})]
    for number in range(passes):
        for e in epoch([[0]], [[i] for i in range(1, batches)]):
            events.append(replace(e, facts=e.facts | {"epoch": number, "loops": True}))
        events += [step(1, 0.9, lr=lr), step(2, 0.9, lr=lr)]
    return events if passes else [*events, step(1, 0.9)]


@pytest.mark.parametrize(
    ("serial", "port", "fault"),
    [
        (loop(8, 2), loop(8, 2, 2), ""),
        (loop(8, 2), loop(4, 2, 2), "too-few-steps"),  # epochs // ranks, though each epoch has fewer steps already
        (loop(8, 2), loop(4, 2, 4), ""),  # each rank goes through all of its batches
        (loop(80, 0), loop(40, 0), ""),  # steps
        (loop(80, 0), loop(20, 0), "too-few-steps"),
        (loop(80, 0), [event("return", fn="steps", count=40, result=20, again=True), *loop(40, 0)], "too-few-steps"),
    ],
)
def test_epochs_stay_and_steps_are_divided_once(serial, port, fault) -> None:
    check = turns(run(serial), run(*[port] * 2))
    assert (check.fault if check else "") == fault


@pytest.mark.parametrize(
    ("epochs", "divided", "fault"),
    [(8, False, ""), (7, False, "other-epochs"), (9, False, "other-epochs"), (7, True, "")],
)
def test_an_epoch_more_or_less_is_told_but_for_what_rounding_makes_of_steps(epochs, divided, fault) -> None:
    given = [event("return", fn="steps", count=15, result=8)] * divided
    check = turns(run(loop(8, 2)), run(*[[*given, *loop(epochs, 2, 2)]] * 2))
    assert (check.fault if check else "") == fault


@pytest.mark.parametrize(
    ("epochs", "batches", "single", "fault"),
    [
        (8, 5, False, ""),
        (4, 5, False, "too-few-steps"),  # each epoch is divided already
        (4, 10, False, ""),
        (4, 5, True, ""),  # a stage of its own before the other one, each of single steps
    ],
)
def test_epochs_whose_batches_are_a_range_stay_too(epochs: int, batches: int, single: bool, fault: str) -> None:
    def made(*turns: int) -> list[Event]:
        found = []
        for line, count in enumerate(turns, 5):
            one = {"single": True} if line > 5 or single else {}
            found += [event("decision", f"train.py:{line}", what="range(n)", values={TURNS: float(count)}, **one)]
            found += [step(1, 0.9)] if single else []
        return [*found, step(1, 0.9), step(2, 0.9)]

    check = turns(run(made(8, 10)), run(*[made(epochs, batches)] * 2))
    assert (check.fault if check else "") == fault


@pytest.mark.parametrize(("made", "fault"), [(2, ""), (4, "schedule-too-short")])
def test_a_schedule_of_epochs_steps_as_often_as_in_the_serial_script(made, fault) -> None:
    def trained(rate: float, made: int) -> list[Event]:
        scaling = [event("return", fn="lr_scale", rule="linear", lr=1.0, result=2.0)] if rate > 1 else []
        peaks = event("peaks", optimizer=0, rates=[rate], made=made, where="train.py:10", ahead=[rate], told=False)
        return [*scaling, optimizer(), *loop(8, 2, lr=rate), peaks]

    check = rate.learning_rate(run(trained(1.0, 2)), run(*[trained(2.0, made)] * 2))
    assert (check.fault, check.where) == (fault, "train.py:10" if fault else "")


def test_a_momentum_that_a_wrong_schedule_cycles_is_no_fault_of_its_own() -> None:
    def made(beta: float) -> list[Event]:
        held = optimizer()
        return [replace(held, facts=held.facts | {"options": [{"betas": [beta, 0.9]}]}), step(1, 0.9)]

    assert options(run(made(0.9)), run(made(0.8))).fault == "other-options"
    assert options(run(made(0.9)), run(made(0.8)), by_rate=True) is None


@pytest.mark.parametrize(
    ("state", "seed", "late", "says"),
    [
        ("b", "0", True, "is drawn from before it is seeded"),
        ("a", "7", False, "is seeded with 0, and with 7"),
        ("b", "0", False, "all shared random generators agree"),
    ],
)
def test_a_seed_that_comes_late_or_is_another_one_in_each_run_is_named_with_its_line(state, seed, late, says) -> None:
    def made(state: str, seed: str, after: float) -> list[Event]:
        given = event("seed", "a.py:7", generator="torch", fixed=True, seed=seed, late=late)
        return [event("begin", states={"torch": state}), given, step(1, after, states={"torch": "c"})]

    check = repeat.repeats(run(made("a", "0", 0.9)), run(made(state, seed, 0.8)))
    assert says in check.finding
    unknown = ("not-repeatable", "train.py:9")
    assert (check.fault, check.where) == (unknown if "agree" in says else ("unseeded", "a.py:7"))


@pytest.mark.parametrize(("every", "fault"), [(1, "schedule-too-long"), (2, "")])
def test_a_schedule_with_a_floor_is_too_long_where_a_loop_is_known_to_have_fewer_turns(every, fault) -> None:
    def trained(n: int, high: float, every: int) -> list[Event]:
        scaling = [event("return", fn="lr_scale", rule="linear", lr=1.0, result=2.0)] * (n - 1)
        rates = [0.3 + (high - 0.3) * (40 - k) / 40 for k in range(0, 40, every)]
        made = [step(k + 1, 0.9, lr=rates[k]) for k in range(4)]
        turns = event("decision", "train.py:5", what="batches", values={TURNS: 40 / n})
        peaks = event(
            "peaks", optimizer=0, rates=[high], made=4, where="train.py:10", told=False, ahead=[*rates[4:], 0.3]
        )
        return [*scaling, optimizer(), turns, *made, peaks]

    check = rate.learning_rate(run(trained(1, 1.0, 1)), run(*[trained(2, 2.0, every)] * 2))
    assert check.fault == fault


def pairs(rows: list[list[int]], labels: list[list[int]], drew: bool = False) -> list[Event]:
    made = [optimizer()]
    for k, (x, y) in enumerate(zip(rows, labels, strict=True)):
        rows_of_both = [event("forward", rows={"input 1": x}), event("loss", rows={"target": y})]
        made += [*rows_of_both, step(k + 1, 0.9, drew=["torch"] if drew else [])]
    return made


@pytest.mark.parametrize(
    ("labels", "drew", "fault"),
    [("own", False, ""), ("others", False, "unsharded-loader"), ("others", True, "")],
)
def test_targets_of_other_samples_are_found_where_each_rank_has_an_order_of_its_own(labels, drew, fault) -> None:
    serial = [list(range(4 * k, 4 * k + 4)) for k in range(4)]
    orders = [[8, 2, 20, 4], [0, 6, 22, 10]], [[9, 3, 15, 21], [1, 7, 23, 11]]
    apart = labels == "others"
    ranks = [pairs(rows, [[(i // 3 + apart) % 2 for i in row] for row in rows], drew) for rows in orders]
    check = coverage(run(pairs(serial, [[i // 3 % 2 for i in row] for row in serial])), run(*ranks))
    assert check.fault == fault


@pytest.mark.parametrize(("peak", "fault"), [(2.0, "schedule-too-short"), (4.0, "double-scaling")])
def test_a_warm_up_that_is_too_fast_is_told_by_its_highest_rate_from_one_that_is_scaled_twice(peak, fault) -> None:
    def trained(n: int, first: float, peak: float) -> list[Event]:
        scaling = [event("return", fn="lr_scale", rule="linear", lr=1.0, result=2.0)] * (n - 1)
        counts = [event("return", fn="serial_steps", count=1, result=2)] * (n - 1)
        rises = event("peaks", optimizer=0, rates=[peak], made=2, where="train.py:10", ahead=[peak], told=False)
        return [*scaling, *counts, optimizer(), *loop(8, 2, lr=first), rises]

    check = rate.learning_rate(run(trained(1, 0.2, 1.0)), run(*[trained(2, 0.8, peak)] * 2))
    assert check.fault == fault


def test_a_loop_with_fewer_turns_is_named_before_the_random_numbers_that_come_with_it() -> None:
    def made(turns: int, state: str) -> list[Event]:
        return [
            optimizer(),
            *loop(turns, 0)[:1],
            step(1, 0.9),
            step(2, 0.8 if state == "a" else 0.7, states={"torch": state}),
        ]

    serial = run(made(10, "a"))
    check = same("identity", serial, serial, run(made(5, "b")))
    assert (check.fault, check.where) == ("other-steps", "train.py:5")
    assert same("identity", serial, serial, run(made(10, "b"))).fault == "other-randomness"


@pytest.mark.parametrize(("mean", "fault"), [(0.3 + 1e-16, "metric-counts-twice"), (0.4, "metric-mean-of-means")])
def test_a_mean_of_equal_numbers_that_is_rounded_is_no_mean_of_means(mean, fault) -> None:
    def evaluated(numbers: list[int]) -> list[Event]:
        read = [e for e in epoch([numbers], []) if e.kind != "trains"]
        total = event("return", fn="total", local=1.0, sum=3.0, evaluates=True)
        return [*read, total, event("return", fn="average", local=0.3, mean=mean), event("print", text="loss 0.2600")]

    serial, shares = run([event("print", text="loss 0.2000")]), [[0, 1], [2, 3], [4, 0]]
    check = metrics.metrics(serial, serial, serial, run(*map(evaluated, shares)))
    assert check.fault == fault
