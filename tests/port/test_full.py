"""Full batches: n ranks that share all samples of each step leave the serial script's parameters."""

import pytest
import torch
from running import ran
from small import refused

from dlrun.port import port
from dlrun.port.feeds.full.wholes import GRAPH

TRAINING = """import math

import torch
from torch import nn

words = ["a dog barks", "a cat sleeps", "two birds sing loudly", "one fish", "no horse runs", "old men", "new songs"]
letters = sorted(set("".join(words)))


def made():
    x, y = [], []
    for i, word in enumerate(words):
        x.append([word.count(letter) for letter in letters])
        y.append(i % 3)
    return x, y


torch.manual_seed(3)
counts, kinds = made()
counts = torch.FloatTensor(counts)
kinds = torch.LongTensor(kinds)
points = torch.linspace(-1, 1, 10).unsqueeze(1)
ends = torch.tensor([[-1.0], [1.0]])


def mean():
    net = nn.Linear(len(letters), 3)
    opt = torch.optim.Adam(net.parameters(), lr=0.05)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(3):
        loss = criterion(net(counts), kinds)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print("mean %.5f" % loss.item())
    return net


def total():
    net = nn.Linear(len(letters), 1)
    for turn in range(2):
        opt = torch.optim.SGD(net.parameters(), lr=0.001)
        for epoch in range(2):
            loss = (net(counts).squeeze(1) - kinds).pow(2).sum() / 2 + 0.1 * net.weight.pow(2).sum()
            opt.zero_grad()
            loss.backward()
            opt.step()
            print("sum %.5f" % loss.item())
    return net


def singly():
    net = nn.Linear(len(letters), 3)
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    for epoch in range(2):
        loss = 0
        outputs = net(counts)
        for i in range(len(kinds)):
            loss += nn.functional.cross_entropy(outputs[i], kinds[i])
        print("sum of single %.5f" % loss)
        opt.zero_grad()
        loss.backward()
        opt.step()
    return net


def by_letters():
    net = nn.Linear(1, 3)
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    for epoch in range(2):
        loss = 0
        for k in range(3):
            loss += nn.functional.cross_entropy(net(counts[:, k : k + 1]), kinds)
        print("mean of several %.5f" % loss)
        opt.zero_grad()
        loss.backward()
        opt.step()
    return net


def searched():
    net = nn.Linear(len(letters), 3)
    opt = torch.optim.LBFGS(net.parameters(), max_iter=4, line_search_fn="strong_wolfe")
    for step in range(2):
        def closure():
            opt.zero_grad()
            loss = nn.functional.cross_entropy(net(counts), kinds)
            loss.backward()
            return loss
        opt.step(closure)
    return net


def equation():
    net = nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 1))
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(3):
        x = points.clone().requires_grad_(True)
        u = net(x)
        slope = torch.autograd.grad(u.sum(), x, create_graph=True)[0]
        loss = ((slope - x) ** 2).mean() + net(ends).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return net


class Energy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))

    def force(self, x, t):
        return torch.autograd.grad(self.net(torch.cat([x, t], 1)).sum(), x, create_graph=True)[0]


def motion():
    model = Energy()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    scale = 0.5 / math.pi
    x = torch.tensor([[0.1 * i] for i in range(8)], requires_grad=True)
    t = torch.ones(8, requires_grad=True).view(-1, 1)
    wanted = torch.linspace(1, 2, 8).unsqueeze(1)
    for step in range(3):
        loss = (model.force(x, t) - scale * wanted).pow(2).mean()
        loss.backward()
        opt.step()
        opt.zero_grad()
    return model


class Physics:
    def __init__(self, points, values, inner):
        self.x = torch.tensor(points, requires_grad=True).float()
        self.t = torch.tensor(points).float() ** 2
        self.u = torch.tensor(values).float()
        self.inner = torch.tensor(inner, requires_grad=True).float()
        self.lb = torch.tensor([-1.0, -1.0])
        self.nu = 0.01 / math.pi
        self.net = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
        self.search = torch.optim.LBFGS(self.net.parameters(), lr=0.1, max_iter=3)
        self.adam = torch.optim.Adam(self.net.parameters(), lr=0.01)
        self.iter = 0

    def net_u(self, x, t):
        return self.net(torch.cat([x, t], 1) - self.lb)

    def net_f(self, x, t):
        u = self.net_u(x, t)
        return u - self.nu * torch.autograd.grad(u.sum(), x, create_graph=True)[0]

    def loss_func(self):
        self.search.zero_grad()
        self.loss_u = torch.mean((self.u - self.net_u(self.x, self.t)) ** 2)
        self.loss_f = torch.mean(self.net_f(self.inner, 2 * self.inner) ** 2)
        loss = self.loss_u + self.loss_f
        loss.backward()
        self.iter += 1
        if self.iter % 2 == 0:
            print("search %.5f %.5f" % (loss.item(), self.loss_u.item()))
        return loss

    def train(self):
        for epoch in range(2):
            loss = torch.mean((self.u - self.net_u(self.x, self.t)) ** 2) + torch.mean(
                self.net_f(self.inner, 2 * self.inner) ** 2)
            self.adam.zero_grad()
            loss.backward()
            self.adam.step()
        self.search.step(self.loss_func)

    def error(self):
        return (self.net_u(self.x, self.t) - self.u).abs().max().item()


physics = Physics([[0.1 * i] for i in range(7)], [[0.3 * i] for i in range(7)], [[0.2 * i] for i in range(9)])
physics.train()
print("error %.5f" % physics.error())
curve = nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 1))
grid = torch.linspace(-1, 1, 11).unsqueeze(1)


def misfit():
    return (curve(grid) - grid**2).pow(2).mean()


adam = torch.optim.Adam(curve.parameters(), lr=0.01)
for epoch in range(2):
    adam.zero_grad()
    misfit().backward()
    adam.step()
search = torch.optim.LBFGS(curve.parameters(), lr=0.1, max_iter=3)


def closure():
    search.zero_grad()
    loss = misfit()
    loss.backward()
    return loss


search.step(closure)
nets = [mean(), total(), singly(), by_letters(), searched(), equation(), motion(), physics.net, curve]
right = (nets[0](counts).argmax(1) == kinds).sum().item()
print("right", right)
torch.save([net.state_dict() for net in nets], "last.pt")
"""


