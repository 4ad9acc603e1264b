"""Values are followed to where they come from: copies of weights, tables of functions, counts of steps, metrics."""

import pytest

from dlrun.port import Options, port

HEAD = "import torch\nfrom torch.utils.data import DataLoader\n"
MADE = "model = torch.nn.Linear(2, 1)\nopt = torch.optim.SGD(model.parameters(), lr=0.1)\n"
LOADER = "loader = DataLoader(data, batch_size=8, shuffle=True)\n"
UPDATE = """        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        opt.step()
"""
EPOCHS = f"for epoch in range(9):\n    for x, y in loader:\n{UPDATE}"


@pytest.mark.parametrize(
    "made",
    [
        "self.shadow = copy.deepcopy(model).eval()",
        "self.shadow = {name: p.data.clone() for name, p in model.named_parameters()}",
        "self.shadow = {}\n        for n, p in model.named_parameters():\n            self.shadow[n] = p.data.clone()",
        "self.shadow = [p.clone().detach() for p in model.parameters()]",
    ],
)
def test_a_copy_of_the_weights_that_an_object_keeps_starts_alike_too(made):
    text = port(f"""import copy
{HEAD}
class Average:
    def __init__(self, model):
        {made}
    def update(self, model):
        for s in self.shadow: pass
{MADE}{LOADER}
ema = Average(model)
{EPOCHS}        ema.update(model)
""").text
    assert "dl.broadcast(model, ema.shadow, opt)" in text


@pytest.mark.xfail(
    strict=True, reason="a number of held out data, which each rank computes, ends the training: not agreed on"
)
def test_an_object_that_is_called_decides_alike_on_all_ranks():
    text = port(f"""{HEAD}
class EarlyStopping:
    def __init__(self):
        self.best, self.bad = 1e9, 0
    def __call__(self, value):
        if value < self.best:
            self.best, self.bad = value, 0
        else:
            self.bad += 1
        return self.bad > 3
{MADE}{LOADER}
stopper = EarlyStopping()
{EPOCHS}    if stopper(model(held).mean().item()):
        break
""").text
    assert "value = dl.average(value)  # mean over the ranks: all ranks decide alike" in text


def test_what_ranks_may_come_to_unequally_often_is_averaged_by_none():
    text = port(f"""{HEAD}
class Net(torch.nn.Module):
    def forward(self, x):
        x = x.sum(1, keepdim=True)
        if x.max() > 9:
            x = torch.zeros_like(x)
        return x
def bonds(distance):
    if distance < 1.2:
        return 1
    return 0
def stable(points):
    return sum(bonds((p - q).norm()) for p in points for q in points)
{MADE}{LOADER}
net = Net()
{EPOCHS}    print(stable(net(model(held))))
""").text
    assert "dl.average(x" not in text
    assert "distance < 1.2" in text
    assert "distance = dl" not in text


def test_what_a_function_makes_twice_is_two_models():
    text = port(f"""{HEAD}
def build():
    return torch.nn.Linear(2, 1)
model, loader = build(), DataLoader(data, batch_size=8, shuffle=True)
average = build()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
{EPOCHS}        for a, p in zip(average.parameters(), model.parameters()): a.data.mul_(0.9).add_(0.1 * p.data)
""").text
    assert "dl.broadcast(model, average, opt)" in text


def test_two_names_that_are_made_of_each_other_lead_nowhere():
    turns = "first, second = a, b\nfor turn in range(2):\n    kept = first\n    first = second\n    second = kept\n"
    for swapped in (turns, "first = second\nsecond = first\n"):
        text = port(f"{HEAD}{MADE}{swapped}{LOADER}first()\n{EPOCHS}").text
        assert "dl.broadcast(model, opt)" in text


def test_what_comes_with_a_pretrained_model_and_has_no_weights_is_not_broadcast():
    head = HEAD + "from transformers import AutoModel, BertTokenizerFast\n"
    made = "words = BertTokenizerFast.from_pretrained('b')\nmodel = AutoModel.from_pretrained('b')\n"
    made += "opt = torch.optim.SGD(model.parameters(), lr=0.1)\n"
    text = port(f"{head}{made}{LOADER}{EPOCHS}        words(x)\n").text
    assert "dl.broadcast(model, opt)" in text


