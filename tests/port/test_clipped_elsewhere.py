"""Gradients are averaged before a method or a function of the script's own clips or reads them."""

import pytest
from running import started

from dlrun.port import Options, port

CLIPPED = """import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
def clipped(model, most):
    return nn.utils.clip_grad_norm_(model.parameters(), most)
class Trainer:
    def __init__(self, model, opt):
        self.model, self.opt = model, opt
    def clip(self):
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.1)
    def clip_by_function(self):
        return clipped(self.model, 0.1)
    def norm(self):
        return sum(p.grad.norm().item() for p in self.model.parameters())
    def fit(self, loader):
        for x, y in loader:
            loss = nn.functional.cross_entropy(self.model(x), y)
            self.opt.zero_grad()
            loss.backward()
            READ
            self.opt.step()
X = torch.randn(96, 6)
trainer = Trainer(nn.Linear(6, 2), None)
trainer.opt = torch.optim.SGD(trainer.model.parameters(), 0.5)
trainer.fit(DataLoader(TensorDataset(X, (X.sum(1) > 0).long()), 12))
print(*[f"{w:.5f}" for w in trainer.model.weight.flatten().tolist()])
"""


@pytest.mark.parametrize(
    "read", ["self.clip()", "self.clip_by_function()", "norm = self.norm()", "clipped(self.model, 1)"]
)
def test_gradients_are_averaged_before_what_reads_them_out_of_sight(read):
    text = port(CLIPPED.replace("READ", read)).text
    assert f"            dl.gradients(self.opt)  # mean over the ranks\n            {read}\n" in text


def test_what_is_clipped_is_the_mean_as_in_the_serial_run(tmp_path):
    script = CLIPPED.replace("READ", "self.clip()")
    (tmp_path / "train.py").write_text(script)
    (tmp_path / "dist.py").write_text(port(script, Options(batch="global")).text)
    ours, theirs = started(tmp_path, ["dist.py"], ranks=2), started(tmp_path, ["train.py"])
    assert [float(w) for w in ours.split()] == pytest.approx([float(w) for w in theirs.split()], abs=2e-5)


AHEAD = """import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
X = torch.randn(96, 6)
model, other = nn.Linear(6, 2), nn.Linear(6, 2)
opt, last = torch.optim.SGD(model.parameters(), 0.5), torch.optim.SGD(other.parameters(), 0.5)
def perturb():
    norm = torch.norm(torch.stack([p.grad.norm() for p in model.parameters()]))
    moved = [0.05 * p.grad / norm for p in model.parameters()]
    with torch.no_grad():
        for p, by in zip(model.parameters(), moved):
            p.add_(by)
    return moved
def undo(moved):
    with torch.no_grad():
        for p, by in zip(model.parameters(), moved):
            p.sub_(by)
for x, y in DataLoader(TensorDataset(X, (X.sum(1) > 0).long()), 12):
    opt.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    moved = perturb()
    opt.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    undo(moved)
    opt.step()
    loss = nn.functional.cross_entropy(other(x), y)
    grads = torch.autograd.grad(loss, list(other.parameters()))
    norm = sum(g.pow(2).sum() for g in grads).sqrt()
    for p, g in zip(other.parameters(), grads):
        p.grad = g / norm
    last.step()
print(*[f"{w:.5f}" for net in (model, other) for w in net.weight.flatten().tolist()])
"""


def test_gradients_from_which_an_optimizer_looks_ahead_and_those_of_autograd_are_averaged(tmp_path):
    ported = port(AHEAD, Options(batch="global"))
    assert "    dl.gradients(opt)  # mean over the ranks\n    moved = perturb()\n" in ported.text
    assert "    dl.gradients(grads)  # mean over the ranks\n    norm = " in ported.text
    assert not ported.doubts
    (tmp_path / "train.py").write_text(AHEAD)
    (tmp_path / "dist.py").write_text(ported.text)
    ours, theirs = started(tmp_path, ["dist.py"], ranks=2), started(tmp_path, ["train.py"])
    assert [float(w) for w in ours.split()] == pytest.approx([float(w) for w in theirs.split()], abs=2e-5)


