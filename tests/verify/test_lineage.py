"""What a loss has in it of earlier steps, and how that came about: followed through PyTorch's functions."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")

from dlrun.verify.tracer import holdings, lineage, recorder, training  # noqa: E402

DATA = torch.arange(24.0).reshape(6, 4) / 24


def averaged(line: Any) -> Any:
    """Return a mean over ranks, which is made out of the sight of PyTorch's functions."""

    def average(value: torch.Tensor) -> torch.Tensor:
        line.paused = True
        result = value.clone()
        line.paused = False
        line.handed_on(value, result)
        return result

    return average


def followed(before: str, term: str, after: str = "") -> dict[str, Any]:
    """Train five steps: ``before`` once, then in each the loss with ``term``, and ``after``. Returns the last note."""
    noted: dict[str, Any] = {}
    recorder = SimpleNamespace(
        inside=0,
        orders=SimpleNamespace(frozen=False, turn_steps=0),
        note=lambda kind, **facts: noted.update(facts),
        aside=nullcontext,
    )
    weight = torch.ones(4, requires_grad=True)
    line = lineage.Lineage(recorder, lambda t: t is weight)  # type: ignore[arg-type]
    space = {"torch": torch, "weight": weight, "data": DATA.clone(), "line": line}
    space["average"] = averaged(line)
    space["step"] = lambda: line.stepped(line.round + 1)
    body = (
        f"    feat = data * weight\n    loss = feat.mean() + {term}\n    line.backward(loss)\n    step()\n    {after}\n"
    )
    with line:
        exec(compile(f"{before}\nfor i in range(5):\n{body}", "train.py", "exec"), space)
    return noted


@pytest.mark.parametrize(
    ("before", "term", "after", "kind"),
    [
        (
            "state = torch.zeros(4)",
            "(feat - state).sum()",
            "state.mul_(0.9).add_(0.1 * feat.detach()[0])",
            "accumulated",
        ),
        (
            "state = torch.zeros(4)",
            "(feat - state).sum()",
            "state = 0.9 * state + 0.1 * feat.detach()[0]",
            "accumulated",
        ),
        (
            "state = torch.zeros(4)",
            "(feat - state).sum()",
            "state = average(0.9 * state + 0.1 * feat.detach()[0])",
            "accumulated",
        ),
        ("state = torch.zeros(2, 4)", "(feat - state[[1]]).sum()", "state[1] += feat.detach()[0]", "accumulated"),
        ("state = torch.zeros(2, 4)", "(feat - state[1]).sum()", "state[1] = feat.detach().mean(0)", "reduced"),
        ("state = torch.zeros(2, 4)", "(feat @ state.T).sum()", "state[i % 2] = feat.detach()[0]", None),
        ("state = torch.ones(9, 4)", "(feat @ state.T).sum()", "state = torch.cat([state[6:], feat.detach()])", None),
        (
            "state = torch.zeros(6, 4)",
            "(feat * state).sum()",
            "state = torch.where(torch.rand(6, 1) < 0.5, state + torch.randn(6, 4), state)",
            None,
        ),
    ],
)
def test_what_is_kept_between_steps_is_told_from_what_is_computed_on(before, term, after, kind, monkeypatch) -> None:
    monkeypatch.setattr(recorder, "is_user_file", lambda name: name == "train.py")
    noted = followed(before, term, after)
    assert {name: entry["kind"] for name, entry in noted.get("tensors", {}).items()} == (
        {"state": kind} if kind else {}
    )


@pytest.mark.parametrize(("made", "own"), [("feat.detach()", True), ("feat.detach().mean(0)", False)])
def test_a_state_that_a_model_is_given_is_a_rank_s_own_unless_it_is_a_mean_over_samples(made, own, monkeypatch) -> None:
    monkeypatch.setattr(recorder, "is_user_file", lambda name: name == "train.py")
    after = f"state = 0.9 * state + 0.1 * {made}"
    given = followed("state = torch.zeros(6, 4)", "((line.given([state]) or feat) - state).sum()", after)
    alone = followed("state = torch.zeros(6, 4)", "(feat - state).sum()", after)
    assert given["tensors"]["state"]["own"] is own
    assert alone["tensors"]["state"]["own"] is False


@pytest.mark.parametrize(
    ("before", "term", "after"),
    [
        ("total = torch.zeros(())", "0", "total += loss.detach()"),
        ("scale = torch.full((4,), 2.0)", "(feat * scale).sum()", ""),
        ("buffer = torch.zeros(6, 4)", "buffer.copy_(data).mul_(2).sum()", ""),
    ],
)
def test_sums_for_the_eye_constants_and_scratch_space_are_nothing_that_training_keeps(before, term, after, monkeypatch):
    monkeypatch.setattr(recorder, "is_user_file", lambda name: name == "train.py")
    assert followed(before, term, after).get("tensors", {}) == {}


def test_noise_of_a_generator_is_followed_and_an_order_or_what_was_drawn_before_is_none() -> None:
    own = "own = torch.Generator().manual_seed(1)"
    assert followed(own, "(feat + torch.randn(4, generator=own)).sum()")["noise"]
    assert followed("", "(feat + torch.randn_like(feat)).sum()")["noise"]
    assert not followed("fixed = torch.randn(4)", "(feat + fixed).sum()").get("noise")
    assert not followed(own, "feat[torch.randperm(6, generator=own)].sum()").get("noise")


def test_what_the_function_held_that_made_the_last_step_is_known_once_it_is_over(monkeypatch) -> None:
    monkeypatch.setattr(recorder, "is_user_file", lambda name: name == "train.py")
    noted: dict[str, Any] = {}
    journal = SimpleNamespace(
        inside=0,
        steps=0,
        orders=SimpleNamespace(frozen=False, turn_steps=0),
        note=lambda kind, **facts: noted.update(facts),
        aside=nullcontext,
    )
    trained = training.Training(journal, None, None)  # type: ignore[arg-type]
    source = """
def main():
    model = torch.nn.Embedding(5, 2, padding_idx=0)  # a part of its weights is set without gradients
    ema = copy.deepcopy(model)
    stepped(1)
main()
"""
    with trained.lineage:
        exec(compile(source, "train.py", "exec"), {"torch": torch, "copy": copy, "stepped": trained.lineage.stepped})
    holdings.note_held(trained, {}, None)
    assert {"model.weight", "ema.weight"} == set(noted["tensors"])


def test_what_was_trained_before_is_held_while_another_model_trains() -> None:
    noted: dict[str, Any] = {}
    journal = SimpleNamespace(
        inside=0,
        steps=0,
        made=0,
        orders=SimpleNamespace(frozen=False, turn_steps=0),
        note=lambda kind, **facts: noted.update(facts),
        aside=nullcontext,
    )
    none = SimpleNamespace(collect=list, fed=True)
    trained = training.Training(journal, none, none)  # type: ignore[arg-type]
    space = {"teacher": torch.nn.Linear(2, 1), "student": torch.nn.Linear(2, 1)}
    for model in space.values():
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        trained.before_step(optimizer)
        trained.after_step(optimizer)
    holdings.note_held(trained, space, None)
    held = {name: entry["kind"] for name, entry in noted["tensors"].items()}
    assert held == {"teacher.weight": "trained", "teacher.bias": "trained"}
