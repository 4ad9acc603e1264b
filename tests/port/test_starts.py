"""What starts alike on all ranks, and on which GPU."""

import pytest
import torch
from running import ran
from small import SERIAL

from dlrun.port import port


def test_a_module_whose_functions_nobody_calls_neither_joins_nor_leaves_the_ranks():
    ported = port(
        "import torch\n\ndef train(model, opt, loader):\n    for x, y in loader:\n"
        "        model(x).sum().backward()\n        opt.step()\n"
    )
    assert "dl.gradients(opt)" in ported.text
    assert "for x, y in dl.shard(loader):" in ported.text
    assert "dl.init" not in ported.text
    assert "dl.finalize" not in ported.text
    assert "high  nothing in this file calls train(), which trains" in ported.report()
    assert "dlrun port THAT_SCRIPT --out-dir FOLDER" in ported.report()


TRAINER = """import logging
import torch
from tools import get_logger
try:
    import tqdm
except ImportError:
    tqdm = None

logger = get_logger(__name__)

def make(config):
    return Trainer(config)

class Trainer:
    def __init__(self, config):
        self.model = torch.nn.Linear(2, 1)
        self.opt = globals()[config.optimizer](self.model.parameters(), lr=0.1)

    def train(self, loader):
        for x, y in loader:
            self.opt.zero_grad()
            (self.model(x) - y).pow(2).mean().backward()
            self.opt.step()
"""
FITTED = """import keras

def fit(x, y):
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse")
    model.fit(x, y, epochs=2)
    return model
"""


@pytest.mark.parametrize(("module", "name"), [(TRAINER, "train"), (FITTED, "fit")], ids=["a trainer", "Keras"])
def test_a_file_that_only_defines_is_a_module_whoever_calls_what_it_defines(module, name):
    ported = port(module)
    assert "dl.init" not in ported.text and "dl.finalize" not in ported.text
    assert f"high  nothing in this file calls {name}(), which trains" in ported.report()
    started = port(f"{module}\n{'make(None).train(loader)' if name == 'train' else 'model = fit(x, y)'}\n")
    assert "dl.init()" in started.text and "dl.finalize()" in started.text


def test_seeds_and_settings_run_nothing_and_what_a_decorator_starts_is_run():
    settings = "\nimport random, sys\nrandom.seed(0)\nif sys.flags.debug:\n    sys.setrecursionlimit(9999)\n"
    for ending in (settings, "", "\n@shown\ndef main():\n    fit(x, y)\n"):
        assert "dl.finalize" not in port(FITTED + ending).text
    for ending in (
        "\n@ex.automain\ndef main():\n    fit(x, y)\n",
        "\nimport fire\nfire.Fire()\n",
        "\nrun(fit)\n",
        "\nif sys.flags.debug:\n    pass\nelse:\n    fit(x, y)\n",
    ):
        assert "dl.finalize" in port(FITTED + ending).text


def test_the_model_is_broadcast_where_it_is_only_a_parameter():
    text = port(
        "import torch\n\ndef train(model, opt, loader):\n    for x, y in loader:\n"
        "        model(x).sum().backward()\n        model.train()\n        opt.step()\n\n"
        "train(*load())\n"
    ).text
    assert "dl.broadcast(model, opt)" in text
    assert "for x, y in dl.shard(loader):" in text


def test_what_only_one_branch_makes_is_not_broadcast_and_what_holds_an_optimizer_is():
    text = port(f"""class Noam:
    def __init__(self, inner):
        self.inner = inner
    def step(self):
        self.inner.step()
{SERIAL.partition("opt = ")[0]}
if noam:
    inner = torch.optim.Adam(model.parameters(), lr=0.1)
    opt = Noam(inner)
else:
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in DataLoader(data, shuffle=True):
    model(x).sum().backward()
    opt.step()
""").text
    assert "dl.broadcast(model, opt)" in text
    assert "dl.gradients(opt)" in text


def test_a_model_that_each_turn_makes_anew_starts_alike_after_it_is_made():
    before = SERIAL.replace("import torch\n", "import torch\nother = torch.nn.Linear(2, 2)\n")
    text = port(
        before
        + """for fold in range(3):
    probe = torch.nn.Linear(2, 1)
    best = torch.optim.SGD(probe.parameters(), lr=0.1)
    for epoch in range(9):
        for x, y in DataLoader(folds[fold], shuffle=True):
            (probe(other(x)) - y).pow(2).mean().backward()
            best.step()
"""
    ).text
    assert "probe" in text.split("dl.broadcast(")[2].split(")")[0]
    assert text.index("best = torch") < text.rindex("dl.broadcast(") < text.index("for epoch in range(9)")


