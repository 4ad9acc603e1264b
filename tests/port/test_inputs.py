"""Loops over lists of samples are shared; trainings of images, of starting points and on graphs are refused."""

import pytest
import torch
from running import ran
from small import refused

from dlrun.errors import DlrunError
from dlrun.port import Options, port

WORDS = """import torch
from torch import nn

raw = "we are about to study the idea of a computational process that people create by programs".split()
number = {w: i for i, w in enumerate(sorted(set(raw)))}
data = []
for i in range(2, len(raw) - 2):
    data.append(([raw[i - 2], raw[i - 1], raw[i + 1], raw[i + 2]], raw[i]))


def vector(context):
    return torch.tensor([number[w] for w in context])


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.linear = nn.Embedding(len(number), 6), nn.Linear(6, len(number))

    def forward(self, context):
        return self.linear(self.embedding(context).sum(0, keepdim=True))


torch.manual_seed(0)
model = Words()
loss_of = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    total = 0
    for context, target in data:
        loss = loss_of(model(vector(context)), torch.tensor([number[target]]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    print(epoch, total)
torch.save(model.state_dict(), "last.pt")
"""
TOGETHER = WORDS.replace("lr=0.1", "lr=0.3").replace(
    "    for context, target in data:\n"
    "        loss = loss_of(model(vector(context)), torch.tensor([number[target]]))\n",
    "    for k in range(0, len(data), 3):\n        outs = [model(vector(c)) for c, _ in data[k:k + 3]]\n"
    "        loss = loss_of(torch.cat(outs), torch.tensor([number[t] for _, t in data[k:k + 3]]))\n",
)


def test_samples_of_a_list_are_shared_one_at_a_time_as_batches_of_one_process(tmp_path):
    (tmp_path / "together.py").write_text(TOGETHER)
    (tmp_path / "train_dist.py").write_text(port(WORDS).text)
    _, serial = ran(tmp_path / "together.py", tmp_path / "serial")
    _, shared = ran(tmp_path / "train_dist.py", tmp_path / "shared", ranks=3)
    for name, value in serial.items():
        torch.testing.assert_close(shared[name], value, rtol=1e-4, atol=1e-6)


def test_a_list_of_samples_has_no_batches_to_divide():
    with pytest.raises(DlrunError, match="here they are the entries of a list"):
        port(WORDS, Options(batch="global"))


@pytest.mark.parametrize("loop", ["for rate in [0.1, 0.2]:", "for head in [one, two]:"])
def test_lists_of_settings_and_of_models_are_no_samples(loop):
    text = port(f"""import torch
x, y = load()
one, two = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
head = one
{loop}
    opt = torch.optim.SGD(head.parameters(), lr=0.1)
    for step in range(9):
        opt.zero_grad()
        loss = (head(x) - y).pow(2).mean()
        loss.backward()
        opt.step()
""").text
    assert loop in text
    assert 'dl.shard((x, y), batch="global")' in text


STYLE = """import torch
import torchvision
def optimizer_of(image):
    return torch.optim.LBFGS([image.requires_grad_()])
vgg = torchvision.models.vgg19(weights="DEFAULT").features.eval()
content, style = load("content.png"), load("style.png")
picture = content.clone()
optimizer = optimizer_of(picture)
for step in range(300):
    def closure():
        optimizer.zero_grad()
        seen = vgg(picture)
        loss = (seen - vgg(content)).pow(2).mean() + (gram(seen) - gram(vgg(style))).pow(2).mean()
        loss.backward()
        return loss
    optimizer.step(closure)
"""
TENSORFLOW_STYLE = """import keras
import tensorflow as tf
network = keras.applications.VGG19(weights="imagenet", include_top=False)
optimizer = keras.optimizers.SGD(0.1)
def loss_of(picture, base):
    seen = network(tf.concat([picture, base], axis=0))
    return tf.reduce_sum(tf.square(seen[0] - seen[1]))
base = load("base.png")
picture = tf.Variable(load("base.png"))
for step in range(300):
    with tf.GradientTape() as tape:
        loss = loss_of(picture, base)
    optimizer.apply_gradients([(tape.gradient(loss, picture), picture)])
"""