def test_a_table_of_functions_makes_the_optimizer():
    ported = port(f"""{HEAD}
def plain(params, lr): return torch.optim.SGD(params, lr=lr)
TABLE = {{"sgd": plain, "adam": lambda params, lr: torch.optim.Adam(params, lr=lr)}}
model = torch.nn.Linear(2, 1)
opt = TABLE[kind](model.parameters(), 0.1)
{LOADER}{EPOCHS}""")
    assert ported.text.count("dl.lr_scale(lr)") == 2
    assert "dl.broadcast(model, opt)" in ported.text
    assert not [d for d in ported.doubts if "no learning rate" in d.why]


@pytest.mark.parametrize(
    ("loop", "end", "divided"),
    [
        ("while True:\n    for x, y in loader:", "step += 1\n        if step >= most: break", "most = dl.steps(500)"),
        ("while step < most:\n    for x, y in loader:", "step += 1", "most = dl.steps(500)"),
        ("while 1:\n    for x, y in loader:", "step = step + 1\n        if step > most: break", "most = dl.steps(500)"),
        ("while 1:\n    for i, (x, y) in enumerate(loader):", "if i == args.n: break", "i == dl.steps(args.n):"),
    ],
)
def test_what_ends_the_training_after_so_many_steps_is_divided(loop, end, divided):
    assert divided in port(f"{HEAD}{MADE}{LOADER}most = 500\nstep = 0\n{loop}\n{UPDATE}        {end}\n").text


@pytest.mark.parametrize(
    ("count", "divided"),
    [
        ("OneCycleLR(opt, 0.1, 9 * (len(data) // 8))", "9 * dl.steps(len(data) // 8)"),
        ("OneCycleLR(opt, 0.1, epochs=9, steps_per_epoch=len(data) // 8)", "steps_per_epoch=dl.steps(len(data) // 8)"),
        ("OneCycleLR(opt, 0.1, epochs=9, steps_per_epoch=len(loader))", "steps_per_epoch=len(loader))"),
        ("CosineAnnealingLR(opt, 9 * len(loader))", "CosineAnnealingLR(opt, 9 * len(loader))"),
        ("CosineAnnealingLR(opt, most)", "CosineAnnealingLR(opt, dl.steps(most))"),
        ("CyclicLR(opt, 0.1, 0.2)", "dl.lr_scale(0.2), step_size_up=dl.steps(2000))"),
        ("MultiStepLR(opt, [100, 200])", "MultiStepLR(opt, dl.steps([100, 200]))"),
        ("LambdaLR(opt, lambda step: 0.99 ** step)", "LambdaLR(opt, dl.steps(lambda step: 0.99 ** step))"),
        ('get_scheduler("linear", opt, 50, 9 * len(loader))', "opt, dl.steps(50), 9 * len(loader))"),
    ],
)
def test_the_counts_of_a_scheduler_that_steps_with_every_batch_are_those_of_a_rank(count, divided):
    scheduler = f"most = 9 * len(data) // 8\nscheduler = torch.optim.lr_scheduler.{count}\n"
    if count.startswith("get_"):
        scheduler = "from transformers import get_scheduler\n" + scheduler.replace("torch.optim.lr_scheduler.", "")
    loop = f"for epoch in range(9):\n    for x, y in loader:\n{UPDATE}        scheduler.step()\n"
    assert divided in port(f"{HEAD}{MADE}{LOADER}{scheduler}{loop}").text


def test_the_counts_of_schedulers_inside_of_others_are_those_of_a_rank_too():
    text = port(f"""{HEAD}from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR
{MADE}{LOADER}warm = LinearLR(opt, 0.1, total_iters=50)
parts = [warm, CosineAnnealingLR(opt, T_max=450)]
scheduler = SequentialLR(opt, parts, milestones=[50])
for epoch in range(9):
    for x, y in loader:
{UPDATE}        scheduler.step()
""").text
    assert "total_iters=dl.steps(50)" in text
    assert "T_max=dl.steps(450)" in text
    assert "milestones=dl.steps([50])" in text