HIDDEN = """import contextlib, functools
from collections import defaultdict
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
X = torch.randn(96, 6, generator=torch.Generator().manual_seed(0))
loader = DataLoader(TensorDataset(X, (X.sum(1) > 0).long()), 12)
def made():
    torch.manual_seed(0)
    model = nn.Linear(6, 2)
    return model, torch.optim.SGD(model.parameters(), 0.5)
def clip(model):
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
class Clip:
    def after_backward(self):
        clip(self.trainer.model)
class Trainer:
    def __init__(self, *callbacks):
        self.model, self.opt = made()
        self.callbacks, self.hooks = callbacks, defaultdict(list)
        for callback in callbacks:
            callback.trainer = self
    def __call__(self, event):
        for callback in self.callbacks:
            found = getattr(callback, event, None)
            if found is not None:
                found()
        for hook in self.hooks[event]:
            hook(self.model)
    def on(self, event):
        def add(hook):
            self.hooks[event].append(hook)
            return hook
        return add
    def fit(self):
        for x, y in loader:
            self.opt.zero_grad()
            nn.functional.cross_entropy(self.model(x), y).backward()
            self("after_backward")
            self.opt.step()
class Own:
    def __init__(self):
        self.model, self.opt = made()
    @property
    def norm(self):
        return torch.cat([p.grad.flatten() for p in self.model.parameters()]).norm().item()
    def backward(self, loss):
        self.opt.zero_grad()
        loss.backward()
        clip(self.model)
    def fit(self):
        for x, y in loader:
            self.backward(nn.functional.cross_entropy(self.model(x), y))
            self.opt.step()
    def fit_by_norm(self):
        for x, y in loader:
            self.opt.zero_grad()
            nn.functional.cross_entropy(self.model(x), y).backward()
            for group in self.opt.param_groups:
                group["lr"] = 0.05 / max(0.1, self.norm)
            self.opt.step()
@contextlib.contextmanager
def clipped(model):
    yield
    clip(model)
ways = {"norm": lambda model: nn.utils.clip_grad_norm_(model.parameters(), 0.1)}
limit = functools.partial(nn.utils.clip_grad_norm_, max_norm=0.1)
found = []
trainer = Trainer(Clip())
trainer.fit()
found.append(trainer.model)
trainer = Trainer()
trainer.on("after_backward")(clip)
trainer.fit()
found.append(trainer.model)
own = Own()
own.fit()
found.append(own.model)
own = Own()
own.fit_by_norm()
found.append(own.model)
"""
BODIES = [
    "with clipped(model):\n        nn.functional.cross_entropy(model(x), y).backward()",
    "nn.functional.cross_entropy(model(x), y).backward()\n    ways['norm'](model)",
    "nn.functional.cross_entropy(model(x), y).backward()\n    limit(model.parameters())",
    "nn.functional.cross_entropy(model(x), y).backward()\n    list(map(clip, [model]))",
]
LOOPS = "".join(
    f"model, opt = made()\nfor x, y in loader:\n    opt.zero_grad()\n    {body}\n    opt.step()\nfound.append(model)\n"
    for body in BODIES
)
SHOWN = 'for model in found:\n    print(*[f"{w:.5f}" for w in model.weight.flatten().tolist()])\n'


def test_so_they_are_before_what_callbacks_lambdas_and_context_managers_read(tmp_path):
    script = HIDDEN + LOOPS + SHOWN
    (tmp_path / "train.py").write_text(script)
    ported = port(script, Options(batch="global"))
    assert not ported.doubts
    (tmp_path / "dist.py").write_text(ported.text)
    ours, theirs = started(tmp_path, ["dist.py"], ranks=2), started(tmp_path, ["train.py"])
    assert len(ours.splitlines()) == 8
    for our, their in zip(ours.splitlines(), theirs.splitlines(), strict=True):
        assert [float(w) for w in our.split()] == pytest.approx([float(w) for w in their.split()], abs=2e-5)


def test_where_the_optimizer_has_no_name_the_early_reader_is_doubted():
    script = CLIPPED.replace("            loss.backward()\n            READ\n", "            backward(self, loss)\n")
    clips = "def backward(trainer, loss):\n    loss.backward()\n    clipped(trainer.model, 0.1)\n"
    (doubt,) = [d for d in port(script.replace("class Trainer", f"{clips}class Trainer")).doubts if d.danger == "high"]
    assert doubt.name == "not-averaged" and "before they are averaged" in doubt.why


@pytest.mark.parametrize(
    ("hook", "told"),
    [
        ("lambda g: g.clamp(-1, 1)", True),
        ("lambda g: g / g.norm()", True),
        ("lambda g: 0.1 * g", False),
        ("lambda g: g * mask", False),
    ],
)
def test_a_hook_that_clips_the_gradient_of_a_weight_is_doubted(hook, told):
    hooked = f"mask = torch.ones(2, 6)\ntrainer.model.weight.register_hook({hook})\ntrainer.fit("
    ported = port(CLIPPED.replace("READ", "pass").replace("trainer.fit(", hooked), Options(batch="global"))
    assert bool([d for d in ported.doubts if "not the mean" in d.why]) is told