@pytest.fixture(scope="module")
def serial(tmp_path_factory):
    """The folder of the script and its port, and what the serial script printed and left."""
    folder = tmp_path_factory.mktemp("full")
    (folder / "train.py").write_text(TRAINING)
    (folder / "train_dist.py").write_text(port(TRAINING).text)
    return folder, *ran(folder / "train.py", folder / "run")


@pytest.mark.parametrize("ranks", [2, 3])
def test_n_ranks_leave_the_serial_parameters_also_where_n_does_not_divide_the_samples(ranks, serial, tmp_path):
    folder, said, nets = serial
    shown, shared = ran(folder / "train_dist.py", tmp_path / "run", ranks)
    for one, other in zip(nets, shared, strict=True):
        for name, value in one.items():
            torch.testing.assert_close(other[name], value, rtol=2e-4, atol=2e-6)
    assert [line.split()[0] for line in shown.splitlines()] == [line.split()[0] for line in said.splitlines()]
    for mine, theirs in zip(shown.split(), said.split(), strict=True):
        assert mine == theirs or abs(float(mine) - float(theirs)) < 2e-4


def test_what_is_printed_after_training_sees_all_samples():
    text = port(TRAINING).text
    assert 'own_counts, own_kinds = dl.shard((dl.broadcast(counts), dl.broadcast(kinds)), batch="global")' in text
    assert "right = (nets[0](counts).argmax(1) == kinds).sum().item()" in text


def test_arrays_in_attributes_are_cut_where_a_method_sets_them_and_stay_whole_for_others():
    text = port(TRAINING).text
    assert (
        """        self.inner = torch.tensor(inner, requires_grad=True).float()
        self.own_u, self.own_x, self.own_t = dl.shard((self.u, self.x, self.t), batch="global")  # this rank's samples
        self.own_inner = dl.shard(self.inner, batch="global")
"""
        in text
    )
    assert text.count("dl.shard((self.u, self.x, self.t)") == 1
    assert "(self.net_u(self.x, self.t) - self.u).abs().max().item()" in text


def test_what_two_loops_take_through_one_function_is_cut_once():
    assert port(TRAINING).text.count("grid = dl.shard(") == 1


