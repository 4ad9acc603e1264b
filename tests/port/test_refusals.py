"""What the porter does not touch, and the reason that it gives."""

import pytest
from click.testing import CliRunner
from small import HEAD, LOOP, SERIAL, UPDATE, refused

from dlrun.cli.port import command
from dlrun.errors import DlrunError
from dlrun.port import port
from dlrun.port.files import read_and_port


def test_a_syntax_error_names_file_line_column_and_text():
    error = refused("import torch\nfor x in y\n    pass\n")
    assert error.message.startswith("train.py:2:")
    assert "for x in y" in error.message


def test_a_python_2_print_is_called_by_its_name():
    error = refused("import torch\nprint 'epoch', 1\n")
    assert "train.py:2:1: a Python 2 print statement" in error.message
    assert "print 'epoch', 1" in error.message


@pytest.mark.parametrize("source", [b"learning rates to try\n", b"\x89PNG\r\n\x1a\n\0", b"python train.py --lr 0.1\n"])
def test_a_file_that_is_no_script_is_said_to_be_none(source):
    with pytest.raises(DlrunError, match=r"notes.txt: no Python script: "):
        port(source, name="notes.txt")
    with pytest.raises(DlrunError, match="it imports nothing"):
        port("x = 1\n", name="notes.txt")


def test_a_script_without_a_training_loop_says_what_was_looked_for():
    error = refused("import torch\nprint(torch.ones(3))\n")
    assert "no training loop" in error.message
    assert "optimizer.step()" in error.hint
    for framework in ("torch", "tensorflow", "keras"):
        error = refused(f"import {framework}\nfrom scipy import optimize\noptimize.fmin_l_bfgs_b(evaluate, x0=start)\n")
        assert "train.py:3: optimize.fmin_l_bfgs_b() trains out of sight" in error.message
    error = refused("import tf_keras\nmodel = tf_keras.Sequential()\nmodel.compile('sgd')\nmodel.fit(x, y)\n")
    assert "train.py:1: trains with tf_keras" in error.message


@pytest.mark.parametrize(
    ("made", "call"),
    [
        ("pyro.infer.SVI(model, guide, optimizer, loss)", "step(x)"),
        ("stable_baselines3.PPO('MlpPolicy', env)", "learn(1000)"),
        ("deepxde.Model(data, net)", "train(iterations=10)"),
        ("trl.SFTTrainer(model=model)", "train()"),
    ],
)
def test_what_trains_inside_a_library_is_named(made, call):
    library = made.partition(".")[0]
    error = refused(f"import torch\nimport {made.partition('(')[0].rpartition('.')[0]}\nit = {made}\nit.{call}\n")
    assert f"train.py:4: it.{call.partition('(')[0]}() trains inside {library}: there is no loop" in error.message


def test_the_mode_of_a_librarys_network_and_the_steps_of_its_environment_are_no_training():
    error = refused(
        "import torch, timm, gymnasium\nnet = timm.create_model('vit')\nnet.train(False)\n"
        "env = gymnasium.make('CartPole-v1')\nenv.step(0)\n"
    )
    assert "no training loop" in error.message


def test_targets_picked_by_the_number_of_a_batch_are_refused_records_are_not():
    loop = LOOP.replace("for x, y in DataLoader(data, shuffle=True)", "for i, x in enumerate(DataLoader(data))")
    error = refused(HEAD + loop.replace("model(x) - y", "torch.nn.MSELoss()(model(x), targets[i])"))
    assert "train.py:6: targets[i] is picked by the number of the batch" in error.message
    record = loop.replace("    opt.step()", "    opt.step()\n    print(names[i])\n    seen[i] = x")
    assert "enumerate(dl.shard(DataLoader(data)))" in port(HEAD + record).text


