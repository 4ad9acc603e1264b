"""The porter on whole scripts: what it refuses, what it writes, and where."""

import json
import stat

import pytest
from click.testing import CliRunner

from dlrun.cli.port import command
from dlrun.errors import DlrunError
from dlrun.port import Options, port
from dlrun.port.files import port_file

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


def test_a_script_that_spawns_processes_is_refused_as_parallel():
    error = refused(SERIAL + "import torch.multiprocessing as mp\nmp.Process(target=print).start()\n")
    assert "already parallel, with torch.multiprocessing" in error.message


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


EVALUATED = """
import torch
from torch.utils.data import DataLoader
model = torch.nn.Linear(2, 1)
opt = torch.optim.Adam(model.parameters(), lr=0.1)
train_loader = DataLoader(data, shuffle=True)
test_loader = DataLoader(data, shuffle=False)

def loss_of(x, y):
    return (model(x) - y).pow(2).sum()

def train():
    train_loss = 0
    for x, y in train_loader:
        loss = loss_of(x, y)
        loss.backward()
        train_loss += loss.item()
        opt.step()
    print(train_loss / len(train_loader.dataset))

def test():
    test_loss = 0
    with torch.no_grad():
        for x, y in test_loader:
            test_loss += loss_of(x, y).item()
    test_loss /= len(test_loader.dataset)
    print(test_loss)

for epoch in range(3):
    train()
    test()
"""


def test_a_sum_over_a_shared_loader_is_totalled_and_one_over_a_whole_loader_is_left_alone():
    text = port(EVALUATED).text
    assert "print(dl.total(train_loss) / len(train_loader.dataset))" in text
    assert "    test_loss /= len(test_loader.dataset)\n    print(test_loss)" in text
    assert "dl.total(test_loss)" not in text
    assert "test_loader = DataLoader(data, shuffle=False)" in text


def test_outputs_of_a_model_are_never_averaged():
    text = port(SERIAL + "outputs = model(x)\npred = torch.where(outputs > 0.5, 1, 0)\n").text
    assert "dl.average(outputs)" not in text


def test_a_loader_inside_a_class_is_shared():
    text = port(
        """
import torch
from torch.utils.data import DataLoader

class Endless:
    def __init__(self, dataset):
        self.loader = DataLoader(dataset, sampler=torch.utils.data.RandomSampler(dataset, replacement=True))
        self.batches = iter(self.loader)

    def next(self):
        return next(self.batches)

model = torch.nn.Linear(2, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
batches = Endless(data)
for step in range(1000):
    x, y = batches.next()
    (model(x) - y).pow(2).mean().backward()
    opt.step()
"""
    ).text
    assert "self.loader = dl.shard(DataLoader(" in text
    assert "range(dl.steps(1000))" in text


def test_a_module_whose_functions_nobody_calls_neither_joins_nor_leaves_the_ranks():
    ported = port("import torch\n\ndef train(model, opt, loader):\n    for x, y in loader:\n"
                  "        model(x).sum().backward()\n        opt.step()\n")  # fmt: skip
    assert "dl.gradients(opt)" in ported.text
    assert "for x, y in dl.shard(loader):" in ported.text
    assert "dl.init" not in ported.text
    assert "dl.finalize" not in ported.text
    assert "high  nothing in this file calls train(), which trains" in ported.report()
    assert "dlrun port SCRIPT --out-dir FOLDER" in ported.report()


GLOBAL_TARGET = """
import torch
target = load()
def train(inputs):
    model = torch.nn.Linear(3, 1)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    data = load()
    for step in range(100):
        loss = (model(data) - target).pow(2).mean()
        loss.backward()
        opt.step()
train(1)
"""


def test_data_are_cut_together_or_not_at_all():
    assert "train.py:9: the loss takes target whole" in refused(GLOBAL_TARGET).message
    whole = port(GLOBAL_TARGET.replace("def train(inputs):", "def train(inputs, target):").replace(
        "train(1)", "train(1, target)")).text  # fmt: skip
    assert "data = dl.shard(data)" in whole
    assert "target = dl.shard(target)" in whole


def test_the_model_is_broadcast_where_it_is_only_a_parameter():
    text = port("import torch\n\ndef train(model, opt, loader):\n    for x, y in loader:\n"
                "        model(x).sum().backward()\n        model.train()\n        opt.step()\n\n"
                "train(*load())\n").text  # fmt: skip
    assert "dl.broadcast(model, opt)" in text
    assert "for x, y in dl.shard(loader):" in text