def test_a_scheduler_that_is_told_the_epochs_so_far_keeps_its_counts():
    made = "from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts\nsize = len(loader)\n"
    made += "scheduler = CosineAnnealingWarmRestarts(opt, T_0=2)\n"
    loop = f"for epoch in range(9):\n    for i, (x, y) in enumerate(loader):\n{UPDATE}        scheduler.step(epoch)\n"
    for told, count in (("epoch + i / size", "T_0=2"), ("epoch * size + i", "T_0=dl.steps(2)")):
        text = port(f"{HEAD}{MADE}{LOADER}{made}{loop.replace('step(epoch)', f'step({told})')}").text
        assert f"{count})" in text, told


def test_a_rate_that_is_multiplied_at_every_batch_is_multiplied_as_often_as_in_the_serial_run():
    scheduler = "scheduler = torch.optim.lr_scheduler.ExponentialLR(opt, 1 - 0.01)\n"
    loop = f"for epoch in range(9):\n    for x, y in loader:\n{UPDATE}        scheduler.step()\n"
    ported = port(f"{HEAD}{MADE}{LOADER}{scheduler}{loop}")
    assert "ExponentialLR(opt, dl.compound(1 - 0.01))" in ported.text
    assert not [d for d in ported.doubts if "every batch" in d.why]
    between = loop.replace("        scheduler", "    scheduler")
    assert scheduler in port(f"{HEAD}{MADE}{LOADER}{scheduler}{between}").text
    several = scheduler.replace("ExponentialLR(opt, 1 - 0.01)", "MultiplicativeLR(opt, lambda step: 0.99)")
    doubts = port(f"{HEAD}{MADE}{LOADER}{several}{loop}").doubts
    assert [d.write for d in doubts if "every batch" in d.why] == ["dl.compound(...) around what its function returns"]


def test_a_factor_made_of_the_length_of_a_ranks_share_is_one_of_as_many_steps_as_it_takes():
    factor = "factor = 100 ** (1 / len(loader))\n"
    loop = f"for x, y in loader:\n{UPDATE.replace('        ', '    ')}"
    by_hand = "    rate *= factor\n    opt.param_groups[0]['lr'] = rate\n"
    text = port(f"{HEAD}{MADE}{LOADER}{factor}rate = 1e-5\n{loop}{by_hand}").text
    assert "    rate *= factor\n" in text
    scheduler = "scheduler = torch.optim.lr_scheduler.ExponentialLR(opt, factor)\n"
    assert scheduler in port(f"{HEAD}{MADE}{LOADER}{factor}{scheduler}{loop}    scheduler.step()\n").text


def test_a_total_that_rounds_up_once_where_every_epoch_does_is_doubted():
    counts = {"most": True, "9 * (len(data) // 8)": False, "9 * len(loader)": False}
    loop = f"for epoch in range(9):\n    for x, y in loader:\n{UPDATE}        scheduler.step()\n"
    for count, doubted in counts.items():
        scheduler = f"most = 9 * len(data) // 8\nscheduler = torch.optim.lr_scheduler.OneCycleLR(opt, 0.1, {count})\n"
        doubts = port(f"{HEAD}{MADE}{LOADER}{scheduler}{loop}").doubts
        assert bool([d for d in doubts if "refuses a step" in d.why]) == doubted, count


BY_STEP = f"""
warm, most, step = 20, 500, 0
def rate_at(step):
    return 0.1 * min(1.0, step / warm)
while step < 500:
    for x, y in loader:
        for group in opt.param_groups:
            group["lr"] = 0.1
{UPDATE}        step += 1
"""


@pytest.mark.parametrize(
    ("rate", "told"),
    [
        ("rate_at(step)", "dl.lr_scale(rate_at(dl.serial_steps(step)))"),
        ("0.1 * min(1.0, step / warm)", "dl.lr_scale(0.1 * min(1.0, dl.serial_steps(step) / warm))"),
        ("0.1 * (1 - step / (9 * len(loader)))", "dl.lr_scale(0.1 * (1 - step / (9 * len(loader))))"),
        ("0.1 * (1 - step / most) ** 0.9", "dl.lr_scale(0.1 * (1 - step / dl.steps(most)) ** 0.9)"),
        ("0.1 * 0.5 ** epoch", "dl.lr_scale(0.1 * 0.5 ** epoch)"),
        (
            "0.1 * (1 + math.cos(step / (9 * len(loader)))) / 2",
            "dl.lr_scale(0.1 * (1 + math.cos(step / (9 * len(loader)))) / 2)",
        ),
        ("0.1 * (1 - step / (9 * len(loader)) / 2)", "dl.lr_scale(0.1 * (1 - step / (9 * len(loader)) / 2))"),
        (
            "0.1 * (min(step, 50) / 50) * (1 - step / (9 * len(loader)))",
            "dl.lr_scale(0.1 * (min(step, dl.steps(50)) / dl.steps(50)) * (1 - step / (9 * len(loader))))",
        ),
    ],
)
def test_a_rate_that_the_script_computes_from_its_steps_is_told_the_serial_ones_of_all_ranks(rate, told):
    text = port(f"{HEAD}{MADE}{LOADER}{BY_STEP}".replace('"lr"] = 0.1', f'"lr"] = {rate}')).text
    assert f'group["lr"] = {told}\n' in text


