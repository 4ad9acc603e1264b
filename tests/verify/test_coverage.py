"""Which samples reach the model on each rank, told by their contents: on traces written by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from by_hand import averaged, epoch, event, optimizer, run, step

from dlrun.verify.checks import data
from dlrun.verify.checks.coverage import coverage
from dlrun.verify.checks.sizes import batch_sizes, is_sharded
from dlrun.verify.trace import Event, Run

SERIAL = [[1, 2], [3, 4], [5, 6], [7, 8]]


def given(*steps: dict[str, list[int]]) -> list[Event]:
    """One rank's steps, each with the inputs of its model."""
    return [e for i, rows in enumerate(steps, 1) for e in (event("forward", rows=rows), step(i, 0.9))]


def fed(*ranks: list[list[int]]) -> Run:
    return run(*(given(*({"x": rows} for rows in steps)) for steps in ranks))


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        (([[1, 2], [5, 6]], [[3, 4], [7, 8]]), "the 8 samples of 4 serial batches"),
        (([[1, 3], [5, 7]], [[2, 4], [6, 8]]), "the 8 samples of 4 serial batches"),
        (([[1], [3], [5], [7]], [[2], [4], [6], [8]]), "the 8 samples of 4 serial batches"),
        (([[1], [3, 3], [5], [7]], [[2], [4], [6], [8]]), "the 8 samples of 4 serial batches"),
        (([[1, 2], [3, 4]], [[11, 12], [13, 14]]), "8 samples in 2 steps, none of them twice"),
    ],
)
def test_samples_that_one_rank_alone_reads_pass(ranks: tuple[list[list[int]], ...], said: str) -> None:
    check = coverage(fed(SERIAL), fed(*ranks))
    assert check is not None
    assert check.status == "passed"
    assert said in check.finding


def test_the_same_rows_on_all_ranks_are_an_unsharded_feed() -> None:
    check = coverage(fed(SERIAL), fed(SERIAL, SERIAL))
    assert check is not None
    assert check.fault == "unsharded-loader"


LABELS = [[1, 1, 2, 2], [2, 1, 2, 2], [1, 1, 1, 2]]
MINE, OTHER = ([[i, i + 1, i + 2, i + 3] for i in range(at, at + 12, 4)] for at in (20, 40))


@pytest.mark.parametrize(
    ("labels", "fault"),
    [(LABELS, "unsharded-loader"), ([[1, 1, 2, 2]] * 3, ""), ([[1, 2, 1, 2], [2, 1, 1, 2], [1, 1, 2, 2]], "")],
)
def test_labels_that_come_in_another_mixture_in_each_step_alike_on_all_ranks_are_of_the_same_samples(labels, fault):
    ranks = ((MINE, labels), (OTHER, labels))  # the same samples, each with noise of its own
    check = coverage(pairs((SERIAL[:3], labels)), pairs(*ranks))
    assert check is not None and check.fault == fault


def test_labels_that_are_all_the_same_tell_nothing_of_the_samples() -> None:
    real = [[1, 1], [1, 1], [1, 1]]
    assert coverage(fed(real), fed(real, real)) is None


def test_draws_that_meet_by_chance_prove_nothing() -> None:
    check = coverage(fed(SERIAL), fed([[1, 2], [5, 6]], [[3, 1], [9, 8]]))
    assert check is not None
    assert (check.status, check.finding[:39]) == ("n/a", "1 of 7 samples are read by more than on")


def test_ranks_that_read_the_same_few_batches_again_and_again_lose_the_others() -> None:
    check = coverage(fed(SERIAL), fed([[1, 2]] * 4, [[3]] * 4))
    assert check is not None
    assert check.fault == "lost-samples"
    assert "2 ranks read 3 samples in 4 steps, and the serial script 8" in check.finding


def test_ranks_that_each_shuffle_by_themselves_meet_where_the_serial_script_does_not() -> None:
    serial = [[2 * i, 2 * i + 1] for i in range(8)]
    ranks = [[0, 3], [5, 9], [8, 1], [2, 12]], [[3, 9], [7, 0], [8, 4], [6, 15]]
    check = coverage(fed(serial), fed(*([*rank, rank[0]] for rank in ranks)))  # the next epoch has begun
    assert check is not None
    assert check.fault == "overlapping-shards", check
    assert "4 samples are read by more than one rank" in check.finding


def pairs(*ranks: tuple[list[list[int]], list[list[int]]]) -> Run:
    return run(*(given(*({"x": a, "y": b} for a, b in zip(x, y, strict=True))) for x, y in ranks))


