"""The porter on whole scripts: what it writes, where, and what it says of it."""

import json
import os
import stat

import pytest
from click.testing import CliRunner
from small import SERIAL

from dlrun.cli.port import command
from dlrun.errors import DlrunError
from dlrun.port import Options, port
from dlrun.port.files import port_file, read_and_port


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
    assert ported.path.read_text().startswith(f"{ported.text}# dlrun port ")
    assert stat.S_IMODE(ported.path.stat().st_mode) == 0o755
    assert sorted(p.name for p in tmp_path.iterdir()) == ["train.py", "train_dist.py"]


@pytest.mark.parametrize(("target", "said"), [("train.py", "is the script itself"), ("mine.py", "and is no port")])
def test_what_somebody_wrote_is_never_overwritten_a_port_is(target, said, tmp_path):
    script, other = tmp_path / "train.py", tmp_path / target
    other.write_text("print('mine')\n")
    script.write_text(SERIAL)
    before = other.read_text()
    with pytest.raises(DlrunError, match=f"{target}: .*{said}. Nothing was written"):
        port_file(script, other)
    assert other.read_text() == before
    assert port_file(script).path.read_text().startswith(port_file(script).text)


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_a_port_that_somebody_edited_is_replaced_only_when_asked(tmp_path, ending):
    script = tmp_path / "train.py"
    script.write_bytes(SERIAL.rstrip("\n").replace("\n", ending).encode())
    target = port_file(script).path
    script.write_bytes(script.read_bytes().replace(b"model = ", b"net = model = "))
    assert "net = model" in port_file(script).path.read_text()  # nobody touched the earlier one
    edited = target.read_bytes().replace(b"net = model", b"nets = model")
    target.write_bytes(edited)
    with pytest.raises(DlrunError, match="edited since dlrun port wrote it"):
        port_file(script)
    assert target.read_bytes() == edited
    result = CliRunner().invoke(command, [str(script), "--overwrite"])
    assert result.exit_code == 0, result.output
    assert "net = model" in target.read_text()
    assert CliRunner().invoke(command, [str(script), "--check"]).exit_code == 0
    target.write_text(port_file(script).text)  # of an earlier dlrun: nothing is lost where nothing changes
    script.write_bytes(script.read_bytes().replace(b"net = ", b""))
    with pytest.raises(DlrunError, match="or from an earlier"):
        port_file(script)


def test_what_is_no_file_is_written_to_and_stays_what_it_is(tmp_path):
    script, pipe = tmp_path / "train.py", tmp_path / "pipe"
    script.write_text(SERIAL)
    os.mkfifo(pipe)
    end = os.open(pipe, os.O_RDWR)
    text = port_file(script, pipe).text
    assert os.read(end, 1 << 16).decode() == text
    os.close(end)
    assert pipe.is_fifo()


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


def test_a_script_that_is_not_there_is_said_with_the_one_that_is(tmp_path):
    (tmp_path / "train.py").write_text(SERIAL)
    with pytest.raises(DlrunError, match=r"there is no script .*trian\.py") as refused:
        read_and_port(tmp_path / "trian.py")
    assert refused.value.hint == f"did you mean {tmp_path / 'train.py'}?"


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


def test_every_name_that_templates_write_exists_in_dl_comm():
    import re
    from pathlib import Path

    torch_face = pytest.importorskip("dl_comm.torch", reason="dl_comm is not compiled here")
    for template in (Path(__file__).parents[2] / "templates/port/torch").glob("*.j2"):
        for name in re.findall(r"{{ dl }}\.(\w+)", template.read_text()):
            assert hasattr(torch_face, name), f"{template.name} writes dl.{name}"


KERAS = """
import keras
from keras.callbacks import LearningRateScheduler

def schedule(epoch):
    return 0.1 * 0.5**epoch

model = build()
model.compile(optimizer=keras.optimizers.SGD(schedule(0)), loss="mse")
model.fit(x, y, callbacks=[LearningRateScheduler(schedule)])
model.save("model.keras")
"""


def test_a_keras_schedule_is_scaled_once():
    text = port(KERAS).text
    assert "return dl.lr_scale(0.1 * 0.5**epoch)" in text
    assert "SGD(schedule(0))" in text
    assert text.index("dl.distribute(model)") < text.index("model.fit")
    assert 'dl.rank0(model.save)("model.keras")' in text


def test_a_rate_that_is_written_as_zero_is_left_alone():
    assert "SGD(learning_rate=0.0)" in port(KERAS.replace("SGD(schedule(0))", "SGD(learning_rate=0.0)")).text
    serial = SERIAL.replace("model.parameters())", "model.parameters(), lr=0)")
    assert serial != SERIAL
    assert "model.parameters(), lr=0)" in port(serial).text


@pytest.mark.parametrize("line", ["model.summary()", "print(model.summary())"])
def test_what_keras_prints_of_a_model_itself_comes_from_rank_0(line):
    assert line.replace("model.summary", "dl.rank0(model.summary)") in port(KERAS + line + "\n").text


def test_a_summary_that_is_kept_is_every_ranks():
    assert "report = fitted.summary()" in port(KERAS + "report = fitted.summary()\n").text


def test_a_model_that_a_script_keeps_in_a_modules_attribute_is_ported_as_any_other():
    script = KERAS.replace("import keras\n", "import tensorflow as tf\nimport keras\n", 1).replace("model", "tf.model")
    assert "dl.distribute(tf.model)" in port(script).text


def test_an_object_that_holds_a_keras_model_is_none_itself():
    text = port("""import keras
class Deep:
    def __init__(self):
        self.model = keras.Sequential([keras.layers.Dense(1)])
    def compile(self, optimizer):
        self.model.compile(optimizer=optimizer, loss="mse")
    def fit(self, x, y):
        self.model.fit(x, y, epochs=3)
deep = Deep()
deep.compile(keras.optimizers.SGD(0.1))
deep.fit(x, y)
""").text
    assert "        dl.distribute(self.model)" in text
    assert "dl.distribute(deep)" not in text
    assert "deep.compile(keras.optimizers.SGD(dl.lr_scale(0.1)))" in text


def test_explain_tells_what_a_step_means_and_where_it_was_done(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SERIAL)
    result = CliRunner().invoke(command, ["--explain", "gradients", str(script)])
    assert "gradients: average the gradients." in result.output
    assert "train.py:7: opt: average before the step" in result.output
    assert CliRunner().invoke(command, ["--explain", "nonsense", str(script)]).exit_code == 2
    assert [p.name for p in tmp_path.iterdir()] == ["train.py"]


def test_the_linear_rule_is_doubted_for_other_optimizers_than_sgd():
    sgd = SERIAL.replace("Adam(model.parameters()", "SGD(model.parameters(), 0.1")
    assert "was found for SGD" not in port(sgd).report()
    assert "low  the linear scaling rule was found for SGD; Adam mostly wants less" in port(SERIAL).report()
    assert "was found for SGD" not in port(SERIAL, Options(lr_scaling="sqrt")).report()
