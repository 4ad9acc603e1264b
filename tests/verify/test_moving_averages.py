"""The decay of a moving average of weights is found from what a run leaves; on n ranks the serial one is a fault."""

from __future__ import annotations

import pytest
from by_hand import epoch, event, note, run, step

from dlrun.verify.checks.moving import decays, moving

WEIGHTS = [(weight, 2 - weight**2, 3 + weight**3) for weight in (1.0, 0.7, 0.9, 0.4, 0.3)]


def trained(decay: float, ranks: int = 1, batch: int = 8, share: float | None = None):
    average = WEIGHTS[0]
    for weight in WEIGHTS[1:]:
        part = 1 - decay if share is None else share
        average = tuple(decay * x + part * y for x, y in zip(average, weight, strict=True))
    start = {"names": ["weight"], "ids": [0], "broadcast": [True], "params": [note(*WEIGHTS[0])]}
    made = [event("optimizer", optimizer=0, type="SGD", **start)]
    made += [step(k, 0.0, params=[note(*weight)]) for k, weight in enumerate(WEIGHTS[1:], 1)]
    held = {"ema.weight": {"kind": "copy", "note": note(*average)}, "old.weight": {"kind": "copy", "note": note(5.0)}}
    return run(*[[*epoch([list(range(batch))]), *made, event("held", tensors=held)]] * ranks)


@pytest.mark.parametrize("decay", [0.5, 0.9, 0.99, 0.999])
def test_a_decay_is_found_and_of_another_copy_none(decay: float) -> None:
    found = decays(trained(decay).root)
    assert list(found) == ["ema.weight"]
    assert 1 - found["ema.weight"] == pytest.approx(1 - decay, rel=0.04)


@pytest.mark.parametrize("name", ["averaged.module.weight", "shadow['weight']"])
def test_an_average_may_begin_with_what_the_first_step_leaves(name: str) -> None:
    average = WEIGHTS[1]
    for weight in WEIGHTS[2:]:
        average = tuple(0.9 * x + 0.1 * y for x, y in zip(average, weight, strict=True))
    events = [e for e in trained(0.5).root.events if e.kind != "held"]
    held = event("held", tensors={name: {"kind": "copy", "note": note(*average)}})
    assert decays(run([*events, held]).root)[name] == pytest.approx(0.9, abs=0.01)


@pytest.mark.parametrize(("decay", "batch", "told"), [(0.9, 8, True), (0.81, 8, False), (0.9, 4, False)])
def test_a_decay_that_is_left_is_a_fault_where_the_global_batch_grew(decay: float, batch: int, told: bool) -> None:
    check = moving(trained(0.9), trained(decay, 2, batch))
    assert (check is not None) == told
    if check is not None:
        assert check.fault == "average-too-long"
        assert "ema.weight keeps 0.9" in check.finding and "remembers 2 times as many" in check.finding


@pytest.mark.parametrize(
    ("decay", "batch", "fault"), [(0.81, 8, ""), (0.6561, 8, "average-too-short"), (0.81, 4, "average-too-short")]
)
def test_an_average_that_moves_twice_at_a_step_forgets_too_soon(decay: float, batch: int, fault: str) -> None:
    check = moving(trained(0.9), trained(decay, 2, batch))
    assert (check.fault if check else "") == fault


@pytest.mark.parametrize(("decay", "share", "fault"), [(0.81, 0.19, ""), (0.81, 0.1, "other-average")])
def test_an_average_whose_weights_do_not_add_up_to_1_is_none(decay: float, share: float, fault: str) -> None:
    check = moving(trained(0.9), trained(decay, 2, share=share))
    assert (check.fault if check else "") == fault


def test_a_mean_over_epochs_is_no_moving_average_though_a_single_number_of_it_comes_out_as_one() -> None:
    biases = [(weight[0],) for weight in WEIGHTS]
    every = list(zip(WEIGHTS, biases, strict=True))
    names = {"names": ["weight", "bias"], "ids": [0, 1], "broadcast": [True, True]}
    made = [event("optimizer", optimizer=0, type="SGD", params=[note(*own) for own in every[0]], **names)]
    made += [step(k, 0.0, params=[note(*own) for own in each]) for k, each in enumerate(every[1:], 1)]
    means = [tuple((x + y) / 2 for x, y in zip(*each, strict=True)) for each in zip(every[2], every[4], strict=True)]
    for averages, found in ((means, []), (_averaged(every), ["ema.weight", "ema.bias"])):
        held = {
            f"ema.{name}": {"kind": "copy", "note": note(*each)}
            for name, each in zip(("weight", "bias"), averages, strict=True)
        }
        assert list(decays(run([*made, event("held", tensors=held)]).root, 1e-3)) == found


def _averaged(every: list[tuple[tuple[float, ...], ...]], decay: float = 0.9) -> list[tuple[float, ...]]:
    made = list(every[0])
    for each in every[1:]:
        made = [
            tuple(decay * x + (1 - decay) * y for x, y in zip(m, w, strict=True))
            for m, w in zip(made, each, strict=True)
        ]
    return made