@pytest.mark.parametrize(
    ("kept", "picked"),
    [("ys = torch.randn(48, 1)", "ys[i * 8:(i + 1) * 8]"), ("ys = torch.randn(48, 1).split(8)", "ys[i]")],
)
def test_targets_of_a_batch_that_a_function_weighs_are_refused_and_entries_of_a_table_are_not(kept, picked):
    loop = f"{UPDATE}opt = torch.optim.Adam(model.parameters())\n{kept}\nfor i, x in enumerate(DataLoader(data)):\n"
    error = refused(f"{HEAD}{loop}    y = {picked}\n    update(x, y)\n")
    assert f"{picked} is picked by the number of the batch" in error.message
    table = f"{HEAD}{UPDATE}opt = torch.optim.Adam(model.parameters())\nrates = [0.1 * k for k in range(48)]\n"
    assert port(f"{table}for i, x in enumerate(DataLoader(data)):\n    update(x, rates[i])\n").text


def test_a_full_batch_beside_a_training_in_batches_is_refused_what_a_batch_is_compared_with_is_not():
    probe = """codes, kinds = model(x).detach(), torch.tensor([0, 1])
probe = torch.nn.Linear(1, 2)
opt = torch.optim.SGD(probe.parameters(), lr=0.1)
for step in range(9):
    torch.nn.functional.cross_entropy(probe(codes), kinds).backward()
    opt.step()
"""
    assert "train.py:11: this loop takes the same samples whole in every step" in refused(SERIAL + probe).message
    several = LOOP.replace("    (model", "    for k in range(3):\n        (model").replace("    opt", "        opt")
    assert "dl.shard(DataLoader(data, shuffle=True))" in port(HEAD + "z = torch.ones(4, 2)\n" + several).text
    made = several.replace("DataLoader(data, shuffle=True)", "bar", 1).replace("for x, y", "bar = LOADER\nfor x, y")
    made = made.replace("LOADER", "list(given(True))") + "for x, y in given(False):\n    print(model(x))\n"
    given = "def given(train):\n    return DataLoader(data if train else test, shuffle=train)\n"
    assert "list(dl.shard(given(True)))" in port(HEAD + given + made).text


def test_a_port_of_a_port_is_refused_as_already_ported():
    assert "already ported: line 3" in refused(port(SERIAL).text).message


@pytest.mark.parametrize(
    ("line", "tool"),
    [
        ("import horovod.torch as hvd\nhvd.init()", "Horovod"),
        ("from torch.nn.parallel import DistributedDataParallel as DDP\nmodel = DDP(model)", "DistributedDataParallel"),
        ("from accelerate import Accelerator\na = Accelerator()", "Accelerate"),
        ("from lightning.fabric import Fabric\nf = Fabric()", "Lightning Fabric"),
        ("import torch.distributed as dist\ndist.init_process_group('gloo')", "torch.distributed"),
        ("from torch.distributed.device_mesh import init_device_mesh as mesh\nmesh('cpu', (2,))", "torch.distributed"),
        ("from torch.distributed.fsdp import fully_shard\nfully_shard(model)", "torch.distributed"),
        ("import deepspeed\ndeepspeed.init_distributed()", "DeepSpeed"),
    ],
)
def test_a_distributed_script_is_refused_with_the_name_of_what_distributes_it(line, tool):
    error = refused(f"{line}\n{SERIAL}")
    assert f"already distributed, with {tool}" in error.message
    meets = tool in ("DistributedDataParallel", "Accelerate", "torch.distributed")  # by what torchrun sets
    assert ("dlrun launch --torchrun -n 2 SCRIPT starts it as it is" in error.hint) == meets


def test_lightning_is_refused_where_it_trains_and_not_where_it_only_helps():
    trained = refused(SERIAL + "import lightning as L\nL.Trainer(max_epochs=3).fit(module, loader)\n")
    assert ": Lightning runs the training loop" in trained.message
    helped = port("import pytorch_lightning as pl\npl.seed_everything(1)\n" + SERIAL).text
    assert "dl.gradients(opt)" in helped