def test_inputs_that_are_shared_and_targets_that_are_not_are_found() -> None:
    serial, mine, other = pairs((SERIAL, SERIAL)), [[1, 2], [5, 6]], [[3, 4], [7, 8]]
    unshared = coverage(serial, pairs((mine, SERIAL[:2]), (other, SERIAL[:2])))
    mixed = coverage(serial, pairs((mine, other), (other, mine)))
    right = coverage(serial, pairs((mine, mine), (other, other)))
    assert unshared is not None and mixed is not None and right is not None
    assert (unshared.fault, mixed.fault, right.status) == ("unsharded-loader", "unsharded-loader", "passed")
    assert "all have the same y" in unshared.finding
    assert "not of the same samples" in mixed.finding


@pytest.mark.parametrize(
    ("alike", "fault"),
    [(SERIAL, "unsharded-loader"), ([[0, 0], [0, 0], [0, 0], [0]], ""), ([[0, 0], [0, 0], [0, 0], [9]], "")],
    ids=["batches", "labels", "a state that begins otherwise where text is written"],
)
def test_the_same_batches_on_all_ranks_are_found_beside_noise_of_their_own(alike, fault) -> None:
    noise = [[[100 * rank + 10 * i, 100 * rank + 10 * i + 1] for i in range(4)] for rank in range(3)]
    check = coverage(pairs((alike, noise[0])), pairs((alike, noise[1]), (alike, noise[2])))
    assert check is not None
    assert check.fault == fault


@pytest.mark.parametrize(("second", "fault"), [([[1, 2], [3, 4]], "unsharded-loader"), ([[5, 6], [7, 8]], "")])
def test_batches_of_one_of_two_optimizers_that_step_by_turns_are_found_to_be_alike(second, fault) -> None:
    def by_turns(real: list[list[int]], noise: int) -> list[Event]:
        events: list[Event] = []
        for i, rows in enumerate(real):
            drawn = [[noise + 4 * i, noise + 4 * i + 1], [noise + 4 * i + 2, noise + 4 * i + 3]]
            events += [event("forward", rows={"x": drawn[0]}), event("forward", rows={"x": rows}), step(2 * i + 1, 0.9)]
            other = step(2 * i + 2, 0.9)
            events += [event("forward", rows={"x": drawn[1]}), replace(other, facts=other.facts | {"optimizer": 1})]
        return events

    serial = run(by_turns([[1, 2], [3, 4]], 100))
    check = coverage(serial, run(by_turns([[1, 2], [3, 4]], 200), by_turns(second, 300)))
    assert check is not None
    assert check.fault == fault


def test_an_input_that_is_one_number_in_each_step_is_no_batch() -> None:
    progress = [[i] * 4 for i in range(3)]
    noise = [[[100 * rank + 4 * i + j for j in range(4)] for i in range(3)] for rank in range(3)]
    check = coverage(pairs((noise[0], progress)), pairs((noise[1], progress), (noise[2], progress)))
    assert check is not None
    assert check.fault == ""


def test_a_constant_input_beside_shared_ones_is_no_fault() -> None:
    constant = [[0, 0]] * 4
    check = coverage(pairs((SERIAL, constant)), pairs((SERIAL[::2], constant[:2]), (SERIAL[1::2], constant[:2])))
    assert check is not None
    assert check.status == "passed"


@pytest.mark.parametrize("fault", ["", "other-samples"])
def test_points_that_each_rank_draws_for_itself_are_named_beside_others_that_are_shared(fault: str) -> None:
    points, ends = [[1, 2, 3, 4]] * 3, [[8, 9]] * 3
    theirs = [[12, 14]] * 3 if fault else [[2, 4]] * 3
    check = coverage(pairs((points, ends)), pairs(([[1, 3]] * 3, [[8]] * 3), (theirs, [[9]] * 3)))
    assert check is not None
    assert check.fault == fault


def test_a_full_batch_sharded_is_covered_in_every_step() -> None:
    serial = fed([[1, 2, 3, 4]] * 3)
    sharded = fed([[1, 3]] * 3, [[2, 4]] * 3)
    check = coverage(serial, sharded)
    assert check is not None
    assert check.status == "passed"
    assert batch_sizes(serial.root, sharded) == (4, [2, 2])


def test_batches_of_one_sequence_each_are_of_one_size_however_long_these_are() -> None:
    serial, ranks = fed([[1, 2, 3], [4], [5, 6], [7]]), fed([[1, 2, 3], [5, 6]], [[4], [7]])
    assert batch_sizes(serial.root, ranks) == (3, [3, 3])
    assert data.global_batch(serial, ranks).status == "passed"