def test_what_is_kept_as_the_best_is_what_was_compared():
    made = f"{HEAD}{MADE}{LOADER}best = 1e9\n{EPOCHS}"
    entry = port(f"""{made}    found = {{"val": loss.item()}}
    if found["val"] < best:
        best = found["val"]
""").text
    serial = "    loss = dl.average(loss)  # means over the ranks\n"
    found = '    found = {"val": loss.item()}\n    if found["val"] < best:\n        best = found["val"]'
    assert serial + found in entry
    other = port(made + "    found = 0, loss.item()\n    if found[1] < best:\n        best = found[1]\n").text
    assert f"{serial}    found = 0, loss.item()\n    if found[1] < best:\n        best = found[1]" in other
    ends = "    if found[1] > best:\n        break\n    best = found[1]\n"
    beside = port(made + "    found = 0, loss.item()\n" + ends).text
    assert f"{serial}    found = 0, loss.item()\n{ends}" in beside


def test_a_count_of_epochs_is_not_divided():
    text = port(f"""{HEAD}{MADE}{LOADER}
epoch = 0
while True:
    for x, y in loader:
{UPDATE}    epoch += 1
    if epoch >= 30:
        break
""").text
    assert "if epoch >= 30:" in text


def test_a_mean_is_shown_before_it_decides_and_perplexity_is_that_of_the_mean():
    text = port(f"""import math
{HEAD}{MADE}{LOADER}best = 1e9
for epoch in range(9):
    total = 0
    for x, y in loader:
{UPDATE}        total += loss.item()
    total = total / len(loader)
    print(epoch, total, math.exp(total))
    if total < best:
        best = total
""").text
    assert "    total = dl.total(total)  # sums over all ranks' samples\n" in text
    mean = "    total = total / dl.serial_steps(len(loader))\n"
    assert f"{mean}    print(epoch, total, math.exp(total))\n    if total < best:" in text
    entry = f"""{HEAD}import math
{MADE}{LOADER}total = 0
for x, y in loader:
    loss = (model(x) - y).pow(2).mean()
    loss.backward()
    opt.step()
    total += loss.data
    shown = total[0] / 9
    print("{{:.2f}} {{:.2f}}".format(shown, math.exp(shown)))
"""
    assert ".format(dl.total(shown), math.exp(dl.total(shown)))" in port(entry).text  # numbers


@pytest.mark.xfail(
    strict=True, reason="a number with a local random part sets the rate and ends the training: told, not averaged"
)
def test_what_decides_is_averaged_before_anything_else_takes_it():
    text = port(f"""from stopping import Stopper
{HEAD}{MADE}{LOADER}stopper, best = Stopper(patience=3), None
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(opt)
{EPOCHS}    error = (model(held) - torch.randn(1)).mean().item()
    scheduler.step(error)
    stopper.step(error)
    is_best = best is None or error < best
    if is_best:
        best = error
    if stopper.stop:
        break
""").text
    assert "error = dl.average(error)  # mean over the ranks: all ranks decide alike\n    scheduler.step(error)" in text


def test_an_option_of_the_command_line_counts_as_a_number():
    text = port(f"""import argparse
args = argparse.ArgumentParser().parse_args()
{HEAD}{MADE}{LOADER}for epoch in range(9):
    for x, y in loader:
{UPDATE}        print(loss.item() * args.accumulate)
""").text
    assert "print(dl.average(loss.item()) * args.accumulate)" in text