FIT = """import torch
class Fit:
    def __init__(self, x):
        self.count = x.shape[0]
        self.x = x
        self.net = torch.nn.Linear(1, 1)
        self.opt = torch.optim.Adam(self.net.parameters())
    def train(self):
        for epoch in range(9):
            loss = LOSS
            loss.backward()
            self.opt.step()
Fit(torch.rand(20, 1)).train()
"""


def test_the_number_of_samples_in_an_attribute_is_no_array_and_a_part_of_one_in_an_attribute_is_refused():
    text = port(FIT.replace("LOSS", "self.net(self.x).pow(2).sum() / self.count")).text
    assert "dl.partial_sum(self.net(self.x).pow(2).sum()) / self.count" in text and "dl.shard(self.count" not in text
    assert refused(FIT.replace("LOSS", "self.net(self.x).pow(2).mean()").partition("Fit(torch")[0])  # out of sight
    assert "takes a part, self.x[:5]" in str(refused(FIT.replace("LOSS", "self.net(self.x[:5]).pow(2).mean()")))


def test_an_attribute_that_is_set_in_several_places_is_refused_by_name():
    said = refused("""import torch
class Fit:
    def __init__(self, x):
        self.x = x
        if len(x) > 10:
            self.x = x[::2]
        self.net = torch.nn.Linear(1, 1)
        self.opt = torch.optim.Adam(self.net.parameters())
    def train(self):
        for epoch in range(9):
            loss = self.net(self.x).pow(2).mean()
            loss.backward()
            self.opt.step()
Fit(torch.rand(20, 1)).train()
""")
    assert "the loss takes self.x whole" in str(said)
    assert 'self.x = dl.shard(self.x, batch="global")' in said.hint


OBJECT = """import torch
class Problem:
    def __init__(self, rate):
        self.rate, self.x = rate, torch.rand(20, 2)
    def residual(self, u, x):
        return u - self.rate * x
problem, x, net = Problem(0.1), torch.rand(20, 2), torch.nn.Linear(2, 2)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(9):
    opt.zero_grad()
    loss = problem.residual(net(x), x).pow(2).mean()
    loss.backward()
    opt.step()
"""


def test_an_object_is_no_array_and_what_it_keeps_is_not_cut_from_outside():
    text = port(OBJECT).text
    assert 'x = dl.shard(dl.broadcast(x), batch="global")' in text
    assert "shard(problem" not in text
    said = refused(OBJECT.replace("net(x), x)", "net(problem.x), problem.x)"))
    assert "the loss takes problem whole" in str(said)


def test_arrays_of_different_terms_may_differ_in_length_those_of_one_may_not():
    text = port(TRAINING).text
    assert 'own_points = dl.shard(points, batch="global")' in text
    assert 'own_ends = dl.shard(ends, batch="global")' in text


@pytest.mark.parametrize("made", ["lambda a: torch.tensor(a, requires_grad=True)", "tensor"])
def test_inputs_that_a_function_makes_with_gradients_are_cut_beside_what_they_are_compared_with(made):
    text = port(f"""import torch
def tensor(a, grad=True):
    return torch.tensor(a, requires_grad=grad)
of = {made}
x, wanted = of(data.x), torch.tensor(data.y)
net = torch.nn.Linear(1, 1)
opt = torch.optim.Adam(net.parameters())
for epoch in range(9):
    loss = (net(x) - wanted).pow(2).mean()
    loss.backward()
    opt.step()
""").text
    assert 'x, wanted = dl.shard((x, wanted), batch="global")' in text


def test_numbers_that_are_computed_of_numbers_are_no_arrays():
    text = port("""import torch
low, high, n = float(given.min()), float(given.max()), 100
x = torch.linspace(low, high, n).view(-1, 1)
step = (high - low) / (n - 1)
net = torch.nn.Linear(1, 1)
opt = torch.optim.Adam(net.parameters())
for epoch in range(9):
    loss = (net(x) ** 2).mean() * step
    loss.backward()
    opt.step()
""").text
    assert 'x = dl.shard(x, batch="global")' in text and "dl.shard(step" not in text


def test_inputs_with_gradients_of_their_own_are_cut_beside_what_they_are_compared_with():
    text = port(TRAINING).text
    assert 'x, t, wanted = dl.shard((x, t, wanted), batch="global")' in text
    assert "scale = 0.5 / math.pi\n" in text