def test_every_name_that_templates_write_exists_in_dl_comm():
    import re
    from pathlib import Path

    torch_face = pytest.importorskip("dl_comm.torch", reason="dl_comm is not compiled here")
    for template in (Path(__file__).parents[2] / "templates/port/torch").glob("*.j2"):
        for name in re.findall(r"{{ dl }}\.(\w+)", template.read_text()):
            assert hasattr(torch_face, name), f"{template.name} writes dl.{name}"


def test_fixed_gpus_become_this_ranks_gpu():
    text = port(
        "import os\nos.environ['CUDA_VISIBLE_DEVICES'] = '0'\n"
        + SERIAL
        + "model = torch.nn.DataParallel(model.cuda(0))\nx = x.to('cuda:1')\n"
    ).text
    assert "os.environ.setdefault('CUDA_VISIBLE_DEVICES', '0')" in text
    assert "x.to('cuda')" in text
    assert "model.cuda()," in text
    assert "device_ids=[torch.cuda.current_device()] if torch.cuda.is_available() else None)" in text


def test_what_only_the_interpreter_refuses_is_refused_in_its_words():
    assert "'return' outside function" in refused("import torch\nreturn 3\n").message


FULL = """
import torch
x = torch.randn(64, 3)
y = load()
x_test = load()
model = torch.nn.Linear(3, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(100):
    inputs = x
    loss = (model(inputs) - y).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    with torch.no_grad():
        print(model(x_test).mean())
"""


def test_a_full_batch_is_cut_where_its_loss_leads_to_and_the_rate_stays():
    text = port(FULL).text
    assert "x = dl.shard(dl.broadcast(x))  # this rank's samples" in text
    assert "y = dl.shard(y)" in text
    assert "x_test = dl" not in text
    assert "lr=0.1)" in text
    assert "range(100)" in text


CARRIED = """
import torch
rnn = torch.nn.RNN(1, 8)
opt = torch.optim.Adam(rnn.parameters())
state = None
for step in range(100):
    x = torch.from_numpy(wave(step))
    out, state = rnn(x, state)
    state = state.data
    out.mean().backward()
    opt.step()
"""


def test_a_hidden_state_that_is_carried_on_is_refused():
    assert "a hidden state is carried from batch to batch" in refused(CARRIED).message


def test_a_loader_from_elsewhere_is_shared_where_it_is_assigned():
    text = port(SERIAL.replace("DataLoader(data, shuffle=True)", "train_loader").replace(
        "model =", "from helpers import loaders\ntrain_loader, test_loader = loaders()\nmodel =")).text  # fmt: skip
    assert "train_loader = dl.shard(train_loader)  # this rank's part of every epoch" in text


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


def test_a_keras_model_that_is_compiled_elsewhere_is_refused():
    assert "compiled elsewhere" in refused("import keras\nmodel = load()\nmodel.fit(x, y)\n").message


def test_a_model_that_a_script_keeps_in_a_modules_attribute_is_ported_as_any_other():
    script = KERAS.replace("import keras\n", "import tensorflow as tf\nimport keras\n", 1).replace("model", "tf.model")
    assert "dl.distribute(tf.model)" in port(script).text


def test_a_stateful_keras_model_is_refused():
    source = "import keras\nlayer = keras.layers.LSTM(3, stateful=True)\nmodel.compile('sgd')\nmodel.fit(x)\n"
    assert "carries its state" in refused(source).message


def test_explain_tells_what_a_step_means_and_where_it_was_done(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SERIAL)
    result = CliRunner().invoke(command, ["--explain", "gradients", str(script)])
    assert "gradients: average the gradients." in result.output
    assert "train.py:7: opt: average before the step" in result.output
    assert CliRunner().invoke(command, ["--explain", "nonsense", str(script)]).exit_code == 2
    assert [p.name for p in tmp_path.iterdir()] == ["train.py"]


def test_doubts_come_with_the_line_to_write_the_most_dangerous_first():
    source = FULL.replace("loss = (model(inputs) - y).pow(2).mean()", "loss = mse(model(inputs), y)").replace(
        "model = torch.nn.Linear(3, 1)",
        "model = torch.nn.Sequential(torch.nn.Linear(3, 1), torch.nn.BatchNorm1d(1))\n"
        "mse = torch.nn.MSELoss(reduction='sum')",
    )
    ported = port(source)
    dangers = [d["danger"] for d in ported.as_json()["doubts"]]
    assert dangers == sorted(dangers, key=["high", "medium", "low"].index)
    assert "write: multiply the loss by dl.get_nranks()" in ported.report()
    assert "write: dl.average(model)" in ported.report()


