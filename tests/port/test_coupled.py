"""Losses that compare the samples of a batch are told where ranks have parts of it, whatever compares them."""

import pytest

from dlrun.port import Options, port

SCRIPT = """import torch
from torch import nn
from torch.utils.data import DataLoader
{first}
model, other = nn.Linear(5, 3), nn.Linear(5, 3)
opt = torch.optim.SGD([*model.parameters(), *other.parameters()], 0.1)
for x, y in DataLoader(data, 12, shuffle=True):
    z = model(x)
    {loss}
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
MODULE = """class Contrast(nn.Module):
    def forward(self, z, y):
        near = torch.matmul(z, z.T).log_softmax(1)
        return -(near * (y.unsqueeze(0) == y.unsqueeze(1))).sum(1).mean()
contrast = Contrast()"""
HARDEST = """def hardest(e):
    d = torch.cdist(e, e)
    return torch.relu(d.max(1).values - d.min(1).values).mean()"""
ATTENTION = """class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k = nn.Linear(3, 4), nn.Linear(3, 4)
    def forward(self, z):
        q, k = self.q(z[:, None]), self.k(z[:, None])
        return ((q @ k.transpose(-2, -1)).softmax(-1) @ k).squeeze(1)
attention = Attention()
W = torch.randn(3, 3)"""


def told(loss, first="", batch="global"):
    found = port(SCRIPT.format(loss=loss, first=first), Options(batch=batch)).doubts
    return [d.danger for d in found if d.name == "coupled-samples"]


@pytest.mark.parametrize(
    "loss",
    [
        "loss = (z - z.flip(0)).pow(2).sum(1).mean()",
        "loss = (z * torch.roll(z, 1, 0)).sum(1).mean()",
        "loss = (z * z[torch.randperm(len(z))]).sum(1).mean()",
        "order = torch.randperm(z.size(0)); loss = (z * z[order]).sum(1).mean()",
        "loss = (z @ other(x).T).softmax(1).diagonal().log().mean()",
        "loss = z.mm(other(x).t()).diagonal().mean()",
        "loss = torch.einsum('id,jd->ij', z, other(x)).logsumexp(1).mean()",
        "loss = (z[:, None] - z[None]).norm(dim=2).mean()",
        "loss = (z.unsqueeze(1) - z.unsqueeze(0)).norm(dim=2).mean()",
        "loss = torch.relu(1 - (z[:-1] - z[1:])).mean()",
        "c = z.T @ other(x); loss = (c.diagonal() - 1).pow(2).sum()",
    ],
)
def test_samples_that_meet_in_a_loss_are_told_where_ranks_have_parts_of_the_batch(loss) -> None:
    assert told(loss) == ["high"] and not told(loss, batch="local")


@pytest.mark.parametrize(("first", "loss"), [(MODULE, "loss = contrast(z, y)"), (HARDEST, "loss = hardest(z)")])
def test_samples_that_meet_in_a_function_or_in_a_module_without_weights_are_told(first, loss) -> None:
    assert told(loss, first) == ["high"]


def test_how_the_samples_of_a_batch_are_spread_is_told() -> None:
    assert told("loss = torch.relu(1 - z.std(dim=0)).mean()") == ["medium"]
    assert told("s = z.sum(1); loss = ((s - s.mean()) / s.std()).pow(2).mean()") == ["medium"]


@pytest.mark.parametrize(
    "loss",
    [
        "loss = nn.functional.cross_entropy(attention(z), y)",
        "loss = nn.functional.cross_entropy(z @ W.T, y)",
        "loss = (z - z.flip(1)).pow(2).mean() + (z[:, 1:] - z[:, :-1]).abs().mean() + z.std(1).mean()",
        "loss = nn.functional.cross_entropy(z, y) + model.weight.std() + (model.weight @ model.weight.T).norm()",
        "order = torch.randperm(len(x)); loss = nn.functional.cross_entropy(model(0.5 * x + 0.5 * x[order]), y)",
        "loss = torch.cdist(z[:, None], other(x)[:, None]).mean()",
    ],
)
def test_what_belongs_to_one_sample_or_to_the_weights_is_not_told(loss) -> None:
    assert not told(loss, ATTENTION)


RELATIVE = """import torch
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.randn(96, 4)), batch_size=8)
net = torch.nn.Linear(4, 1)
crit = torch.nn.BCEWithLogitsLoss()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for (x,) in loader:
    real, fake = net(x), net(-x)
    loss = LOSS
    opt.zero_grad()
    loss.backward()
    opt.step()
"""


@pytest.mark.parametrize(
    "loss",
    [
        "crit(real - fake.mean(0, keepdim=True), torch.ones(len(x), 1))",
        "(crit(real - fake.mean(), torch.ones(len(x), 1)) + crit(fake - real.mean(), torch.zeros(len(x), 1))) / 2",
        "torch.relu(1 - (real - fake.mean())).mean()",
        "torch.nn.functional.mse_loss(real.mean(0), fake.mean(0))",
        "crit(real - real.mean(0), torch.ones(len(x), 1)) if len(loader) > 5 else crit(real, torch.ones(len(x), 1))",
    ],
)
def test_a_loss_that_is_made_of_means_over_a_part_of_the_batch_is_doubted(loss) -> None:
    doubts = port(RELATIVE.replace("LOSS", loss), Options(batch="global")).doubts
    assert [doubt.name for doubt in doubts] == ["coupled-samples"]


@pytest.mark.parametrize(
    "loss",
    [
        "crit(real - fake, torch.ones(len(x), 1))",
        "0.5 * torch.mean((torch.log(real) - torch.log(1 - fake)) ** 2)",
        "torch.relu(1 - real).mean() + torch.relu(1 + fake).mean()",
        "(real.mean(1) - 1).pow(2).mean()",
    ],
)
def test_a_loss_of_single_samples_is_none_of_means(loss) -> None:
    assert not port(RELATIVE.replace("LOSS", loss), Options(batch="global")).doubts


@pytest.mark.parametrize(("of", "told"), [("loss", True), ("model(x).sum()", False)])
def test_a_penalty_on_the_gradient_of_a_mean_by_samples_is_doubted_where_ranks_have_parts(of, told):
    script = f"""import torch
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
model = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in DataLoader(data, 8, shuffle=True):
    x.requires_grad_(True)
    loss = (model(x) - y).pow(2).mean()
    slope = torch.autograd.grad({of}, x, create_graph=True)[0]
    opt.zero_grad()
    (loss + slope.norm(dim=1).mean()).backward()
    opt.step()