def test_a_sum_is_that_over_all_ranks_samples_and_what_it_regularizes_counts_once():
    text = port(TRAINING).text
    assert "dl.partial_sum((net(own_counts).squeeze(1) - own_kinds).pow(2).sum()) / 2" in text
    assert "0.1 * net.weight.pow(2).sum()" in text
    assert "own_counts, own_kinds = dl.shard((dl.broadcast(counts), dl.broadcast(kinds)), equal=False)" in text
    assert "for turn in range(2):\n        opt" in text  # cut once, before both loops


SHARED = """import torch
x, y = load()
model = torch.nn.Linear(2, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)

def total(a, b):
    error = (model(a) - b).pow(2).sum()
    return RETURNED

for step in range(9):
    opt.zero_grad()
    loss = total(x, y)
    loss.backward()
    opt.step()
print(total(*load()))
"""


def test_a_sum_that_also_evaluates_is_one_over_all_ranks_where_it_trains_or_refused():
    text = port(SHARED.replace("RETURNED", "error")).text
    assert "loss = dl.partial_sum(total(x, y))" in text
    assert "print(total(*load()))" in text
    said = refused(SHARED.replace("RETURNED", "error, b")).message
    assert "train.py:7: this loss is a sum, here and where it evaluates" in said


LOOP = """import torch
x, y = load()
mse = torch.nn.MSELoss()
model = torch.nn.Linear(2, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(9):
    opt.zero_grad()
    loss = LOSS
    loss.backward()
    opt.step()
"""


@pytest.mark.parametrize(
    ("loss", "scaled", "odd"),
    [
        ("(model(x) - y).pow(2).mean()", 0, 0),
        ("(model(x) - y).pow(2).sum(1).mean()", 0, 0),
        ("(model(x) - y).pow(2).sum() / len(x)", 0, 0),
        ("torch.sum((model(x) - y) ** 2) / x.shape[0]", 0, 0),
        ("torch.nn.functional.mse_loss(model(x), y) + 0.1 * model.weight.norm()", 0, 0),
        ("(model(x) - y).pow(2).sum() / 64", 1, 0),
        ("0\n    for i in range(len(y)): loss += mse(model(x)[i], y[i])", 1, 0),
        ("0\n    for i in range(9): loss += mse(model(x)[:, i], y[:, i])", 0, 0),
        ("torch.nn.functional.mse_loss(model(x), y, reduction='sum')", 1, 0),
        ("torch.sqrt(torch.nn.functional.mse_loss(model(x), y))", 0, 1),
        ("(model(x) - model(x).mean()).pow(2).mean()", 0, 1),
        ("(model(x) - y).pow(2).mean() * (model(x) + y).pow(2).mean()", 0, 1),
    ],
)
def test_a_loss_is_read_as_mean_as_sum_or_as_neither(loss, scaled, odd):
    ported = port(LOOP.replace("LOSS", loss))
    assert ported.text.count("dl.partial_sum(") == scaled
    assert sum(d.danger == "high" and "no mean or sum" in d.why for d in ported.doubts) == odd


def test_weights_of_classes_are_no_samples():
    source = LOOP.replace("x, y = load()", "x, y = load()\nw = torch.tensor([1.0, 2.0])")
    ported = port(source.replace("LOSS", "torch.nn.functional.cross_entropy(model(x), y, weight=w)"))
    assert 'x, y = dl.shard((x, y), batch="global")' in ported.text
    assert [d.danger for d in ported.doubts if "weights of their classes" in d.why] == ["medium"]


def test_the_shape_of_a_state_is_that_of_a_ranks_samples():
    text = port(LOOP.replace("LOSS", "(model(x, torch.zeros(1, batch_size, 3)) - y).pow(2).sum() / batch_size")).text
    assert "(model(x, torch.zeros(1, len(x), 3)) - y).pow(2).sum()) / batch_size" in text


def test_a_global_that_a_called_function_reads_beside_an_argument_is_not_cut_by_halves():
    source = """import torch
y = load()
def loss_of(out):
    return (out - y).pow(2).mean()
def train():
    x = load()
    model = torch.nn.Linear(3, 1)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(100):
        loss = loss_of(model(x))
        loss.backward()
        opt.step()
train()
"""
    assert "the loss takes y whole" in refused(source).message