@pytest.mark.parametrize(("lengths", "fault"), [((6, 3), ""), ((9, 12), "other-batch")])
def test_batches_as_long_as_some_episodes_are_of_the_serial_size_on_the_average(lengths, fault) -> None:
    steps = iter(range(1000))
    serial, *ranks = ([[next(steps) for _ in range(k)] for k in each] for each in ((5, 4), lengths, (6, 4)))
    check = data.global_batch(fed(serial), fed(*ranks))
    assert (check.fault, check.finding.startswith("10 samples (2 times")) == (fault, not fault)


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        (([1, 2, 3], [3, 1, 2]), "the 3 samples of each step, each read by one of 2 ranks, 2 times in all"),
        (([1, 4], [2, 5]), "takes the same 3 samples, and 1 of them reach no rank, 2 others do"),
        (([1, 2, 3], [4, 5, 6]), "3 others reach ranks, too"),
    ],
)
def test_a_full_batch_is_repeated_evenly_or_has_other_samples(ranks: tuple[list[int], ...], said: str) -> None:
    serial, sharded = fed([[1, 2, 3]] * 3), fed(*([rank] * 3 for rank in ranks))
    check, batch = coverage(serial, sharded), data.global_batch(serial, sharded)
    assert check is not None
    assert said in check.finding
    assert check.fault == ("other-samples" if "reach" in said else "")
    if check.status == "passed":
        assert batch.finding == "3 samples (as in the serial script, each counted 2 times)"


def test_targets_that_happen_to_be_alike_belong_to_the_ranks_samples() -> None:
    serial = pairs((SERIAL, [[0, 1], [0, 1], [1, 1], [1, 1]]))
    labels = [[0, 1], [1, 1]]
    check = coverage(serial, pairs((SERIAL[::2], labels), (SERIAL[1::2], labels)))
    assert check is not None
    assert check.status == "passed"


def test_nothing_is_said_of_a_model_whose_inputs_were_not_seen() -> None:
    assert coverage(run([step(1, 0.9)]), run([step(1, 0.9)], [step(1, 0.9)])) is None


def test_a_batch_that_all_ranks_read_and_then_cut_is_judged_by_what_the_model_is_given() -> None:
    def read(rows: list[int], cuts: bool = True) -> list[Event]:
        cut = [event("return", fn="shard", loaders=[], shard=0)] if cuts else []
        steps = [e for _ in range(2) for e in (averaged(sum(rows), 5.0), *given({"x": rows}))]
        return [optimizer(), *epoch([[0, 1, 2, 3]]), *cut, *steps]

    serial, shared = run(read([1, 2, 3, 4], cuts=False)), run(read([1, 3]), read([2, 4]))
    assert data.shards(run(read([1, 2, 3, 4])), shared).status == "passed"
    assert data.global_batch(serial, shared).finding == "4 samples (as in the serial script)"
    assert data.shards(run(read([1, 2, 3, 4])), run(read([1, 3]), read([1, 3]))).fault == "unsharded-loader"
    assert data.shards(serial, run(*[read([1, 2, 3, 4], cuts=False)] * 2)).fault == "unsharded-loader"


def laid_across(*steps: tuple[list[int], list[int]]) -> list[Event]:
    """One rank's steps of inputs laid out (time, batch): the numbers of the rows, and of the columns."""
    return [
        e
        for i, (rows, columns) in enumerate(steps, 1)
        for e in (event("forward", rows={"x": rows}, columns={"x": columns}), step(i, 0.9))
    ]


@pytest.mark.parametrize(
    ("columns", "said", "sizes"),
    [
        (([[1, 2]], [[3, 4]]), "the 4 samples of 2 serial batches", (2, [2, 2])),
        (([[1], [3]], [[2], [4]]), "the 4 samples of 2 serial batches", (2, [1, 1])),
        (([[31, 32]], [[33, 34]]), "6 samples in 1 steps", (3, [3, 3])),
    ],
    ids=["the next batches", "parts of each", "draws"],
)
def test_samples_that_are_columns_are_counted_as_such(columns, said, sizes) -> None:
    serial = run(laid_across(([11, 12, 13], [1, 2]), ([14, 15, 16], [3, 4])))
    rows = [[[rank + 3 * i + k for k in range(3)] for i in range(2)] for rank in (20, 40)]
    sharded = run(*(laid_across(*zip(*each, strict=False)) for each in zip(rows, columns, strict=True)))
    check = coverage(serial, sharded)
    assert check is not None
    assert check.status == "passed"
    assert said in check.finding
    assert batch_sizes(serial.root, sharded) == sizes


@pytest.mark.parametrize(
    ("ranks", "states", "divided"),
    [
        (([[1], [3]], [[2], [4]]), {"torch": "a"}, True),
        (([[1], [3]], [[2], [4]]), {"torch": "b"}, False),
        (([[1, 2], [3]], [[2], [4]]), {"torch": "a"}, False),
        (([[1, 2], [3, 4]], [[5, 6], [7, 8]]), {"torch": "a"}, False),
    ],
    ids=["in equal shares", "drawn otherwise", "padded", "each a batch"],
)
def test_batches_that_the_port_shards_are_the_serial_ones(ranks, states, divided) -> None:
    sharded = run(
        *(
            [
                event("forward", rows={"x": rows}) if kind else step(i, 0.9, states=states, drew=["torch"])
                for i, rows in enumerate(steps, 1)
                for kind in (1, 0)
            ]
            for steps in ranks
        )
    )
    assert is_sharded(fed(SERIAL[:2]).root, sharded) == divided