def test_the_name_of_a_keyword_is_no_value():
    text = port(f"""{HEAD}{MADE}{LOADER}for epoch in range(9):
    for x, y in loader:
{UPDATE}        print("{{loss}}".format(loss=loss.item()))
""").text
    assert 'print("{loss}".format(loss=dl.average(loss.item())))' in text


def test_the_log_is_rank_0s():
    text = port(f"""import logging, sys
from pprint import pprint as show
{HEAD}logging.basicConfig(level=logging.INFO)
logger = logging.getLogger(__name__)
logger.setLevel("DEBUG")
logger.addHandler(logging.FileHandler("train.log"))
{MADE}{LOADER}{EPOCHS}sys.stdout.write("done")
show("done")
""").text
    assert "logging.basicConfig(level=logging.INFO if dl.is_rank0() else logging.WARNING)" in text
    assert 'logger.setLevel("DEBUG" if dl.is_rank0() else logging.WARNING)' in text
    assert 'dl.rank0(logging.FileHandler)("train.log")' in text
    assert 'dl.rank0(sys.stdout.write)("done")' in text
    assert 'dl.rank0(show)("done")' in text


COX = """def cox_loss(risk, y):
    return -(risk - torch.logcumsumexp(risk, 0)).mean()
"""
COUNTS = "a mean over what counts"
BENT = "a loss of means over the batch that is no mean itself"


@pytest.mark.parametrize(
    ("before", "loss", "says"),
    [
        ("", "torch.nn.functional.cross_entropy(a @ a.t(), torch.arange(len(a)))", ["compares the samples of a batch"]),
        (COX, "cox_loss(a, y)", ["compares the samples of a batch"]),
        ("crit = torch.nn.CrossEntropyLoss(torch.ones(3))\n", "crit(a, y)", [COUNTS]),
        ("crit = torch.nn.CrossEntropyLoss(weight=torch.ones(3), reduction='sum')\n", "crit(a, y) / 8", []),
        ("crit = torch.nn.BCEWithLogitsLoss(weight=torch.ones(3))\n", "crit(a, y)", []),
        ("", "torch.nn.functional.cross_entropy(a, y, ignore_index=0)", [COUNTS]),
        ("", "torch.nn.functional.cross_entropy(a, y, None)", []),
        ("def masked(a, y, m):\n    return ((a - y) * m).sum() / m.sum()\n", "masked(a, y, y > 0)", [COUNTS]),
        ("", "((a - y) * (y > 0)).sum() / (y > 0).sum().clamp(min=1)", [COUNTS]),
        ("", "((a - y) * (y > 0)).sum() / max((y > 0).sum(), 1)", [COUNTS]),
        ("", "((a - y) ** 2).sum() / len(y)", []),
        ("", "torch.sqrt(torch.nn.functional.mse_loss(a, y))", [BENT]),
        ("", "torch.nn.functional.mse_loss(a, y).sqrt()", [BENT]),
        ("", "torch.nn.functional.mse_loss(a, y) + (a.mean() - 0.5) ** 2", [BENT]),
        ("", "torch.nn.functional.mse_loss(a, y) * torch.nn.functional.l1_loss(a, y)", [BENT]),
        ("", "torch.nn.functional.mse_loss(a, y) * len(y) / 8", []),
        ("", "torch.sqrt((a - y).pow(2)).mean() * 0.5 ** 2", []),
        ("", "scaler.scale(torch.nn.functional.mse_loss(a, y))", []),
    ],
)
def test_a_loss_between_samples_or_over_what_counts_of_them_is_doubted(before, loss, says):
    report = port(f"""{HEAD}{MADE}{LOADER}{before}
for epoch in range(9):
    for i, (x, y) in enumerate(loader):
        a = model(x)
        loss = {loss}
        loss.backward()
        opt.step()
        print((a > y).sum() / (y > 0).sum())
""").report()
    assert [text for text in ("compares the samples of a batch", COUNTS, BENT) if text in report] == says


@pytest.mark.parametrize(("batch", "danger"), [("local", "low"), ("global", "high")])
def test_a_loss_that_bends_means_is_another_one_where_the_ranks_share_a_batch(batch, danger):
    report = port(
        f"""{HEAD}{MADE}{LOADER}
for x, y in loader:
    torch.sqrt(torch.nn.functional.mse_loss(model(x), y)).backward()
    opt.step()
""",
        Options(batch=batch),
    )
    assert [d.danger for d in report.doubts if d.why.startswith(BENT)] == [danger]


