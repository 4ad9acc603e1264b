"""Schedules and averages of libraries that nobody has a row for: doubted where they step with every batch."""

import pytest
from small import HEAD

from dlrun.port import port

LOOP = """loader = DataLoader(data, batch_size=8, shuffle=True)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
helper = MADE
for epoch in range(3):
    for x, y in loader:
        opt.zero_grad()
        (model(x) - y).pow(2).mean().backward()
        opt.step()
        BATCH
    EPOCH
"""


def _doubts(made: str, batch: str = "pass", epoch: str = "pass", imports: str = "import lab") -> list[str]:
    script = LOOP.replace("MADE", made).replace("BATCH", batch).replace("EPOCH", epoch)
    return [d.why for d in port(f"{imports}\n{HEAD}{script}").doubts if d.name == "counts-steps"]


@pytest.mark.parametrize(
    ("made", "batch"),
    [
        ("lab.Warmup(opt, 100)", "helper.step()"),
        ("lab.LinearWarmup(opt, warmup_period=100)", "helper.dampen()"),
        ("lab.Average(model, 0.99)", "helper.update()"),
        ("lab.Average(model.parameters())", "helper.update_weights(model)"),
        ("lab.Anneal([opt], total=9)", "helper.step_update(epoch)"),
        ("lab.Pruner(model, begin=9)", "helper.after_step()"),
    ],
)
def test_what_was_given_the_optimizer_or_the_model_is_doubted_where_it_steps_with_each_batch(made, batch):
    (why,) = _doubts(made, batch)
    assert f"{made.partition('(')[0]} is stepped with every batch (line 13)" in why


@pytest.mark.parametrize(
    ("made", "batch", "epoch"),
    [
        ("lab.Warmup(opt, 100)", "pass", "helper.step()"),  # once an epoch
        ("lab.Metric(3)", "helper.update(model(x), y)", "pass"),  # given neither
        ("lab.Watch(model)", "helper.log(epoch)", "pass"),  # no step
        ("torch.optim.lr_scheduler.StepLR(opt, 100)", "helper.step()", "pass"),  # divided
        ("torch.optim.swa_utils.AveragedModel(model)", "helper.update_parameters(model)", "pass"),
    ],
)
def test_what_counts_no_steps_or_is_known_is_not_doubted(made, batch, epoch):
    assert not _doubts(made, batch, epoch)


def test_libraries_that_are_known_are_doubted_for_what_else_they_count():
    timm, ema = "from timm.scheduler import CosineLRScheduler", "from ema_pytorch import EMA"
    for given, doubted in ((", t_in_epochs=False", 1), ("", 0), (", t_in_epochs=True", 0)):
        made = f"CosineLRScheduler(opt, t_initial=128{given})"
        assert len(_doubts(made, "helper.step_update(epoch)", "helper.step(epoch)", timm)) == doubted
    assert not _doubts("EMA(model, beta=0.99)", "helper.update()", imports=ema)
    assert len(_doubts("EMA(model, beta=0.99, update_every=10)", "helper.update()", imports=ema)) == 1


def test_a_scheduler_goes_by_the_loop_that_steps_it_not_by_a_last_step_that_is_left():
    left = "if left:\n        opt.step()\n        opt.zero_grad()\n    helper.step()"
    made = "torch.optim.lr_scheduler.StepLR(opt, step_size=2)"
    script = LOOP.replace("MADE", made).replace("EPOCH", left).replace("BATCH", "left = True")
    assert "step_size=2" in port(HEAD + script).text
    by_batch = LOOP.replace("MADE", made).replace("BATCH", "helper.step()").replace("EPOCH", "pass")
    assert "step_size=dl.steps(2)" in port(HEAD + by_batch).text