def test_what_else_goes_through_the_function_of_the_loss_stays_whole():
    source = """import torch
def loss_of(out, y):
    return (out - y).pow(2).mean()
x, y, test_x, test_y = load()
model = torch.nn.Linear(3, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(100):
    loss = loss_of(model(x), y)
    loss.backward()
    opt.step()
    print(loss_of(model(test_x), test_y))
"""
    assert 'x, y = dl.shard((x, y), batch="global")' in port(source).text


LAYERS = """import torch
class Layer(torch.nn.Linear):
    def __init__(self, size):
        super().__init__(size, size)
        self.opt = torch.optim.SGD(self.parameters(), lr=0.1)
    def train(self, good, bad):
        for step in range(9):
            loss = (self(bad).pow(2).mean(1) - self(good).pow(2).mean(1)).mean()
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
        return self(good).detach(), self(bad).detach()
layers = []
for _ in range(3):
    layers = layers + [Layer(4)]
good, bad = load()
for layer in layers:
    good, bad = layer.train(good, bad)
"""


def test_layers_that_are_trained_one_by_one_hand_on_all_samples():
    text = port(LAYERS).text
    assert 'own_bad, own_good = dl.shard((dl.broadcast(bad), dl.broadcast(good)), batch="global")' in text
    assert "return self(good).detach(), self(bad).detach()" in text
    assert "dl.gradients(self.opt)" in text


PART = """import torch
x, y = torch.randn(30, 4), torch.arange(30) % 3
train = torch.arange(24)
model = torch.nn.Linear(4, 3)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(9):
    def closure():
        opt.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x[train]), y[train])
        loss.backward()
        return loss
    opt.step(closure)
"""


@pytest.mark.parametrize("part", [":24", "train < 9", "~(train > 9)"])
def test_a_part_of_an_array_is_other_samples_in_a_share_of_it(part):
    error = refused(PART.replace("[train]", f"[{part}]"))
    assert f"each step takes a part, x[{part}], out of x" in error.message
    assert f"x_train = x[{part}]" in error.hint


@pytest.mark.parametrize("whole", ["[:]", "[:, :4]", "[None]"])
def test_an_index_that_leaves_no_sample_out_is_no_part(whole):
    assert 'batch="global"' in port(PART.replace("x[train]", f"x{whole}").replace("y[train]", "y")).text


def test_the_loss_at_an_edge_is_no_graph() -> None:
    for name in ("edge_index", "train_edges", "adj_norm", "edge_weight"):
        assert GRAPH.search(name)
    for name in ("edge", "loss_edge", "edge_loss", "knowledge_base"):
        assert not GRAPH.search(name)


@pytest.mark.parametrize(
    ("noise", "whole"),
    [
        ("randn_like(x)", True),
        ("randn(x.size())", True),
        ("rand(*x.shape)", True),
        ("randn(len(x), 3)", True),
        ("randn(64, 3)", False),
        ("from_numpy(np.random.uniform(0, x.shape[0], 64))", False),
    ],
)
def test_noise_in_the_shape_of_all_samples_is_no_batch_that_is_drawn(noise, whole):
    ported = port(f"""
import numpy as np
import torch
x = load()
model = torch.nn.Linear(3, 3)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(100):
    loss = (model(x + torch.{noise}) - x).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
""")
    text = ported.text
    assert not any("no mean or sum over the samples" in d.why for d in ported.doubts)
    assert ('batch="global")' in text) is whole
    assert ("dl.steps(100)" in text and "dl.lr_scale(0.1)" in text) is not whole


def test_what_the_last_step_made_of_a_share_is_doubted_where_it_meets_all_samples():
    for show, doubted in (
        ("plt.plot(x, prediction.detach())", True),
        ("print((y - prediction).abs().max())", True),
        ("print(len(x), loss.item())", False),
        ("plt.plot(x, model(x))", False),
    ):
        doubts = port(f"""import matplotlib.pyplot as plt
import torch
x, y = torch.randn(8, 2), torch.randn(8, 1)

def train(model):
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(9):
        prediction = model(x)
        loss = (prediction - y).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    {show}

train(torch.nn.Linear(2, 1))
print(x.mean(), y.mean())
""").doubts
        assert [d.danger for d in doubts if "meets all of them" in d.why] == ["high"] * doubted, show