def test_arrays_that_a_loss_function_reads_as_globals_are_cut():
    text = port(f"""import torch
points = torch.linspace(0, 1, 128).reshape(-1, 1)
def loss_of():
    return (model(points.clone()) ** 2).mean()
{MADE.replace("2, 1", "1, 1")}
for it in range(50):
    loss = loss_of()
    loss.backward()
    opt.step()
""").text
    assert 'points = dl.shard(points, batch="global")  # this rank\'s samples' in text


TRAINER = """import torch
from sklearn.metrics import f1_score
from torch.utils.data import DataLoader
class Trainer:
    def __init__(self):
        self.model = torch.nn.Linear(2, 1)
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(self.opt)
        self.loaders = {"train": DataLoader(one, 8, shuffle=True), "test": DataLoader(two, 8)}
        self.kept = []
    def run(self, phase):
        total, wrong, guesses, truth = 0.0, 0, [], []
        for x, y in self.loaders[phase]:
            out = self.model(x)
            loss = (out - y).pow(2).mean()
            if phase == "train":
                loss.backward()
                self.opt.step()
            total += loss.item() * len(x)
            wrong += len(x)
            guesses += out.argmax(1).tolist()
            truth += y.tolist()
        return total / wrong, f1_score(truth, guesses)
    def fit(self):
        for epoch in range(9):
            loss, f1 = self.run("train")
            self.kept.append(loss)
            self.plateau.step(loss)
            print(loss, f1)
        print(self.run("test"))
Trainer().fit()
"""


def test_training_begins_once_where_a_method_trains_and_tests():
    text = port(TRAINER).text
    assert text.count("dl.broadcast(") == 1
    assert "dl.broadcast(self.model, self.opt)  # every rank starts from rank 0's state\n        dl.reseed()" in text
    assert text.index("dl.broadcast(") > text.index("def fit")


def test_training_begins_again_where_the_model_is_made_anew():
    again = '        self.model = torch.nn.Linear(2, 1)\n        print(self.run("train'
    text = port(TRAINER.replace('        print(self.run("test', again)).text
    assert text.count("dl.broadcast(") == 2


def test_several_numbers_of_one_evaluation_are_averaged_each_and_none_twice():
    ported = port(TRAINER)
    assert "        total, wrong = dl.total(total, wrong)" in ported.text
    assert "        guesses, truth = dl.gather(guesses, truth, over=self.loaders[phase])" in ported.text
    assert "self.plateau.step(loss)" in ported.text
    assert "print(loss, f1)" in ported.text and 'print(self.run("test"))' in ported.text


def test_a_score_of_what_was_gathered_is_not_doubted():
    assert not [d for d in port(TRAINER).doubts if "f1_score sees this rank's samples alone" in d.why]


CENTERS = """
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)
        self.register_buffer("centers", torch.zeros(2, 3))

    def forward(self, x):
        return self.layer(x)

    def follow(self, features, y):
        for k in y.unique():
            self.centers[k] -= 0.5 * (self.centers[k] - features[y == k]).mean(0)

model = Net()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
centers, right, counted = torch.zeros(2, 3), torch.zeros(2), torch.zeros(2, 2)
for x, y in DataLoader(data, shuffle=True):
    features = model(x)
    loss = F.cross_entropy(features, y) + ADDED
    opt.zero_grad()
    loss.backward()
    opt.step()
    MOVES
    right += (features.argmax(1) == y).sum()
    if right.sum() > 100:
        print(right)
"""