CHANCE = """
import random, time
import torch
from torch.utils.data import DataLoader
model = torch.nn.Linear(2, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
shown = time.time()
for x, y in DataLoader(data, shuffle=True):
    loss = (model(x) - y).pow(2).mean()
    if torch.isnan(loss):
        break
    loss.backward()
    if random.random() < 0.9:
        opt.step()
    if time.time() - shown > 10:
        print(loss.item())
        shown = time.time()
"""


def test_nothing_is_averaged_where_clock_or_chance_decides_who_comes():
    ported = port(CHANCE)
    assert "print(loss.item())" in ported.text
    assert "if torch.isnan(dl.average(loss)):" in ported.text
    assert "ranks may not agree whether to update opt" in ported.report()


MANUAL = """
import torch
x, y = load(), load()
w1 = torch.randn(3, 5, requires_grad=True)
w2 = torch.randn(5, 1, requires_grad=True)
for step in range(100):
    loss = (x.mm(w1).clamp(min=0).mm(w2) - y).pow(2).mean()
    loss.backward()
    with torch.no_grad():
        w1 -= 0.1 * w1.grad
        w2 -= 0.1 * w2.grad
        w1.grad.zero_()
        w2.grad.zero_()
"""


def test_weights_updated_by_hand_are_averaged_and_start_alike():
    text = port(MANUAL).text
    assert "dl.gradients([w1, w2])  # mean over the ranks\n        w1 -= 0.1 * w1.grad" in text
    assert "dl.broadcast(w1, w2)" in text
    assert "x = dl.shard(x)" in text


INDEXED = """
import numpy as np
import torch
x, y = load()
model = torch.nn.Linear(3, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
order = np.arange(len(x))
for epoch in range(10):
    np.random.shuffle(order)
    for start in range(0, len(x), 32):
        batch = order[start:start + 32]
        loss = (model(x[batch]) - y[batch]).pow(2).mean()
        loss.backward()
        opt.step()
"""


def test_batches_picked_by_number_are_dealt_out_in_one_order():
    text = port(INDEXED).text
    assert "for start in dl.shard(range(0, len(x), 32)):" in text
    assert "np.random.shuffle(order)\n    order = dl.broadcast(order)" in text
    assert "for epoch in range(10):" in text


def test_where_an_environment_is_played_nothing_is_dealt_out():
    ported = port("import gymnasium as gym\nenv = gym.make('CartPole-v1')\n" + INDEXED)
    assert "dl.shard" not in ported.text
    assert "env.reset(seed=seed + dl.get_rank())" in ported.report()


FOLDS = """
import torch
from sklearn.model_selection import KFold
from torch.utils.data import DataLoader, Subset
for fold, (train, test) in enumerate(KFold(5).split(data)):
    model = torch.nn.Linear(2, 1)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        for x, y in DataLoader(Subset(data, train), shuffle=True):
            (model(x) - y).pow(2).mean().backward()
            opt.step()
"""


def test_folds_are_not_samples_and_each_fold_starts_alike():
    text = port(FOLDS).text
    assert "enumerate(KFold(5).split(data)):" in text
    assert "for x, y in dl.shard(DataLoader(Subset(data, train), shuffle=True)):" in text
    assert "    dl.broadcast(model, opt)  # every rank starts from rank 0's state\n" in text
    assert text.index("opt = torch") < text.index("dl.broadcast") < text.index("for epoch")


NORMED = """
import torch
from torch.utils.data import DataLoader
model = torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.BatchNorm1d(1))
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    model.train()
    for x, y in DataLoader(data, shuffle=True):
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        opt.step()
    if loss.item() > 100:
        model.eval()
    model.eval()
    torch.save(model.state_dict(), "model.pt")
"""


def test_running_statistics_are_averaged_where_all_ranks_come_to_evaluate():
    ported = port(NORMED)
    assert ported.text.count("    model.eval()\n    dl.average(model)  # BatchNorm's statistics") == 1
    assert "BatchNorm keeps" not in ported.report()
    assert "dl.average(model)" not in port(NORMED.replace("torch.nn.BatchNorm1d(1)", "torch.nn.ReLU()")).text
    never = port(NORMED.replace("model.eval()", "pass"))
    assert "each rank's BatchNorm keeps statistics of its own samples" in never.report()


def test_a_job_that_is_told_to_end_leaves_after_its_checkpoint():
    text = port(NORMED).text
    assert '    dl.save(model.state_dict(), "model.pt")\n    if dl.should_stop():  #' in text
    assert "        break\n" in text
    assert "should_stop" not in port(NORMED.replace('    torch.save', 'torch.save')).text


def test_the_linear_rule_is_doubted_for_other_optimizers_than_sgd():
    assert "was found for SGD" not in port(NORMED).report()
    adam = NORMED.replace("SGD", "Adam")
    assert "low  the linear scaling rule was found for SGD; Adam mostly wants less" in port(adam).report()
    assert "was found for SGD" not in port(adam, Options(lr_scaling="sqrt")).report()


