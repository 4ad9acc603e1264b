"""The porter on whole scripts: what it refuses, what it writes, and where."""

import json
import stat

import pytest
from click.testing import CliRunner

from dlrun.cli.port import command
from dlrun.errors import DlrunError
from dlrun.port import port, port_file

HEAD = "import torch\nfrom torch.utils.data import DataLoader\nmodel = torch.nn.Linear(2, 1)\n"
LOOP = """opt = torch.optim.Adam(model.parameters())
for x, y in DataLoader(data, shuffle=True):
    (model(x) - y).pow(2).mean().backward()
    opt.step()
"""
SERIAL = HEAD + LOOP


def refused(source):
    with pytest.raises(DlrunError) as error:
        port(source, name="train.py")
    return error.value


def test_a_syntax_error_names_file_line_column_and_text():
    error = refused("import torch\nfor x in y\n    pass\n")
    assert error.message.startswith("train.py:2:")
    assert "for x in y" in error.message


def test_a_python_2_print_is_called_by_its_name():
    error = refused("import torch\nprint 'epoch', 1\n")
    assert "train.py:2:1: a Python 2 print statement" in error.message
    assert "print 'epoch', 1" in error.message


def test_async_as_an_argument_is_called_by_its_name():
    error = refused("import torch\nx = x.cuda(async=True)\n")
    assert "train.py:2:12: `async=`" in error.message
    assert "non_blocking=" in error.hint


def test_a_script_without_a_training_loop_says_what_was_looked_for():
    error = refused("import torch\nprint(torch.ones(3))\n")
    assert "no training loop" in error.message
    assert "optimizer.step()" in error.hint


def test_a_port_of_a_port_is_refused_as_already_ported():
    assert "already ported: line 3" in refused(port(SERIAL).text).message


@pytest.mark.parametrize(
    ("line", "tool"),
    [
        ("import horovod.torch as hvd", "Horovod"),
        ("from torch.nn.parallel import DistributedDataParallel as DDP\nmodel = DDP(model)", "DistributedDataParallel"),
        ("from accelerate import Accelerator", "Accelerate"),
        ("import lightning as L", "Lightning"),
        ("import torch.distributed as dist\ndist.init_process_group('gloo')", "torch.distributed"),
        ("import deepspeed", "DeepSpeed"),
    ],
)
def test_a_distributed_script_is_refused_with_the_name_of_what_distributes_it(line, tool):
    error = refused(f"{line}\n{SERIAL}")
    assert f"already distributed, with {tool}" in error.message


def test_a_loop_that_shares_nothing_is_refused():
    loop = LOOP.replace("for x, y in DataLoader(data, shuffle=True):", "for step in range(9):")
    error = refused(HEAD + loop)
    assert "no samples to share" in error.message
    assert "train.py:7" in error.message


def test_a_script_whose_name_dl_is_taken_gets_another_alias():
    text = port(SERIAL + "dl = 3\n").text
    assert "import dl_comm.torch as dl_comm" in text
    assert "dl_comm.gradients(opt)" in text


def test_the_input_is_never_overwritten_and_the_output_lies_beside_it(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SERIAL)
    script.chmod(0o755)
    ported = port_file(script)
    assert script.read_text() == SERIAL
    assert ported.path == tmp_path / "train_dist.py"
    assert ported.path.read_text() == ported.text
    assert stat.S_IMODE(ported.path.stat().st_mode) == 0o755
    assert sorted(p.name for p in tmp_path.iterdir()) == ["train.py", "train_dist.py"]


def test_a_refused_script_writes_nothing(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import torch\nx = (\n")
    result = CliRunner().invoke(command, [str(script)])
    assert result.exit_code == 1
    assert [p.name for p in tmp_path.iterdir()] == ["train.py"]


def test_line_endings_and_coding_survive(tmp_path):
    script = tmp_path / "train.py"
    raw = ("# -*- coding: latin-1 -*-\n# Größe\n" + SERIAL).replace("\n", "\r\n").encode("latin-1")
    script.write_bytes(raw)
    written = port_file(script).path.read_bytes()
    assert "Größe".encode("latin-1") in written
    assert written.count(b"\n") == written.count(b"\r\n")


def test_check_tells_by_its_exit_code_whether_the_output_would_change(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SERIAL)
    run = CliRunner()
    assert run.invoke(command, ["--check", str(script)]).exit_code == 1
    assert not (tmp_path / "train_dist.py").exists()
    assert run.invoke(command, [str(script)]).exit_code == 0
    assert run.invoke(command, ["--check", str(script)]).exit_code == 0


def test_json_lists_edits_and_doubts_by_line(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SERIAL)
    result = CliRunner().invoke(command, ["--json", str(script)])
    report = json.loads(result.output)
    lines = [edit["line"] for edit in report["edits"]]
    assert lines == sorted(lines)
    assert {edit["step"] for edit in report["edits"]} >= {"start", "broadcast", "gradients", "shard", "rate", "finish"}


def test_diff_shows_the_change_and_writes_nothing(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SERIAL)
    result = CliRunner().invoke(command, ["--diff", str(script)])
    assert "+    dl.gradients(opt)  # mean over the ranks" in result.output
    assert [p.name for p in tmp_path.iterdir()] == ["train.py"]


@pytest.mark.parametrize(
    ("rule", "text"), [("linear", "lr=dl.lr_scale(0.001)"), ("sqrt", 'lr=dl.lr_scale(0.001, "sqrt")')]
)
def test_the_default_rate_is_written_out_and_scaled_by_the_rule(tmp_path, rule, text):
    script = tmp_path / "train.py"
    script.write_text(SERIAL)
    CliRunner().invoke(command, ["--lr-scaling", rule, "--warmup-steps", "7", str(script)])
    written = (tmp_path / "train_dist.py").read_text()
    assert text in written
    assert "dl.warmup(opt, 7)" in written


def test_without_scaling_the_rate_is_left_alone(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SERIAL)
    CliRunner().invoke(command, ["--lr-scaling", "none", str(script)])
    assert "lr_scale" not in (tmp_path / "train_dist.py").read_text()