def test_fixed_gpus_become_this_ranks_gpu():
    text = port(
        "import os\nos.environ['CUDA_VISIBLE_DEVICES'] = '0'\n"
        + SERIAL
        + "model = torch.nn.DataParallel(model.cuda(0))\nx = x.to('cuda:1')\n"
    ).text
    assert "os.environ.setdefault('CUDA_VISIBLE_DEVICES', '0')" in text
    assert "x.to('cuda')" in text
    assert "model.cuda()," in text
    for chosen in ('f"cuda:{gpu}"', '"cuda:" + str(gpu)', '"cuda:%d" % gpu', '"cuda:{}".format(gpu)'):
        assert 'model.to("cuda")' in port(SERIAL + f"model.to({chosen})\n").text
    with_gpu = port(SERIAL + "with torch.cuda.device(gpu):\n    model.cuda()\n").text
    assert "with torch.cuda.device(torch.cuda.current_device() if torch.cuda.is_available() else -1):" in with_gpu
    assert 'print(f"cuda:{i} of {n}")' in port(SERIAL + 'print(f"cuda:{i} of {n}")\n').text
    assert "device_ids=[torch.cuda.current_device()] if torch.cuda.is_available() else None)" in text


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
    assert 'x, y = dl.shard((x, y), batch="global")' in text


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


GIVEN = """import torch
from torch.utils.data import DataLoader, TensorDataset

class Net(torch.nn.Linear):
    def forward(self, x, y):
        return torch.nn.functional.cross_entropy(super().forward(x), y)

class Model:
    def __init__(self, name):
        self.network = {"small": Net, "large": Net}[name](4, 2).to("cpu")
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=0.1)

    def train(self, x, y):
        self.optimizer.zero_grad()
        loss = self.network(x, y)
        loss.backward()
        self.optimizer.step()

def step(model, x, y):
    model.train(x, y)

def run(model):
    x = torch.randn(32, 4)
    for batch, kinds in DataLoader(TensorDataset(x, (x.sum(1) > 0).long()), batch_size=4, shuffle=True):
        step(model, batch, kinds)

torch.manual_seed(0)
model = Model("small")
run(model)
torch.save(model.network.state_dict(), "last.pt")
"""


def test_the_parts_of_an_object_that_a_function_is_given_to_train_start_alike(tmp_path):
    text = port(GIVEN).text
    assert "    dl.broadcast(model.network, model.optimizer)" in text
    (tmp_path / "train.py").write_text(GIVEN)
    (tmp_path / "train_dist.py").write_text(text)
    _, serial = ran(tmp_path / "train.py", tmp_path / "serial")
    _, twins = ran(tmp_path / "train_dist.py", tmp_path / "twins", 2, DL_COMM_REPLICATE="1")
    assert all(torch.equal(serial[k], twins[k]) for k in serial)


NAMED = """
import torch
from torch.optim.lr_scheduler import *
from torch.utils.data import DataLoader
class Trainer:
    def __init__(self, model, args, optim):
        self.model = model
        self.begin(optim, args)
        if args.checkpoint:
            state = torch.load(args.checkpoint)
            self.optim.load_state_dict(state["optim"])
            self.lr_scheduler.load_state_dict(state["scheduler"])
    def begin(self, optim, args):
        self.optim = optim(self.model.parameters(), **args.optimizer)
        self.lr_scheduler = globals()[args.scheduler](self.optim, **args.scheduling)
    def train(self, loader):
        for epoch in range(3):
            for x, y in loader:
                (self.model(x) - y).pow(2).mean().backward()
                self.optim.step()
            self.lr_scheduler.step()
"""


def test_an_optimizer_whose_class_is_given_is_broadcast_and_the_scheduler_that_keeps_a_state_is_none():
    text = port(NAMED + "Trainer(torch.nn.Linear(2, 1), args, make()).train(DataLoader(data, shuffle=True))\n").text
    assert "dl.broadcast(self.model, self.optim)  #" in text


def test_calls_that_only_evaluate_begin_no_training():
    text = port(f"""{SERIAL.partition("for x, y")[0]}
def run(loader, task="train"):
    total = 0.0
    for x, y in loader:
        loss = (model(x) - y).pow(2).mean()
        total += loss.item()
        if task == "train":
            loss.backward()
            opt.step()
    return total

def train(train_set, others):
    best = run(DataLoader(others), task="eval")
    for epoch in range(3):
        run(DataLoader(train_set, shuffle=True))
        best = min(best, run(DataLoader(others), task="eval"))

train(data[:80], data[80:])
print(run(DataLoader(data[80:]), "eval"))
""").text
    assert text.count("dl.broadcast(model, opt)") == text.count("dl.reseed()") == 1
    assert text.index("def train") < text.index("dl.broadcast(") < text.index("for epoch")


def test_the_ranks_meet_before_a_file_is_written_though_the_framework_is_imported_later() -> None:
    text = port("import os\nlog = open('log.txt', 'w')\n" + SERIAL).text
    assert text.index("import dl_comm.torch as dl") < text.index("dl.init()") < text.index("dl.rank0(open)")
    assert text.count("import dl_comm") == text.count("dl.init()") == 1
    compile(text, "port", "exec")