@pytest.mark.parametrize(
    ("moves", "added", "doubted"),
    [
        ("model.follow(features.detach(), y)", "(features - model.centers[y]).pow(2).mean()", "self.centers"),
        (
            "model.centers[y] = 0.9 * model.centers[y] + features.detach()",
            "(features - model.centers[y]).pow(2).mean()",
            "model.centers",
        ),
        ("model.centers.lerp_(features.mean(0), 0.1)", "(features - model.centers[y]).mean()", "model.centers"),
        ("centers.index_add_(0, y, 0.1 * features.detach())", "(features - centers[y]).pow(2).mean()", "centers"),
        ("centers = 0.9 * centers + 0.1 * features.detach().mean(0)", "(features - centers).mean()", "centers"),
        ("centers += 0.1 * torch.randn(2, 3)", "(features - centers[y]).pow(2).mean()", "centers"),  # of its own, too
        ("centers[y] = 0.9 * centers[y] + 0.1 * x[:, :3]", "(features - centers[y]).pow(2).mean()", "centers"),
        ("centers[y] = features.detach()", "(features - centers[y]).pow(2).mean()", "centers"),
        ("centers[epoch] = 3.0", "(features - centers[y]).pow(2).mean()", ""),
        ("centers.index_add_(0, y, features.detach())", "0", ""),  # which nothing reads
        ("for p in model.parameters(): p.data.mul_(0.99)", "(features - centers[y]).mean()", ""),
    ],
)
def test_tensors_that_each_rank_moves_with_its_own_samples_are_doubted_where_training_reads_them(moves, added, doubted):
    report = port(CENTERS.replace("MOVES", moves).replace("ADDED", added)).report()
    assert (f"{doubted} moves with this rank's samples or chance" in report) == bool(doubted)
    assert ("samples or chance" in report) == bool(doubted)


def test_entries_of_an_array_that_each_rank_writes_for_its_own_samples_are_added_up() -> None:
    script = "import numpy as np\n" + CENTERS.replace("torch.zeros(2, 3)", "np.ones(2)")
    moves = "centers[y.numpy()] = features.detach().numpy()[:, 0]"
    ported = port(script.replace("MOVES", moves).replace("ADDED", "torch.tensor(centers).mean()"))
    (write,) = [d.write for d in ported.doubts if "samples or chance" in d.why]
    added = "dl.broadcast(centers + (dl.total(centers - was) - (centers - was)))"
    assert write == f"was = centers.copy() before this line, and centers = {added} after it"


@pytest.mark.parametrize(
    ("moves", "write"),
    [
        (
            "centers[y] = features.detach()",
            "centers.copy_(dl.broadcast(centers + (dl.total(centers - was) - (centers - was))))",
        ),
        (
            "centers[y] += x[:, :3]",
            "centers.copy_(dl.broadcast(centers + (dl.total(centers - was) - (centers - was))))",
        ),
        (
            "centers[y] = 0.9 * centers[y] + 0.1 * x[:, :3]",
            "centers.copy_(dl.broadcast(centers + (dl.total(centers - was) - (centers - was))))",
        ),
        ("centers.mul_(0.9).add_(0.1 * features.detach().mean())", "centers.copy_(dl.average(centers))"),
    ],
)
def test_the_line_to_write_for_such_a_tensor_adds_what_the_ranks_add_and_averages_the_rest(moves, write):
    report = port(CENTERS.replace("MOVES", moves).replace("ADDED", "(features - centers[y]).pow(2).mean()")).report()
    assert write in report


RUNNING = """
import gymnasium as gym
import numpy as np
import torch

class Running:
    def __init__(self, shape):
        self.n, self.seen = 0, []
        self.mean = np.zeros(shape)
        self.var = np.ones(shape)

    def update(self, x):
        MOVES

    def __call__(self, x):
        self.update(x)
        return (x - self.mean) / np.sqrt(self.var)

class Agent:
    def __init__(self):
        self.net = torch.nn.Linear(4, 2)
        self.opt = torch.optim.Adam(self.net.parameters())

    def act(self, s):
        return self.net(torch.tensor(s).float()).argmax().item()

    def learn(self, memory):
        adv = torch.tensor([r for _, r in memory]).float()
        adv = (adv - adv.mean()) / adv.std()
        for k in range(4):
            out = self.net(torch.tensor(np.array([s for s, _ in memory])).float())
            loss = -(out.max(1).values * adv).mean()
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()

env = gym.make("CartPole-v1")
agent, norm = Agent(), Running(4)
for step in range(100):
    memory, s = [], norm(env.reset()[0])
    for t in range(50):
        s_, r, done, cut, _ = env.step(agent.act(s))
        memory.append((s, r))
        s = norm(s_)
    agent.learn(memory)
"""