HISTORY = """
import torch
from torch.utils.data import DataLoader
model = torch.nn.Linear(2, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(data, shuffle=True)

def one_epoch():
    total = 0.0
    for x, y in loader:
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        opt.step()
        total += loss.item()
    return total / len(loader), len(loader)

history, rates = [], {}
for epoch in range(3):
    error, batches = one_epoch()
    history.append({"epoch": epoch, "loss": round(error, 4), "batches": batches})
    again = one_epoch()[0]
    rates[epoch] = again
    print(epoch, round(error, 4), again)
"""


def test_a_number_that_is_kept_and_shown_is_averaged_once_where_it_is_bound():
    text = port(HISTORY).text
    assert "    error, batches = one_epoch()\n    error = dl.average(error)  # mean over the ranks\n" in text
    assert "    again = dl.average(one_epoch()[0])\n" in text
    assert '"loss": round(error, 4), "batches": batches})' in text
    assert "print(epoch, round(error, 4), again)" in text


def test_the_mean_is_rounded_and_not_the_parts():
    text = port(HISTORY.replace("    history.append", "    history")).text
    assert "print(epoch, round(dl.average(error), 4), again)" in text


ORDER = HEAD + LOOP.replace("opt =", "{}\nopt =", 1)


@pytest.mark.parametrize(
    ("line", "doubt", "sound"),
    [
        ("from sklearn.model_selection import train_test_split\na, b = train_test_split(data)", "NumPy is not seeded",
         "import numpy\nnumpy.random.seed(1)"),
        ("from sklearn.model_selection import train_test_split\na, b = train_test_split(data)", "NumPy is not seeded",
         "from sklearn.model_selection import train_test_split\na, b = train_test_split(data, random_state=2)"),
        ("import os\nfiles = os.listdir('data')", "list files in different orders",
         "import os\nfiles = sorted(os.listdir('data'))"),
        ("import glob\nfiles = glob.glob('data/*')", "list files in different orders",
         "import glob\nfiles = glob.glob('data/*')\nfiles.sort()"),
        ("number = {w: i for i, w in enumerate(set(words))}", "a set of strings has another order in each process",
         "number = {w: i for i, w in enumerate(sorted(set(words)))}"),
        ("names = list(set(words))\nnumber = {w: i for i, w in enumerate(names)}", "a set of strings has another order",
         "names = list(set(words))\nnames.sort()\nnumber = {w: i for i, w in enumerate(names)}"),
    ],
)  # fmt: skip
def test_what_each_process_would_order_in_its_own_way_is_doubted(line, doubt, sound):
    assert doubt in port(ORDER.format(line)).report()
    both = sound if "train_test" in sound or "train_test" not in line else f"{sound}\n{line}"
    assert doubt not in port(ORDER.format(both)).report()


AGENT = """
import numpy as np
import torch
import gymnasium as gym

class Agent:
    def __init__(self):
        self.net, self.target = torch.nn.Linear(4, 2), torch.nn.Linear(4, 2)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=0.01)

    def learn(self):
        loss = self.net(torch.rand(8, 4)).mean() - self.target(torch.rand(8, 4)).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

agent, env = Agent(), gym.make("CartPole-v1")
other = Agent()
for episode in range(10):
    env.reset()
    while True:
        agent.learn()
        if np.random.rand() < 0.1:
            break
"""


def test_what_an_object_holds_starts_alike_where_its_method_trains():
    text = port(AGENT).text
    assert "dl.broadcast(agent.net, agent.target, agent.optimizer)" in text
    assert "        dl.gradients(self.optimizer)" in text
    assert "episodes differ in length" not in port(AGENT).report()
    played = AGENT.replace("        agent.learn()\n", "        agent.learn()\n        done = env.step(1)[2]\n")
    assert "high  episodes differ in length" in port(played).report()


def test_a_list_of_training_samples_is_dealt_out_and_a_method_of_that_name_calls_no_function():
    loop = LOOP.replace("DataLoader(data, shuffle=True)", "training_data")
    listed = f"{HEAD}training_data = [(a, b), (c, d)]\n{loop}"
    assert "for x, y in dl.shard(training_data):" in port(listed).text
    assert "found no samples" in refused(listed.replace("training_data", "models")).message
    module = "import torch\ndef train(model, opt, loader):\n    model.train()\n    for x in loader:\n" \
             "        model(x).mean().backward()\n        opt.step()\n"  # fmt: skip
    assert "nothing in this file calls train()" in port(module).report()