def test_a_picture_that_a_network_looks_at_is_no_model():
    assert "trains image, which goes into a network that stays as it is" in refused(STYLE).message
    assert "trains picture, which goes into a network that stays as it is" in refused(TENSORFLOW_STYLE).message


LOOKED_AT = """
import torch
from torchvision import models
model = models.vgg16()
x = torch.rand(1, 3, 64, 64, requires_grad=True)
for i in range(20):
    loss = model.features[:10](x).norm()
"""


def test_a_script_that_takes_the_gradient_of_its_pictures_alone_is_refused_with_the_reason():
    for taken in ("g = torch.autograd.grad(loss, [x])[0]", "loss.backward()\n    g = x.grad.data"):
        error = refused(f"{LOOKED_AT}    {taken}\n    x.data += 0.1 * g / g.abs().mean()\n")
        assert "takes the gradient of x, which goes into a network" in str(error)
    error = refused(f"{LOOKED_AT}    loss.backward()\n    print(model.classifier[0].weight.grad.norm())\n")
    assert "gradients are computed" in str(error)


def test_weights_of_ones_own_and_codes_beside_a_network_are_trained_as_ever():
    own = """import torch
x, y = load()
w = torch.zeros(2, 1, requires_grad=True)
squash = torch.nn.Sigmoid()
opt = torch.optim.SGD([w], lr=0.1)
for step in range(9):
    loss = (squash(x @ w) - y).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
    assert 'x, y = dl.shard((x, y), batch="global")' in port(own).text
    decoder = own.replace("torch.nn.Sigmoid()", "torch.nn.Linear(1, 1)").replace("[w]", "[w, *squash.parameters()]")
    assert "dl.gradients(opt)" in port(decoder).text


REPTILE = """import torch
model = torch.nn.Linear(1, 1)
inner_step_size = 0.02
for iteration in range(1000):
    before = {k: v.clone() for k, v in model.state_dict().items()}
    x, y = task_of(torch.rand(1))
    for _ in range(5):
        opt = torch.optim.SGD(model.parameters(), lr=inner_step_size)
        loss = (model(x) - y).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    after = model.state_dict()
    model.load_state_dict({k: before[k] + (after[k] - before[k]) * 0.1 for k in after})
"""


def test_meta_learning_is_refused_by_name():
    assert "train.py:8: meta-learning (inner_step_size)" in refused(REPTILE).message


def test_a_graph_without_a_loader_is_one_whole_graph():
    source = """import torch
from torch_geometric.datasets import Planetoid
from torch_geometric.nn import GCNConv
data = Planetoid("cora", "Cora")[0]
model = GCNConv(data.num_features, 7)
opt = torch.optim.Adam(model.parameters())
for epoch in range(9):
    opt.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(data.x, data.links)[data.known], data.y[data.known])
    loss.backward()
    opt.step()
"""
    assert "trains on one whole graph" in refused(source).message


HANDED_ON = """
import random, torch
model = torch.nn.Linear(2, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
def batches(data):
    random.seed(0)
    random.shuffle(data)
    for x in data:
        yield x
def epoch(made, count):
    for _ in range(count):
        opt.zero_grad()
        model(next(made)).sum().backward()
        opt.step()
for _ in range(3):
    order = batches(samples)
    epoch(order, len(samples))
"""


def test_a_generator_is_shared_where_it_is_made_though_another_function_draws_from_it():
    assert "order = dl.shard(batches(samples))" in port(HANDED_ON).text
    direct = HANDED_ON.replace("    order = batches(samples)\n", "").replace("epoch(order,", "epoch(batches(samples),")
    assert "epoch(dl.shard(batches(samples)), " in port(direct).text