def test_a_weight_that_ratios_of_earlier_losses_give_is_a_number_of_all_ranks_and_no_part_of_the_mean() -> None:
    ported = port("""import torch
model = torch.nn.Linear(2, 1)
opt = torch.optim.Adam(model.parameters())
x, y, near = torch.rand(400, 2), torch.rand(400, 1), torch.rand(60, 2)
weight, history = 1.0, []
for step in range(90):
    fit, bound = (model(x) - y).pow(2).mean(), model(near).pow(2).mean()
    loss = fit + weight * bound
    opt.zero_grad()
    loss.backward()
    opt.step()
    history.append([loss.item(), fit.item()])
    if step % 10 == 0:
        weight = 0.9 * weight + 0.1 * (fit / bound).item()
        print("%d %.3f %.3f %.2f" % (step, *history[-1], weight))
""")
    assert not any("no mean or sum" in doubt.why for doubt in ported.doubts)
    assert "weight = 0.9 * weight + 0.1 * (dl.average(fit) / dl.average(bound)).item()" in ported.text
    assert "% (step, *history[-1], weight)" in ported.text  # averaged where it is kept


LABELLED = """import torch

torch.manual_seed(0)
x = torch.rand(64, 3)
y = (x.sum(1, keepdim=True) > 1.5).float()
model = torch.nn.Sequential(torch.nn.Linear(3, 1), torch.nn.Sigmoid())
opt = torch.optim.SGD(model.parameters(), lr=0.01)
cost = torch.nn.BCELoss(reduction="sum")
for epoch in range(3):
    loss = cost(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    with torch.no_grad():
        again = model(x)
    hits = ((again > 0.5).float() == y).sum().item()
    print("%.3f %.3f %d %.4f" % (loss.item(), cost(again, y), hits, hits / len(y)))
torch.save(model.state_dict(), "last.pt")
"""


def test_labels_by_a_comparison_are_shared_and_sums_and_hits_that_no_loss_is_made_of_are_shown_whole(tmp_path):
    (tmp_path / "train.py").write_text(LABELLED)
    (tmp_path / "port.py").write_text(port(LABELLED).text)
    serial, wanted = ran(tmp_path / "train.py", tmp_path / "serial")
    shared, found = ran(tmp_path / "port.py", tmp_path / "shared", ranks=2)
    assert shared == serial
    assert all(torch.allclose(found[name], wanted[name], atol=1e-6) for name in wanted)


@pytest.mark.parametrize("line", ["mean = opt.defaults['lr'] > 1", "mean = int(x.shape[0] > 3)"])
def test_an_outcome_that_is_one_number_is_no_array_of_samples(line):
    made = LABELLED.replace("for epoch", f"{line}\nfor epoch").replace("model(x), y)", "model(x), y) * (1 + mean)", 1)
    assert "x, y = dl.shard((dl.broadcast(x), dl.broadcast(y)), equal=False)" in port(made).text


SEQUENCE = """import torch
inputs, labels = torch.eye(6), torch.tensor([1, 2, 3, 4, 5, 0])
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = torch.nn.RNNCell(6, 6)
    def forward(self, x, state):
        state = self.cell(x.view(1, -1), state)
        return state, state
model = Model()
opt = torch.optim.Adam(model.parameters(), lr=0.1)
for epoch in range(3):
    loss = 0
    state = torch.zeros(1, 6)
    for x, label in zip(inputs, labels):
        out, state = model(x, state)
        loss += torch.nn.functional.cross_entropy(out, label.view(1))
    opt.zero_grad()
    loss.backward()
    opt.step()
"""


@pytest.mark.parametrize(
    ("loop", "taken"),
    [("x, label in zip(inputs, labels)", ""), ("i in range(len(inputs))", "x, label = inputs[i], labels[i]")],
)
def test_entries_along_which_a_state_is_carried_are_no_samples(loop, taken):
    source = SEQUENCE.replace("x, label in zip(inputs, labels)", loop).replace(
        "        out,", f"        {taken}\n        out,"
    )
    assert "a hidden state is carried from entry to entry" in refused(source).message
    anew = source.replace("model(x, state)", "model(x, torch.zeros(1, 6))")
    assert "dl.shard((inputs, labels)" in port(anew).text