@pytest.mark.parametrize(
    ("update", "written"),
    [
        ("opt.zero_grad(), loss.backward(), opt.step()", "loss.backward(), (dl.gradients(opt), opt.step())[1]"),
        (
            "loss.backward(), clip(model), opt.step()",
            "loss.backward(), (dl.gradients(opt), clip(model))[1], opt.step()",
        ),
        ("loss.backward() or opt.step()", "loss.backward() or (dl.gradients(opt), opt.step())[1]"),
        ("loss.backward(); clip(model), opt.step()", "loss.backward(); dl.gradients(opt); clip(model), opt.step()"),
    ],
)
def test_so_they_are_within_a_statement_that_makes_them(update, written):
    text = port(f"""{HIDDEN.partition("class Clip")[0]}
model, opt = made()
for x, y in loader:
    loss = nn.functional.cross_entropy(model(x), y)
    {update}
    opt.zero_grad()
""").text
    assert written in text and text.count("dl.gradients(") == 1


FISHER = f"""{HIDDEN.partition("class Clip")[0]}
model, opt = made()
fisher = [torch.zeros_like(p) for p in model.parameters()]
for x, y in loader:
    model.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    for total, p in zip(fisher, model.parameters()):
        total += p.grad ** 2
for x, y in loader:
    loss = nn.functional.cross_entropy(model(x), y) + sum((f * p**2).sum() for f, p in zip(fisher, model.parameters()))
    opt.zero_grad()
    loss.backward()
    opt.step()
"""


def test_gradients_that_no_update_averages_are_those_of_an_iteration():
    ported = port(FISHER)
    assert "    each_fisher[...] = dl.total(each_fisher)  # sums" in ported.text
    assert ported.text.count("dl.gradients(") == 1 and not ported.doubts
    (doubt,) = [d for d in port(FISHER, Options(batch="global")).doubts if d.danger == "high"]
    assert "which no update here averages" in doubt.why


def test_gradients_that_are_divided_by_what_a_rank_has_of_the_batches_are_doubted():
    window = """
seen = 0
for x, y in loader:
    nn.functional.cross_entropy(model(x), y, reduction="sum").backward()
    seen += len(y)
    if seen >= 36:
        for p in model.parameters():
            p.grad /= seen
        opt.step()
        opt.zero_grad()
        seen = 0
"""
    found = port(FISHER.partition("fisher =")[0] + window, Options(batch="global")).doubts
    assert [d.write for d in found if d.name == "loss-scale"] == ["dl.total(seen)"]


DECORATED = """import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
X = torch.randn(96, 6)
model = nn.Linear(6, 2)
opt = torch.optim.SGD(model.parameters(), 0.5)
def updates(find):
    def inner(*batch):
        opt.zero_grad()
        loss = find(*batch)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        opt.step()
        return loss.item()
    return inner
@updates
def step(x, y):
    return nn.functional.cross_entropy(model(x), y)
total = 0.0
for x, y in DataLoader(TensorDataset(X, (X.sum(1) > 0).long()), 12):
    total += step(x, y)
print(total)
"""


def test_an_update_in_what_a_decorator_puts_around_a_function_is_found():
    text = port(DECORATED).text
    assert "for x, y in dl.shard(DataLoader(" in text and "\ntotal = dl.total(total)" in text
    assert "        dl.gradients(opt)  # mean over the ranks\n        nn.utils.clip_grad_norm_(" in text


SEARCHED = """import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
model = nn.Linear(6, 2)
opt = torch.optim.LBFGS(model.parameters())
for x, y in DataLoader(TensorDataset(torch.randn(96, 6), torch.zeros(96).long()), 48):
    def closure():
        opt.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        if loss.requires_grad:
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        return loss
    opt.step(closure)
"""


def test_in_a_closure_they_are_averaged_before_they_are_clipped():
    averaged = "            dl.gradients(opt)  # mean over the ranks\n"
    assert f"{averaged}            nn.utils.clip_grad_norm_(" in port(SEARCHED).text
    plain = SEARCHED.replace("            nn.utils.clip_grad_norm_(model.parameters(), 0.1)\n", "")
    assert f"loss.backward()\n{averaged[4:]}" in port(plain).text
