"""Counts of batches, and rates, among keyword arguments that are not written out there."""

from __future__ import annotations

import pytest

from dlrun.port import port

SCRIPT = """
import torch
from torch.utils.data import DataLoader
model = torch.nn.Linear(8, 2)
cfg = {{"sched": {{"T_max": 80}}, "name": "CosineAnnealingLR"}}
opt = torch.optim.SGD(model.parameters(), 0.1)
loader = DataLoader(data, batch_size=16, shuffle=True)
{made}
for epoch in range(4):
    for x, y in loader:
        torch.nn.functional.cross_entropy(model(x), y).backward()
        opt.step()
        {often}
"""
ANY = "getattr(torch.optim.lr_scheduler, cfg['name'])"
BUILD = f"def build(opt, **kw):\n    return {ANY}(opt, **kw)\nsched = build(opt, T_max=80)"
KNOWN = "sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, **"


@pytest.mark.parametrize(
    ("made", "written"),
    [
        (KNOWN + "cfg['sched'])", '{"T_max": dl.steps(80)}'),
        (f"sched = {ANY}(opt, **cfg['sched'])", '{"T_max": dl.steps(80)}'),
        (f"sched = {ANY}(opt, T_max=80)", "(opt, T_max=dl.steps(80))"),
        (BUILD, "build(opt, T_max=dl.steps(80))"),
        ("kw = dict(T_max=80, eta_min=1e-4)\n" + KNOWN + "kw)", "dict(T_max=dl.steps(80), eta_min=dl.lr_scale(1e-4))"),
    ],
)
def test_counts_of_batches_among_keyword_arguments_are_divided(made, written) -> None:
    ported = port(SCRIPT.format(made=made, often="sched.step()"))
    assert written in ported.text
    assert "is not divided" not in ported.report()
    assert "dl.steps(" not in port(SCRIPT.format(made=made, often="pass\n    sched.step()")).text


@pytest.mark.parametrize("made", [KNOWN + "load('a'))", f"sched = {ANY}(opt, 80)", f"sched = {ANY}(opt, **load())"])
def test_counts_of_batches_out_of_sight_are_doubted(made) -> None:
    (doubt,) = [d for d in port(SCRIPT.format(made=made, often="sched.step()")).doubts if "is not divided" in d.why]
    assert (doubt.danger, doubt.write) == ("high", "T_max=dl.steps(...)")
    assert "is not divided" not in port(SCRIPT.format(made=made, often="pass\n    sched.step()")).report()


KERAS = """from tensorflow import keras
{made}
model.compile(opt, loss="mse")
model.fit(x, y)
"""
EITHER = "cfg = {'lr': 0.1} if a else dict(learning_rate=0.2)\n"


@pytest.mark.parametrize(
    ("made", "written"),
    [
        (EITHER + "opt = keras.optimizers.SGD(**cfg)", "{'lr': dl.lr_scale(0.1)} if a else dict(learning_rate=dl.l"),
        ("def build(**kw):\n    return keras.optimizers.SGD(**kw)\nopt = build(lr=0.1)", "build(lr=dl.lr_scale(0.1))"),
        ("cfg = {'beta_1': 0.5}\nopt = keras.optimizers.Adam(**cfg)", "Adam(**cfg, learning_rate=dl.lr_scale(0.001))"),
    ],
)
def test_rates_of_keras_optimizers_among_keyword_arguments_are_scaled_once(made, written) -> None:
    ported = port(KERAS.format(made=made))
    assert written in ported.text
    assert ported.text.count("lr_scale") == written.count("dl.l")


def test_a_rate_of_a_keras_optimizer_out_of_sight_is_doubted() -> None:
    ported = port(KERAS.format(made="opt = keras.optimizers.Adam(**load())"))
    assert "keras.optimizers.Adam(**load())" in ported.text
    assert [d.danger for d in ported.doubts if "learning rate may be among" in d.why] == ["high"]