def test_a_script_that_spawns_processes_is_refused_as_parallel():
    error = refused(SERIAL + "import torch.multiprocessing as mp\nmp.Process(target=print).start()\n")
    assert "already parallel, with torch.multiprocessing" in error.message


def test_a_loop_that_shares_nothing_is_refused():
    loop = LOOP.replace("for x, y in DataLoader(data, shuffle=True):", "for step in range(9):")
    error = refused(HEAD + loop)
    assert "no samples to share" in error.message
    assert "train.py:7" in error.message


def test_processes_of_a_module_are_none_of_the_training_that_uses_another_part_of_it(tmp_path):
    tool = (
        "import torch.multiprocessing as mp\nN = 3\ndef spread():\n    mp.Process(target=print).start()\n"
        "def main():\n    spread()\nif __name__ == '__main__':\n    main()\n"
    )
    (tmp_path / "tool.py").write_text(tool)
    (tmp_path / "train.py").write_text("from tool import N\ndef main():\n    pass\n" + SERIAL)
    assert read_and_port(tmp_path / "train.py").edits
    (tmp_path / "train.py").write_text("from tool import N, main\nmain()\n" + SERIAL)
    with pytest.raises(DlrunError, match="already parallel"):
        read_and_port(tmp_path / "train.py")


def test_a_refused_script_writes_nothing(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import torch\nx = (\n")
    result = CliRunner().invoke(command, [str(script)])
    assert result.exit_code == 1
    assert [p.name for p in tmp_path.iterdir()] == ["train.py"]


def test_what_only_the_interpreter_refuses_is_refused_in_its_words():
    assert "'return' outside function" in refused("import torch\nreturn 3\n").message


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


def test_a_keras_model_that_is_compiled_elsewhere_is_refused():
    assert "compiled elsewhere" in refused("import keras\nmodel = load()\nmodel.fit(x, y)\n").message


def test_a_loop_of_pytorchs_may_take_its_data_from_keras_but_not_its_model_or_optimizer():
    data = "from keras.datasets import mnist\n(data, _), _ = mnist.load_data()\n"
    assert "dl.gradients(opt)" in port(data + SERIAL).text
    model = SERIAL.replace("torch.nn.Linear(2, 1)", "keras.Sequential([keras.layers.Dense(1)])")
    assert "train.py:7: a loop of PyTorch's trains what Keras makes" in refused("import keras\n" + model).message
    optimizer = SERIAL.replace("torch.optim.Adam(", "keras.optimizers.Adam(")
    assert "(keras.optimizers.Adam)" in refused("import keras\n" + optimizer).message


def test_a_stateful_keras_model_goes_through_a_stretch_unless_it_gets_its_batches_one_by_one():
    source = "import keras\nrnn = keras.layers.GRU(3, stateful=True)\nmodel.compile('sgd')\nmodel.fit(x, shuffle=False)"
    assert "each rank carries states of its own" in port(source).report()
    by_hand = source.replace("model.fit(x, shuffle=False)", "for i in range(9):\n    model.train_on_batch(x[i])")
    assert "train_on_batch() gets them one by one" in refused(by_hand).message
    assert "states" not in port(source.replace("True", "False")).report()


def test_an_exact_gaussian_process_is_one_of_all_samples():
    error = refused(
        "import torch\nimport gpytorch\nfrom gpytorch.mlls import ExactMarginalLogLikelihood\n"
        "x, y = torch.rand(100), torch.rand(100)\nmodel = GP(x, y)\n"
        "optimizer = torch.optim.Adam(model.parameters())\nmll = ExactMarginalLogLikelihood(model.likelihood, model)\n"
        "for i in range(50):\n    loss = -mll(model(x), y)\n    loss.backward()\n    optimizer.step()\n"
    )
    assert "train.py:7: an exact Gaussian process (ExactMarginalLogLikelihood)" in error.message
    assert "VariationalELBO" in error.hint