"""
    for batch in ("global", "local"):
        found = [d for d in port(script, Options(batch=batch)).doubts if "by samples" in d.why]
        assert bool(found) is (told and batch == "global")


@pytest.mark.parametrize(("batch", "told"), [("views[0], views[1]", False), ("views[:8], views[8:]", True)])
def test_batches_that_are_a_tuple_of_arrays_hold_no_single_samples(batch, told):
    script = f"""import torch
from torch.utils.data import DataLoader
model = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for i, (views, y) in enumerate(DataLoader(data, 8, shuffle=True)):
    first, second = {batch}
    loss = torch.nn.functional.mse_loss(model(first), model(second))
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(loss.item())
"""
    ported = port(script, Options(batch="global"))
    assert ("dl.average(loss.item())" in ported.text) is not told
    assert ("coupled-samples" in [d.name for d in ported.doubts]) is told


FITTED = """
import tensorflow as tf
from tensorflow import keras
from tensorflow.keras import backend as K

def dice(y, p):
    a, b = K.flatten(y), K.flatten(p)
    return (2.0 * K.sum(a * b) + 1) / (K.sum(a) + K.sum(b) + 1)

def dice_loss(y, p):
    return 1 - dice(y, p)

def halves(y, p):
    return K.mean(p[:16]) - K.mean(p[16:])

def root(y, p):
    return K.sqrt(K.mean(K.square(y - p)))

def total(y, p):
    return K.sum(K.square(y - p))

def by_count(y, p):
    return K.sum(K.square(y - p)) / K.cast(K.shape(y)[0], "float32")

def distance(y, p):
    return K.mean(K.sqrt(K.sum(K.square(y - p), axis=-1)))

def focal(gamma):
    def loss(y, p):
        return -K.mean(K.pow(1.0 - p, gamma) * K.log(p + 1e-7))
    return loss

class Huber(keras.losses.Loss):
    def call(self, y, p):
        off = tf.abs(y - p)
        return tf.reduce_mean(tf.where(off < 1.0, 0.5 * off * off, off - 0.5))

class Pair:
    def distance(self, y, p):
        return K.sum(K.abs(y - p))

model = keras.Sequential([keras.layers.Dense(1)])
model.compile("sgd", {given})
model.fit(x, y, batch_size=32)
"""


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("loss=dice_loss", ["coupled-samples"]),
        ("loss={'mask': dice_loss, 'kind': 'mse'}", ["coupled-samples"]),
        ("loss=halves", ["coupled-samples"]),
        ("loss=root, metrics=['mae', dice]", ["coupled-samples", "unknown-placement"]),
        ("loss=total", ["loss-scale"]),
        ("loss=[by_count, focal(2.0)], metrics=[distance]", []),
        ("loss=Huber()", []),
        ("loss=Pair().distance", ["loss-scale"]),
    ],
)
def test_losses_and_metrics_of_fit_that_are_no_means_over_the_samples_are_told_with_the_global_batch(given, told):
    found = port(FITTED.replace("{given}", given), Options(batch="global")).doubts
    assert [d.name for d in found if d.name != "rate-may-not-suit"] == told
    if told == ["coupled-samples"]:
        assert not [d for d in port(FITTED.replace("{given}", given)).doubts if d.name in told]


@pytest.mark.parametrize(
    "loss",
    [
        "per.topk(len(per) // 2)[0].mean()",
        "torch.topk(per, 3).values.mean()",
        "per.sort(descending=True)[0][:4].mean()",
        "per[per.argsort()[-4:]].mean()",
        "per.kthvalue(3).values",
        "(per * per.softmax(0)).sum()",
        "per.max()",
        "per[per > 0.5].mean()",
        "per.mean().clamp(min=0.6)",
        "1 - torch.nn.functional.cosine_similarity(real[:, 0], fake[:, 0], dim=0)",
    ],
)
def test_a_loss_that_goes_by_the_order_of_the_samples_or_bends_their_mean_is_told(loss) -> None:
    per = "torch.nn.functional.binary_cross_entropy_with_logits(real[:, 0], x[:, 0].sigmoid(), reduction='none')"
    script = RELATIVE.replace("    loss = LOSS", f"    per = {per}\n    loss = {loss}")
    (doubt,) = port(script, Options(batch="global")).doubts
    assert doubt.name == "coupled-samples" and not port(script).doubts


def test_what_orders_the_classes_of_each_sample_is_not_told() -> None:
    loss = "(real.softmax(1) * real.topk(1)[0] * real.sort(1)[0]).mean() + torch.softmax(fake, -1).prod(1).mean()"
    assert not port(RELATIVE.replace("LOSS", loss), Options(batch="global")).doubts
