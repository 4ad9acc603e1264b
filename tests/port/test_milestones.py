"""What is saved or decided every so many steps is so at 1/n of the ranks' steps, however the script asks for it."""

import pytest

from dlrun.port import port

SCRIPT = """import torch
torch.manual_seed(0)
data = torch.randn(512, 4)
model = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(1000):
    x = data[torch.randint(512, (8,))]
    model(x).pow(2).mean().backward()
    opt.step()
    {test}
        {body}
{after}"""
SAVE = 'torch.save(model.state_dict(), "net.pt")'


def lines(test, body=SAVE, after=""):
    text = port(SCRIPT.format(test=test, body=body, after=after)).text
    return text.replace("dl.should_stop() or ", "")  # of a job that is told to end see ``test_written``


@pytest.mark.parametrize(
    ("test", "written"),
    [
        ("if step % 100 == 99:", "if step % dl.steps(100) == dl.steps(100) - 1:"),
        ("if step % 100 == 100 - 1:", "if step % dl.steps(100) == dl.steps(100) - 1:"),
        ("if step and step % 100 == 99:", "if step and step % dl.steps(100) == dl.steps(100) - 1:"),
        ("if not (step + 1) % 100:", "if not (step + 1) % dl.steps(100):"),
        ("if step % 100 == 0 or step == 999:", "if step % dl.steps(100) == 0 or step == dl.steps(1000) - 1:"),
        ("if step == 999:", "if step == dl.steps(1000) - 1:"),
        ("if step == 500:", "if step == dl.steps(500):"),
        ("due = step % 100 == 0\n    if due:", "due = step % dl.steps(100) == 0\n    if due:"),
        ("if step % 100 == 5:", "if step % dl.steps(100) == dl.steps(5) % dl.steps(100):"),
    ],
)
def test_the_last_of_some_steps_is_the_last_of_fewer(test, written):
    assert f"    {written}\n" in lines(test)
    for ranks in (1, 2, 3, 7):  # comes as often as the serial run's, or once
        wanted = len([step for step in range(1000) if eval(test.split("if ")[-1][:-1], {"step": step, "due": 0})])

        class Dl:
            @staticmethod
            def steps(count, ranks=ranks):
                return -(-count // ranks)

        asked = written.split("if ")[-1][:-1]
        found = [s for s in range(Dl.steps(1000)) if eval(asked, {"step": s, "dl": Dl, "due": 0})]
        assert "due" in test or "5:" in test or abs(len(found) - wanted) <= 1 <= max(1, len(found))


@pytest.mark.parametrize(
    ("test", "written"),
    [
        ("if step % 100:", "if step % dl.steps(100):"),
        ("if (step + 1) % 100 != 0:", "if (step + 1) % dl.steps(100) != 0:"),
        ("if step == 0 or step % 100:", "if step == 0 or step % dl.steps(100):"),
    ],
)
def test_turns_that_are_left_out_before_a_save_are_counted_alike(test, written):
    assert f"    {written}\n" in lines(test, "continue", f"    {SAVE}\n")
    assert f"    {written}\n" in lines(test, "continue", "    print(step)\n")  # what is only shown too


@pytest.mark.parametrize(
    ("test", "shown"),
    [
        ("if step % 100:", "serial_steps(step)"),
        ("if step == 0 or step % 100 != 0:", "serial_steps(step)"),
        ("if step % 100 != 99:", "serial_steps(step + 1) - 1"),
        ("if step % 100 == 0:", "step"),  # of each other iteration: the rank's number
    ],
)
def test_a_step_that_is_shown_behind_iterations_that_are_left_out_is_the_serial_one(test, shown):
    text = lines(test, "continue", "    print(step)\n")
    assert f"print({'dl.' if 'serial' in shown else ''}{shown})" in text


def test_a_rate_that_falls_at_the_last_of_some_steps_falls_by_its_factor():
    text = lines("if step % 200 == 199:", "opt.param_groups[0]['lr'] *= 0.5")
    assert "if step % dl.steps(200) == dl.steps(200) - 1:\n        opt.param_groups[0]['lr'] *= 0.5\n" in text


@pytest.mark.parametrize(
    ("before", "test", "body", "written"),
    [
        (
            "def due(now, every):\n    return now % every == 0\n",
            "if due(step, 100):",
            SAVE,
            "if due(step, dl.steps(100)):",
        ),
        (
            "def due(now, every):\n    if not every:\n        return False\n    return now and not now % every\n",
            "now = due(step, every=100)\n    if now:",
            SAVE,
            "now = due(step, every=dl.steps(100))\n    if now:",
        ),
        ("def due(now):\n    return now % 100 == 0\n", "if due(step):", SAVE, "return now % dl.steps(100) == 0"),
        (
            "saved = 0\n",
            "if (step + 1) // 200 > saved:",
            f"saved = (step + 1) // 200; {SAVE}",
            "saved = (step + 1) // dl.steps(200); dl.save",
        ),
        (
            "saved = 0\n",
            "if (step + 1) // 200 != saved:",
            f"saved = (step + 1) // 200; {SAVE}",
            "if (step + 1) // dl.steps(",
        ),
        (
            "saved = 0\n",
            "part = step // 200\n    if part > saved:",
            f"saved = part; {SAVE}",
            "part = step // dl.steps(200)",
        ),
        ("saved = 0\n", "if step - saved >= 100:", f"saved = step; {SAVE}", "if step - saved >= dl.steps(100):"),
        ("", "if step + 1 == 500:", SAVE, "if step + 1 == dl.steps(500):"),
    ],
)
def test_a_function_or_a_part_tells_when_to_save(before, test, body, written):
    source = SCRIPT.format(test=test, body=body, after="").replace("for step", before + "for step")
    assert written in port(source).text


def test_a_function_that_others_ask_for_epochs_keeps_its_number():
    before = "def due(now):\n    return now % 100 == 0\nfor epoch in range(9):\n    if due(epoch): print(epoch)\n"
    source = SCRIPT.format(test="if due(step):", body=SAVE, after="").replace("for step", before + "for step")
    assert "return now % 100 == 0" in port(source).text


RAMPS = """import torch
torch.manual_seed(0)
data = torch.randn(512, 4)
model = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.01)
loader = torch.utils.data.DataLoader(data, 8, shuffle=True)
{begin}
for step in range(total):
    {rate}
    for group in opt.param_groups:
        group["lr"] = 0.1 * now
    x = data[torch.randint(512, (8,))]
    model(x).pow(2).mean().backward()
    opt.step()
"""


@pytest.mark.parametrize(
    ("begin", "test", "written"),
    [
        ("total = 1000", "step > total - 300", "step > total - dl.steps(300)"),
        ("total, last = 1000, 300", "step > total - last", "step > dl.steps(total - last)"),
        ("total = 1000\nlast = 300", "step > total - last", "step > total - dl.steps(last)"),
        ("total = 1000", "step < 100", "step < dl.steps(100)"),
    ],
)
def test_what_a_rate_is_made_of_changes_at_fewer_steps_also_counted_from_the_end(begin, test, written):
    rate = f"if {test}:\n        now = 0.5\n    else:\n        now = 1.0"
    assert f"    if {written}:\n" in port(RAMPS.format(begin=begin, rate=rate)).text


def test_what_is_counted_from_the_end_of_a_ranks_own_steps_is_so_in_steps_of_its_own():
    rate = "if step > total - 300:\n        now = 0.5\n    else:\n        now = 1.0"
    source = RAMPS.format(begin="total = 20 * len(loader)\nit = iter(loader)", rate=rate)
    assert (
        "if step > total - dl.steps(300):\n" in port(source.replace("data[torch.randint(512, (8,))]", "next(it)")).text
    )


def test_the_parts_of_a_rate_and_the_tests_between_them_count_the_same_steps():
    rate = """if step < 100:
        now = step / 100
    elif step > total - 300:
        now = (total - step) / 300
    else:
        now = 1.0"""
    text = port(RAMPS.format(begin="total = 1000", rate=rate)).text
    assert "if step < dl.steps(100):\n        now = step / dl.steps(100)\n" in text
    assert "elif step > total - dl.steps(300):\n        now = (total - step) / dl.steps(300)\n" in text


def test_a_count_that_a_function_is_given_and_an_attribute_that_is_called_like_it_stay_whole():
    body = "show(step, every)\n        show(step, every=every)\n        box.every = 3\n        " + SAVE
    source = SCRIPT.format(test="if step % every == 0:", body=body, after="").replace(
        "for step", "every = int(N)\ndef show(step, every=1):\n    print(step / every)\nfor step"
    )
    text = port(source).text
    assert "show(step, dl.steps(every))\n        show(step, every=dl.steps(every))\n        box.every = 3\n" in text


METHODS = """import torch
from torch.utils.data import DataLoader
class Trainer:
    def __init__(self):
        self.net = torch.nn.Linear(4, 1)
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.step = 0
    def update(self, x):
        self.opt.zero_grad()
        self.net(x).square().mean().backward()
        self.opt.step()
        self.step += 1
        self.follow()
    def follow(self):
        if self.step % 40 == 0:
            torch.save(self.net.state_dict(), "net.pt")
        if self.step == 60:
            for group in self.opt.param_groups:
                group["lr"] *= 0.1
    def fit(self):
        for epoch in range(3):
            for x in DataLoader(torch.randn(64, 4), 8, shuffle=True):
                self.update(x)
Trainer().fit()
"""


def test_steps_that_a_method_asks_for_with_every_update_are_those_of_the_ranks():
    text = port(METHODS).text
    assert "if self.step % dl.steps(40) == 0:" in text
    assert "if self.step == dl.steps(60):" in text
    once = METHODS.replace("        self.follow()\n", "").replace(
        "self.update(x)\n", "self.update(x)\n            self.follow()\n"
    )
    assert "if self.step % 40 == 0:" in port(once).text


STRIDES = """import torch
from torch.utils.data import DataLoader
loader = DataLoader(data, batch_size=4, shuffle=True)
critic, maker = torch.nn.Linear(8, 1), torch.nn.Linear(4, 8)
opt_c, opt_m = (torch.optim.SGD(net.parameters(), lr=0.1) for net in (critic, maker))
done = 0
for epoch in range(9):
    for i, x in enumerate(loader):
        opt_c.zero_grad()
        critic(x).mean().backward()
        opt_c.step()
        if i % 5 == 0:
            opt_m.zero_grad()
            critic(maker(torch.randn(4, 4))).mean().backward()
            opt_m.step()
            if done % 400 == 0:
                torch.save(maker.state_dict(), f"{done}.pt")
            done += STRIDE
"""


@pytest.mark.parametrize(("stride", "told"), [("5", True), ("1", False)])
def test_a_count_that_goes_up_in_strides_may_miss_what_it_is_compared_with(stride, told):
    doubts = [d for d in port(STRIDES.replace("STRIDE", stride)).doubts if d.name == "counts-steps"]
    assert [d.write for d in doubts] == ["compare dl.serial_steps(done), which goes up by dl.serial_steps(5)"] * told


KEYED = """import torch
from torch.utils.data import DataLoader
loader = DataLoader(torch.randn(64, 4), batch_size=4, shuffle=True)
model = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
state = {"step": 0, "frames": 0}
for epoch in range(3):
    for x in loader:
        opt.zero_grad()
        model(x).mean().backward()
        opt.step()
        state["step"] += 1
        state["frames"] += len(x)
        if state["step"] % 6 == 0:
            torch.save(model.state_dict(), "last.pt")
"""


def test_counts_under_two_keys_are_two():
    ported = port(KEYED)
    assert 'if state["step"] % dl.steps(6) == 0:' in ported.text
    assert not [d for d in ported.doubts if d.name == "counts-steps"]