@pytest.mark.parametrize(
    ("moves", "doubted"),
    [
        ("self.mean = self.mean + 0.1 * (x - self.mean)", True),
        ("old = self.mean.copy()\n        self.mean = old + 0.1 * (x - old)", True),
        ("self.mean, self.var, self.n = joined(self.mean, self.var, self.n, x)", True),
        ("self.n += 1", False),
        ("self.mean = self.var * 0", False),
    ],
)
def test_arrays_that_keep_a_mean_of_what_each_rank_sees_are_doubted_once(moves, doubted):
    doubts = [d for d in port(RUNNING.replace("MOVES", moves)).doubts if "samples or chance" in d.why]
    assert [d.write.split(" before")[0] for d in doubts] == ["self.mean = dl.average(self.mean)"] * doubted


def test_the_statistics_of_a_librarys_normalised_environment_are_doubted():
    wrapped = RUNNING.replace("MOVES", "pass").replace(
        "\nagent,", "\nenv = gym.wrappers.NormalizeObservation(env)\nagent,"
    )
    assert [d.danger for d in port(wrapped).doubts if "local episodes" in d.why] == ["medium"]


LATE = """
import torch
from torch.utils.data import DataLoader

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head, self.begun = torch.nn.Linear(4, 3), None, False
        self.shift = torch.nn.Parameter(torch.zeros(3))
        self.register_buffer("noise", torch.zeros(3))

    def begin(self, z):
        BEGIN
        self.begun = True

    def forward(self, x):
        z = self.body(x)
        if not self.begun:
            self.begin(z)
        return self.noise + self.shift + (z if self.head is None else self.head(z))

model = Net()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for i, x in enumerate(DataLoader(data, shuffle=True)):
    loss = model(x).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""


@pytest.mark.parametrize(
    ("begin", "doubted"),
    [
        ("self.shift.data.copy_(-z.mean(0))", "self.shift moves with this rank's samples or chance"),
        ("self.shift.data = -z.detach().mean(0)", "self.shift moves with this rank's samples or chance"),
        ("self.head = torch.nn.Linear(z.shape[1], 3)", "self.head is made while the model computes"),
        ("self.shift.data.clamp_(-1, 1)", ""),  # alike on all ranks
        ("self.seen = torch.zeros(3)", ""),
        ("self.noise.copy_(z.mean(0))", "self.noise moves with this rank's samples or chance"),
        ("self.noise.copy_(torch.randn(3))", ""),  # drawn anew
        ("self.noise = self.noise.type_as(z)", ""),  # of the same kind
        ("self.noise = self.noise.to(z) + z.new_zeros(3)", ""),
        ("self.noise = self.noise.type_as(z) + z.mean(0)", "self.noise moves with this rank's samples or chance"),
    ],
)
def test_what_the_first_batch_makes_of_a_model_is_doubted(begin, doubted):
    doubts = [d.why for d in port(LATE.replace("BEGIN", begin)).doubts if d.danger == "high"]
    assert [d.split(":")[0].split(",")[0] for d in doubts] == ([doubted] if doubted else [])


def test_an_optimizer_that_is_made_anew_at_a_step_is_made_at_the_ranks_own():
    text = port(f"""{HEAD}{MADE}{LOADER}rate, ramp = 0.1, total // 2
batches = iter(loader)
for step in range(total):
    x, y = next(batches)
{UPDATE.replace("        ", "    ")}    if step >= ramp:
        rate = rate / 10
        opt = torch.optim.SGD(model.parameters(), lr=rate)
        ramp = ramp * 3
""").text
    assert "if step >= dl.steps(ramp):" in text and "ramp = ramp * 3" in text and "range(dl.steps(total))" in text


def test_two_models_that_one_function_made_are_both_broadcast_where_they_are_handed_on():
    text = port(f"""{HEAD}
def made(width):
    return torch.nn.Sequential(torch.nn.Linear(2, width), torch.nn.BatchNorm1d(width), torch.nn.Linear(width, 1))
def distill(teacher, student):
    opt = torch.optim.SGD(student.parameters(), lr=0.1)
    for x, y in loader:
        loss = (student(x) - teacher(x).detach()).pow(2).mean()
        loss.backward()
        opt.step()
{LOADER}
teacher, student = made(8), made(2)
distill(teacher, student)
""").text
    assert "dl.broadcast(teacher, student, opt)" in text
