"""``--observe``: a run of a few steps shows what reading cannot know."""

import pytest
from click.testing import CliRunner
from projects import lay

from dlrun.cli.port import command
from dlrun.errors import DlrunError
from dlrun.port.files import read_and_port
from dlrun.port.observing import observe

# What makes the objects lies outside of the script's folder: reading sees none of it.
FOREIGN = """
import torch
from torch.utils.data import DataLoader, TensorDataset

def net():
    return torch.nn.Linear(2, 1)

def algorithm(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)

def stream(x, y):
    return DataLoader(TensorDataset(x, y), batch_size=4)

def keep(model):
    torch.save(model.state_dict(), "kept.pt")

def refine(model):
    model(torch.ones(1, 2)).sum().backward()
    algorithm(model).step()
"""
SCRIPT = """
import sys
import torch
import faraway

print("began with", sys.argv[1:])
net = faraway.net()
rule = faraway.algorithm(net)
x = torch.ones(64, 2)
pairs = faraway.stream(x, x.sum(1, keepdim=True))
for epoch in range(5):
    for a, b in pairs:
        rule.zero_grad()
        (net(a) - b).pow(2).mean().backward()
        rule.step()
        faraway.keep(net)
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    lay(tmp_path / "far", {"train.py": "", "faraway.py": FOREIGN})
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "far"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return lay(tmp_path / "near", {"train.py": SCRIPT})


def test_a_run_shows_the_optimizer_the_loader_and_the_step_that_reading_cannot_see(script, tmp_path):
    with pytest.raises(DlrunError):
        read_and_port(script)
    seen = observe(script, ["--fast"], 3)
    assert seen.steps == 3
    ported = read_and_port(script, None, seen)
    assert "dl.gradients(rule)  # mean over the ranks\n        rule.step()" in ported.text
    assert "pairs = dl.shard(faraway.stream(" in ported.text
    assert "dl.broadcast(net, rule)" in ported.text
    report = ported.report()
    assert "the run saved a file inside this call" in report
    assert "write: dl.rank0(faraway.keep)(...)" in report
    assert not list(tmp_path.rglob("kept.pt")), "nothing is saved while a script is observed"


def test_a_step_inside_a_foreign_call_is_a_doubt(script):
    script.write_text(script.read_text().replace("rule.step()\n", "rule.step()\n        faraway.refine(net)\n"))
    report = read_and_port(script, None, observe(script, [], 3)).report()
    assert "the run stepped an optimizer inside this call, where nothing is averaged" in report


def test_what_reading_found_and_the_run_did_not_come_by_is_a_doubt(script):
    text = script.read_text().replace("rule.step()\n", "rule.step()\n        if epoch > 3:\n            rule.step()\n")
    script.write_text(text)
    doubts = read_and_port(script, None, observe(script, [], 3)).as_json()["doubts"]
    assert [d["line"] for d in doubts if "did not run in the 3 steps" in d["why"]] == [16]


@pytest.mark.wide
def test_a_loss_that_is_a_module_is_no_difference(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    made = "import torch\nnet, criterion = torch.nn.Linear(2, 1), torch.nn.MSELoss()\nx = torch.ones(64, 2)\n"
    made += "rule = torch.optim.SGD(net.parameters(), lr=0.1)\n"
    made += "loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True)), 4)\n"
    loop = "for a, b in loader:\n    rule.zero_grad()\n    criterion(net(a), b).backward()\n    rule.step()\n"
    script = lay(tmp_path, {"train.py": made + loop})
    assert read_and_port(script, seen=observe(script, (), 2)).doubts == ()


def test_a_script_that_never_steps_says_how_it_ended(script):
    script.write_text("raise ValueError('no data')\n")
    with pytest.raises(DlrunError, match="ended without an optimizer step: ValueError: no data") as caught:
        observe(script, [], 1)
    assert f"dlrun port --observe {script} -- ARGS" in caught.value.hint


def test_the_command_observes_with_the_arguments_after_the_dashes(script):
    result = CliRunner().invoke(command, ["--observe", str(script), "--", "--fast"])
    assert result.exit_code == 0, result.output
    assert "dl.gradients(rule)" in script.with_name("train_dist.py").read_text()
    refused = CliRunner().invoke(command, [str(script), "--", "--fast"])
    assert refused.exit_code == 2 and "--fast: the script's arguments go with --observe or --verify" in refused.output
