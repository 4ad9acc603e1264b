"""Rates that a script sets and tells are scaled where they are computed, so that it tells the rate that is used."""

import pytest
from small import HEAD

from dlrun.port import port

LOOP = """opt = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(9):
    lr = 0.1 * 0.5**epoch
    for group in opt.param_groups:
        group["lr"] = lr
    for x, y in DataLoader(data, shuffle=True):
        (model(x) - y).pow(2).mean().backward()
        opt.step()
    TELLS
"""


@pytest.mark.parametrize(
    "tells",
    [
        "print('lr', lr)",
        "print(f'lr {lr:.4f}')",
        "print('lr %.4f' % lr)",
        "print('epoch %d lr %.4f' % (epoch, lr))",
        "rates.append(round(lr, 5))",
        "writer.add_scalar('lr', lr, epoch)",
        "logger.info({'lr': lr})",
    ],
)
def test_a_rate_that_is_told_is_scaled_where_it_is_computed(tells):
    text = port(HEAD + LOOP.replace("TELLS", tells)).text
    assert "    lr = dl.lr_scale(0.1 * 0.5**epoch)\n" in text and 'group["lr"] = lr\n' in text


@pytest.mark.parametrize(
    "uses", ["pass", "decay = lr * 0.01", "print(lr / 2)", "step(lr)", "lr *= 0.5", "if lr < 1e-4:\n        break"]
)
def test_a_rate_that_is_used_otherwise_is_scaled_where_it_is_set(uses):
    text = port(HEAD + LOOP.replace("TELLS", uses)).text
    assert "    lr = 0.1 * 0.5**epoch\n" in text and 'group["lr"] = dl.lr_scale(lr)\n' in text


def test_a_rate_that_a_function_returns_is_followed_to_where_it_is_told():
    adjust = """def adjust(epoch):
    lr = 0.1 * 0.5**epoch
    for group in opt.param_groups:
        group["lr"] = lr
    return lr
"""
    loop = LOOP.replace(
        '    lr = 0.1 * 0.5**epoch\n    for group in opt.param_groups:\n        group["lr"] = lr\n', "CALL\n"
    )
    script = f"{HEAD}{adjust}{loop}"
    told = port(script.replace("CALL", "    now = adjust(epoch)").replace("TELLS", "print(now)")).text
    assert "    lr = dl.lr_scale(0.1 * 0.5**epoch)\n" in told and 'group["lr"] = lr\n' in told
    used = port(script.replace("CALL", "    now = adjust(epoch)").replace("TELLS", "half = now / 2")).text
    assert 'group["lr"] = dl.lr_scale(lr)\n' in used


WARMUP = """class Warmup:
    def __init__(self, optimizer, steps):
        self.optimizer, self.steps, self.n = optimizer, steps, 0
        self.base = BASE
    def step(self):
        self.n += 1
        for GROUPS:
            g["lr"] = RATE * self.n / self.steps
opt = torch.optim.SGD(model.parameters(), lr=0.1)
warmup = Warmup(opt, 8)
for x, y in DataLoader(data, shuffle=True):
    (model(x) - y).pow(2).mean().backward()
    opt.step()
    warmup.step()
"""


@pytest.mark.parametrize(
    ("base", "groups", "rate", "scaled"),
    [
        ("[g['lr'] for g in optimizer.param_groups]", "g, r in zip(self.optimizer.param_groups, self.base)", "r", True),
        ("[0.1, 0.2]", "g, r in zip(self.optimizer.param_groups, self.base)", "r", False),
        ("optimizer.param_groups[0]['lr']", "g in self.optimizer.param_groups", "self.base", True),
        ("optimizer.defaults['lr']", "g in self.optimizer.param_groups", "self.base", True),
        ("0.1", "g in self.optimizer.param_groups", "self.base", False),
        (
            "None\n        self.base, self.n = optimizer.param_groups[0]['lr'], 0",
            "g in self.optimizer.param_groups",
            "self.base",
            True,
        ),
    ],
)
def test_a_rate_that_an_object_has_taken_from_the_optimizer_is_scaled_already(base, groups, rate, scaled):
    script = WARMUP.replace("BASE", base).replace("GROUPS", groups).replace("RATE", rate)
    text = port(HEAD + script).text
    assert (f'g["lr"] = {rate} * dl.serial_steps(self.n) / self.steps\n' in text) is scaled
    assert (f'g["lr"] = dl.lr_scale({rate} * dl.serial_steps(self.n) / self.steps)\n' in text) is not scaled


@pytest.mark.parametrize("read", ["sched.get_last_lr()[0]", 'opt.param_groups[0]["lr"]'])
def test_a_rate_is_scaled_though_its_name_is_later_that_of_the_one_in_use(read) -> None:
    text = port(f"""{HEAD}lr = 0.1
opt = torch.optim.SGD(model.parameters(), lr=lr)
sched = torch.optim.lr_scheduler.ExponentialLR(opt, 0.5)
for epoch in range(9):
    for x, y in DataLoader(data, shuffle=True):
        (model(x) - y).pow(2).mean().backward()
        opt.step()
    sched.step()
    lr = {read}
    if lr < 0.01:
        break
""").text
    assert "lr=dl.lr_scale(lr))" in text and "if lr < dl.lr_scale(0.01):" in text


def test_a_name_for_a_rate_of_the_script_and_then_for_the_one_in_use_is_doubted_where_it_is_set() -> None:
    source = f"""{HEAD}lr = 0.1
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(9):
    opt.param_groups[0]["lr"] = lr
    for x, y in DataLoader(data, shuffle=True):
        (model(x) - y).pow(2).mean().backward()
        opt.step()
    lr = NEXT
"""
    doubts = port(source.replace("NEXT", 'opt.param_groups[0]["lr"] * 0.5')).doubts
    assert [d.name for d in doubts] == ["rate-not-scaled"]
    assert not port(source.replace("NEXT", "lr * 0.5")).doubts


@pytest.mark.parametrize(
    "made",
    [
        "torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=0.1, steps_per_epoch=len(loader), epochs=9)",
        "schedules.warm_up(opt, total=9 * len(loader))",
    ],
)
def test_the_rate_of_a_schedule_that_is_told_the_steps_is_no_count(made) -> None:
    text = port(f"""{HEAD}import schedules
loader = DataLoader(data, shuffle=True)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
sched = {made}
for epoch in range(9):
    for x, y in loader:
        (model(x) - y).pow(2).mean().backward()
        opt.step()
        sched.step()
    print(epoch, sched.get_last_lr()[0])
""").text
    assert "    print(epoch, sched.get_last_lr()[0])\n" in text
