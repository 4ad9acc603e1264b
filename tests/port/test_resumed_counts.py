"""Runs that go on from a checkpoint count the serial script's steps, as those that were never ended."""

import pytest
import torch
from running import started
from small import HEAD, LOOP

from dlrun.port import port

COUNTS = """
import os
import torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.02)
step = 0
if os.path.exists("last.pt"):
    state = torch.load("last.pt")
    model.load_state_dict(state["model"])
    step = state["step"]
    print("resumed at", step)
for x, y in DataLoader(TensorDataset(torch.randn(64, 4), torch.randn(64, 1)), batch_size=4):
    loss = ((model(x) - y) ** 2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    step += 1
torch.save({"model": model.state_dict(), "step": step}, "last.pt")
print("end", step)
"""
RANGE = """
import os
import torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.02)
x, start, done = torch.randn(64, 4), 0, 0
if os.path.exists("last.pt"):
    start = torch.load("last.pt")["step"] + 1
for step in range(start, 16 if start == 0 else 48):
    loss = model(x[torch.randint(0, 64, (4,))]).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    done += 1
torch.save({"model": model.state_dict(), "step": step, "done": done}, "last.pt")
"""


@pytest.mark.parametrize(("script", "steps"), [(COUNTS, (16, 32)), (RANGE, (15, 47))])
def test_a_run_that_goes_on_counts_as_the_serial_one(script, steps, tmp_path):
    for name, text, ranks in (("serial", script, 0), ("both", port(script).text, 2)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.py").write_text(text)
        for expected in steps:
            printed = started(tmp_path / name, ["train.py"], ranks)
            assert torch.load(tmp_path / name / "last.pt")["step"] == expected
        assert "resumed" not in printed or printed == "resumed at 16\nend 32\n"


TRAINER = """
import torch
from torch.utils.data import DataLoader
class Trainer:
    def __init__(self):
        self.model = torch.nn.Linear(2, 1)
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.steps, self.epoch = 0, 0
    def load(self):
        state = torch.load("last.pt")
        self.steps = state["steps"]
        self.epoch = state["epoch"]
        print("steps so far", state["steps"])
    def run(self):
        for self.epoch in range(self.epoch, 3):
            for x, y in DataLoader(data, shuffle=True):
                (self.model(x) - y).pow(2).mean().backward()
                self.opt.step()
                self.steps += 1
            torch.save({"net": self.model.state_dict(), "steps": self.steps, "epoch": self.epoch}, "last.pt")
trainer = Trainer()
trainer.load()
trainer.run()
"""


def test_counts_of_objects_are_turned_back_where_they_are_loaded():
    text = port(TRAINER).text
    assert '"steps": dl.serial_steps(self.steps), "epoch": self.epoch}' in text
    assert 'self.steps = dl.steps(state["steps"])' in text and 'self.epoch = state["epoch"]' in text
    assert 'print("steps so far", state["steps"])' in text


def test_counts_that_were_loaded_are_shown_as_the_serial_ones():
    text = port(TRAINER.replace("trainer.load()\n", "trainer.load()\nprint('at', trainer.steps, trainer.epoch)\n")).text
    assert "print('at', dl.serial_steps(trainer.steps), trainer.epoch)" in text


def test_a_dict_of_numbers_alone_has_its_counts_made_serial():
    text = port(TRAINER.replace('"net": self.model.state_dict(), ', "")).text
    assert '"steps": dl.serial_steps(self.steps), "epoch": self.epoch}' in text


def test_a_count_that_is_asked_for_with_a_default_is_no_array():
    text = port(TRAINER.replace('state["steps"]\n', 'state.get("steps", 0)\n')).text
    assert "self.steps[...]" not in text


def test_a_temporary_file_has_one_name_for_all_ranks():
    text = port(
        f"import os, tempfile\n{HEAD}fd, best = tempfile.mkstemp()\nos.close(fd)\n{LOOP}torch.save(1, best)\n"
    ).text
    assert "fd, best = tempfile.mkstemp()\nbest = dl.broadcast(best)  # rank 0's file, for all ranks\n" in text


def test_a_state_that_was_loaded_or_kept_waits_for_nobody():
    text = port(
        f"{HEAD}{LOOP}best = model.state_dict()\ntorch.save(best, 'best.pt')\nmodel.load_state_dict(best)\n"
    ).text
    assert "\nmodel.load_state_dict(best)\n" in text


def test_the_rates_of_a_scheduler_that_is_chosen_by_its_name_are_scaled():
    made = "sched = getattr(torch.optim.lr_scheduler, name)(opt, max_lr=0.1, eta_min=low, T_max=9)\n"
    text = port(HEAD + LOOP.replace("for x, y", f"{made}for x, y")).text
    assert "(opt, max_lr=dl.lr_scale(0.1), eta_min=dl.lr_scale(low), T_max=9)" in text


BATCHNORM = """
class Block(torch.nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(2, 2), NORM)
    def forward(self, x):
        return self.layers(x.view(-1, 2))
model = torch.nn.Sequential(*[Block(torch.nn.Identity()) for _ in range(2)])
plain = torch.nn.Sequential(Plain(), torch.nn.Linear(2, 1))
"""
PLAIN = """
class Plain(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)
    def forward(self, x):
        return torch.relu(self.layer(x.view(-1, 2)))
"""


@pytest.mark.parametrize("norm", ["torch.nn.BatchNorm1d(2)", "norm"])
def test_statistics_are_averaged_of_models_that_may_have_some(norm):
    judge = "judge = torch.nn.BatchNorm1d(2)\n"
    text = port(HEAD + PLAIN + BATCHNORM.replace("NORM", norm) + judge + LOOP + "model.eval()\nplain.eval()\n").text
    assert "dl.average(model)" in text and "dl.average(plain)" not in text


def test_a_list_that_is_empty_at_first_is_not_shared():
    script = (
        HEAD
        + """
opt = torch.optim.Adam(model.parameters())
loader = DataLoader(data, shuffle=True)
batches = iter([])
for step in range(100):
    try:
        x, y = next(batches)
    except StopIteration:
        batches = iter(loader)
        x, y = next(batches)
    (model(x) - y).pow(2).mean().backward()
    opt.step()
"""
    )
    text = port(script).text
    assert "batches = iter([])\n" in text and "loader = dl.shard(DataLoader(data, shuffle=True))" in text
