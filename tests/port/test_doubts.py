"""Doubts have names: each stands on the page DOUBTS.md, in the report and in what programs read."""

import ast
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import libcst as cst
import pytest
from click.testing import CliRunner

import dlrun.port as porter
from dlrun.cli.port import command
from dlrun.port import port
from dlrun.port.edits import NAMES, Doubt
from dlrun.port.report import explained
from dlrun.port.steps import STEPS

SERIAL = """\
import torch
model = torch.nn.Linear(2, 1)
opt = torch.optim.Adam(model.parameters(), lr=0.1)
for x, y in torch.utils.data.DataLoader([(torch.ones(2), torch.ones(1))] * 8):
    loss = ((model(x) - y) ** 2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""


def _names():
    """The names that the porter's code gives to doubts."""
    for file in Path(porter.__file__).parent.rglob("*.py"):
        for call in ast.walk(ast.parse(file.read_text())):
            if isinstance(call, ast.Call) and ast.unparse(call.func).split(".")[-1] == "Doubt":
                given = [k.value for k in call.keywords if k.arg == "name"] or call.args[5:6]
                for name in (n for value in given for n in ast.walk(value)):
                    if isinstance(name, ast.Constant) and isinstance(name.value, str):
                        yield name.value


def test_each_name_of_a_doubt_stands_on_the_page_with_a_cure():
    page = explained()
    used = {*_names(), *NAMES.values()}
    assert len(used) > 15
    assert used <= page.keys()
    assert all("Cure: " in text for text in page.values())


def test_each_step_has_a_name_for_its_doubts():
    assert {step.name for step in STEPS} == NAMES.keys()


def test_the_report_names_each_doubt_and_json_counts_them_by_name(tmp_path):
    ported = port(SERIAL)
    assert "Adam mostly wants less [rate-may-not-suit]" in ported.report()
    values = ported.as_json()
    assert values["doubts_by_name"] == dict(Counter(d["name"] for d in values["doubts"]))
    assert values["doubts_by_name"]["rate-may-not-suit"] == 1
    script = tmp_path / "train.py"
    script.write_text(SERIAL)
    said = CliRunner().invoke(command, ["--json", str(script)])
    assert json.loads(said.stdout)["doubts_by_name"] == values["doubts_by_name"]


def test_explain_needs_no_script_for_a_doubt():
    said = CliRunner().invoke(command, ["--explain", "unknown-placement"])
    assert said.exit_code == 0 and explained()["unknown-placement"] in said.output
    wrong = CliRunner().invoke(command, ["--explain", "nonsense"])
    assert wrong.exit_code == 2 and "is no doubt; there are may-hang, unknown-placement" in wrong.output
    assert CliRunner().invoke(command, []).exit_code == 2


def test_explain_tells_what_a_doubt_means_and_where_it_is(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SERIAL)
    said = CliRunner().invoke(command, ["--explain", "rate-may-not-suit", str(script)]).output
    assert explained()["rate-may-not-suit"] in said
    assert "train.py:3: the linear scaling rule was found for SGD" in said


@pytest.mark.parametrize("step", NAMES)
def test_a_doubt_without_a_name_gets_that_of_its_step(step):
    bare = Doubt(cst.Pass(), "why")
    assert bare.name == ""
    assert replace(bare, step=step).name == NAMES[step]
    assert replace(Doubt(cst.Pass(), "why", name="may-hang"), step=step).name == "may-hang"