PAIR = """import torch
from torch.utils.data import DataLoader
def net():
    return torch.nn.Linear(2, 1)
student, teacher = net(), net()
teacher.load_state_dict(student.state_dict())
opt = torch.optim.SGD(student.parameters(), lr=0.1)
for x, y in DataLoader(data, shuffle=True):
    (student(x) - teacher(x).detach()).pow(2).mean().backward()
    opt.step()
"""


def test_two_models_that_one_line_makes_with_one_function_are_two():
    assert "dl.broadcast(student, teacher, opt)" in port(PAIR).text


def test_networks_that_one_function_makes_for_an_object_start_alike_each_for_itself():
    made = (
        PAIR[: PAIR.index("student")]
        + """class Agent:
    def __init__(self):
        self.actor = net()
        self.critic, self.target = net(), net()
        self.opt = torch.optim.Adam([*self.actor.parameters(), *self.critic.parameters()])
    def learn(self, x, y):
        (self.actor(x) + self.critic(x) - self.target(x) - y).pow(2).mean().backward()
        self.opt.step()
agent = Agent()
for x, y in DataLoader(data, shuffle=True):
    agent.learn(x, y)
"""
    )
    assert "dl.broadcast(agent.actor, agent.critic, agent.target, agent.opt)" in port(made).text


def test_a_model_whose_name_means_something_else_in_the_training_function_is_not_broadcast_there():
    text = port("""import torch
from torch.utils.data import DataLoader
def train(model, opt):
    for x, y in DataLoader(data, shuffle=True):
        best, _ = model(x).max(1)
        (best - y).pow(2).mean().backward()
        opt.step()
    return model, 1
first = torch.nn.Linear(2, 2)
first, steps = train(first, torch.optim.SGD(first.parameters(), lr=0.1))
second = torch.nn.Linear(2, 2)
_, steps = train(second, torch.optim.SGD(second.parameters(), lr=0.1))
""").text
    assert "    dl.broadcast(model, opt)  #" in text


AGENTS = """import torch
from torch.utils.data import DataLoader
loader = DataLoader(data, 8)
class Agent:
    def __init__(self):
        self.net = torch.nn.Linear(2, 1)
        self.opt = torch.optim.SGD(self.net.parameters(), 0.1)
    def loss(self, x, y):
        return (self.net(x) - y).pow(2).mean()
    def learn(self, x, y):
        self.opt.zero_grad()
        self.loss(x, y).backward()
        self.opt.step()
class Heir(Agent):
    pass
"""


@pytest.mark.parametrize("cls", ["Agent", "Heir"])
@pytest.mark.parametrize("loss", ["agent.loss(x, y)", "(agent.net(x) - y).pow(2).mean()"])
@pytest.mark.parametrize("other", ["", "model = torch.nn.Linear(2, 1)\n"])
def test_what_a_loop_trains_through_an_object_starts_alike(cls, loss, other):
    inline = f"    agent.opt.zero_grad()\n    loss = {loss}\n    loss.backward()\n    agent.opt.step()\n"
    ported = port(f"{AGENTS}{other}agent = {cls}()\nfor x, y in loader:\n{inline}")
    assert "agent.net, agent.opt)" in ported.text


def test_an_object_of_an_heir_that_trains_after_another_starts_alike_too():
    first, then = ("\nfor x, y in loader:\n    " + f"{name}.learn(x, y)\n" for name in ("one", "two"))
    text = port(f"{AGENTS}one = Agent(){first}two = Heir(){then}").text
    assert "dl.broadcast(one.net, one.opt)" in text and "dl.broadcast(two.net, two.opt)" in text


def test_each_of_two_objects_that_are_given_a_network_starts_alike():
    made = AGENTS.replace(
        "def __init__(self):\n        self.net = torch.nn.Linear(2, 1)",
        "def __init__(self, net):\n        self.net = net",
    )
    two = "one, two = Agent(torch.nn.Linear(2, 1)), Agent(torch.nn.Linear(2, 1))\n"
    text = port(f"{made}{two}for x, y in loader:\n    one.learn(x, y)\n    two.learn(x, y)\n").text
    assert "one.net, two.net, one.opt, two.opt)" in text


AGAIN = """import torch

def fit(lr):
    model = torch.nn.Linear(2, 1)
    opt = torch.optim.SGD(model.parameters(), lr=lr)
    for x in torch.utils.data.DataLoader(torch.randn(8, 2), batch_size=2):
        model(x).sum().backward()
        opt.step()
    return model

def robust():
    while True:
        try:
            return fit(0.1)
        except ArithmeticError:
            print("again")

for _ in range(2):
    model = robust()
"""


def test_a_name_of_the_script_that_a_function_hides_is_not_broadcast_around_it():
    ported = port(AGAIN)
    assert ported.text.count("dl.broadcast(") == 1
    assert "    dl.broadcast(model, opt)" in ported.text.partition("def robust")[0]
