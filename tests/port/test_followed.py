"""Counts that a model keeps of its passes, and what a script keeps of its loss, smoothed, over all batches."""

import pytest

from dlrun.port import port

HEAD = """import json, torch
from torch.utils.data import DataLoader, TensorDataset
x = torch.randn(48, 2)
data = TensorDataset(x, x.sum(1, keepdim=True))
"""
ANNEALED = (
    HEAD
    + """
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.seen = torch.nn.Linear(2, 1), 0
    def forward(self, x):
        {counts}
        return self.layer(x) * max(0.1, 1.0 - self.seen / 200)

net = Net()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for epoch in range(2):
    net.train()
    for x, y in DataLoader(data, 4, shuffle=True):
        loss = (net(x) - y).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    net.eval()
    with torch.no_grad():
        print(sum((net(x) - y).pow(2).sum() for x, y in DataLoader(data, 4)))
"""
)
SMOOTHED = (
    HEAD
    + """
net = torch.nn.Linear(2, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
mean, kept = {first}, []
for x, y in DataLoader(data, 4, shuffle=True):
    loss = (net(x) - y).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    {smooths}
    kept.append(mean)
json.dump(kept, open("kept.json", "w"))
"""
)


def test_a_count_of_passes_that_evaluations_add_to_is_doubted_until_it_counts_the_training_alone():
    ported = port(ANNEALED.format(counts="self.seen += 1"))
    told = [d for d in ported.doubts if d.danger == "high"]
    assert [d.write for d in told] == ["if self.training: self.seen += 1, and port again"]
    assert "1.0 - self.seen / 200" in ported.text
    as_told = port(ANNEALED.format(counts="if self.training: self.seen += 1"))
    assert "1.0 - dl.serial_steps(self.seen) / 200" in as_told.text
    assert not as_told.doubts


def test_a_count_of_passes_that_nothing_follows_is_not_spoken_of():
    source = ANNEALED.format(counts="self.seen += 1").replace(" * max(0.1, 1.0 - self.seen / 200)", "")
    assert not port(source).doubts


@pytest.mark.parametrize(
    ("first", "smooths"),
    [
        ("0.0", "mean = 0.9 * mean + 0.1 * loss.item()"),
        ("None", "mean = loss.item() if mean is None else 0.9 * mean + 0.1 * loss.item()"),
        (
            "None",
            "if mean is None:\n        mean = loss.item()\n    else:\n        mean = 0.9 * mean + 0.1 * loss.item()",
        ),
        ("torch.zeros(())", "mean = 0.9 * mean + 0.1 * loss.detach()"),
        ("torch.tensor(0.0)", "mean = 0.9 * mean + 0.1 * loss.detach()"),
    ],
)
def test_a_smoothed_loss_that_is_saved_for_every_batch_is_doubted(first, smooths):
    doubts = [d for d in port(SMOOTHED.format(first=first, smooths=smooths)).doubts if d.danger == "medium"]
    assert [(d.name, d.why.partition(":")[0]) for d in doubts] == [("unknown-placement", "kept")]


def test_the_number_of_a_loops_turn_is_no_count_of_passes():
    """It follows the training alone: what reads it goes by the serial steps, and nothing is doubted."""
    loop = """net = torch.nn.Linear(2, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for i in range(300):
    rows = torch.randint(48, (4,))
    loss = (net(x[rows]) * max(0.1, 1.0 - i / 200)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
    ported = port(HEAD + loop)
    assert "max(0.1, 1.0 - dl.serial_steps(i) / 200)" in ported.text
    assert not ported.doubts


REUSED = """
x = torch.randn(48, 2); y = x.sum(1, keepdim=True)
first, rest = x[:40], x[40:]; first = first.float(); labels = y[:40]
net = torch.nn.Linear(2, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(first, labels), 4, shuffle=True)
for epoch in range(2):
    for x, y in loader:
        y = torch.relu(y)
        loss = (net(x) - y).pow(2).mean()
        opt.zero_grad(); loss.backward(); opt.step()
"""
WEIGHED = """
import numpy as np
net, costs = torch.nn.Linear(2, 1), np.zeros([3, 2])
opt = torch.optim.SGD(net.parameters(), lr=0.1)
loader = DataLoader(data, 4, shuffle=True)
for epoch in range(3):
    weight = costs[epoch - 1, 0] / costs[epoch - 2, 0] if epoch > 1 else 1.0
    for x, y in loader:
        loss = weight * (net(x) - y).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        costs[epoch, :1] += {part}
"""


def test_samples_made_before_a_loop_are_not_those_of_the_loop_that_takes_their_names_be_they_made_on_one_line():
    assert not port(HEAD + REUSED).doubts


@pytest.mark.parametrize(
    ("part", "write"),
    [
        ("loss.item() / len(loader)", "costs = dl.average(costs) after this line"),
        (
            "loss.item()",
            "was = costs.copy() before this line, and costs = "
            "dl.broadcast(costs + (dl.total(costs - was) - (costs - was))) after it",
        ),
    ],
)
def test_a_table_of_means_over_a_ranks_batches_is_averaged_and_one_of_sums_added_up(part, write):
    told = [d.write for d in port(HEAD + WEIGHED.format(part=part)).doubts if "costs moves" in d.why]
    assert told == [write]


KEPT = """
net, kept = torch.nn.Linear(2, 1), {"loss": [], "right": []}
opt = torch.optim.SGD(net.parameters(), lr=0.1)
loader = DataLoader(data, 4, shuffle=True)
for epoch in range(3):
    total = 0.0
    for x, y in loader:
        loss = (net(x) - y).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item()
    KEEPS
json.dump(kept, open("kept.json", "w"))
"""


@pytest.mark.parametrize(
    ("keeps", "written"),
    [
        (
            'for k, v in zip(("loss", "right"), (total / len(loader), 1.0)): kept[k].append(v)',
            "(total / dl.serial_steps(len(loader)), 1.0)): kept[k].append(v)",
        ),
        (
            'for k, v in (("loss", total / len(loader)), ("right", 1.0)): kept[k].append(v)',
            '(("loss", total / dl.serial_steps(len(loader))), ("right", 1.0)): kept[k].append(v)',
        ),
        (
            'for k, v in {"loss": total / len(loader), "right": 1.0}.items(): kept[k].append(v)',
            '{"loss": total / dl.serial_steps(len(loader)), "right": 1.0}.items(): kept[k].append(v)',
        ),
        (
            "row = dict(loss=total / len(loader), right=1.0)\n    for k in row: kept[k].append(row[k])",
            "row = dict(loss=total / dl.serial_steps(len(loader)), right=1.0)",
        ),
        ('kept["loss"] += [total / len(loader)]', 'kept["loss"] += [total / dl.serial_steps(len(loader))]'),
    ],
)
def test_numbers_that_are_kept_one_after_the_other_are_those_of_all_ranks(keeps, written):
    text = port(HEAD + KEPT.replace("KEEPS", keeps)).text
    assert "    total = dl.total(total)  #" in text and written in text


RUNNING = """
net, z, outputs = torch.nn.Linear(2, 1), torch.zeros(48, 1), torch.zeros(48, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for epoch in range(3):
    for i in range(0, 48, 4):
        out = net(x[i:i + 4])
        loss = (out - z[i:i + 4]).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        outputs[i:i + 4] = out.detach()
        {shows}
    z = 0.6 * z + 0.4 * outputs
"""


@pytest.mark.parametrize(
    ("shows", "place"), [("", "outputs[i:i + 4]"), ("print(i) if i % 16 == 0 else None", "outputs[own_i:own_i + 4]")]
)
def test_what_is_written_for_a_batchs_samples_stands_at_their_places_and_is_added_up(shows, place):
    ported = port(HEAD + RUNNING.format(shows=shows))
    assert f"{place} = out.detach()" in ported.text
    adds = "outputs.copy_(dl.broadcast(outputs + (dl.total(outputs - was) - (outputs - was)))) after it"
    assert any(d.danger == "high" and d.write.endswith(adds) for d in ported.doubts)


def test_batch_norms_statistics_are_averaged_where_a_line_does_more_than_that():
    judges = "net = torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.BatchNorm1d(1))"
    source = HEAD + KEPT.replace("KEEPS", "net.eval(); print(net(x).mean())")
    source = source.replace("net, kept = torch.nn.Linear(2, 1),", f"{judges}\nkept =")
    assert "    net.eval(); dl.average(net); print(" in port(source).text


CRITIC = """
import copy
net, critic = torch.nn.Linear(2, 2), torch.nn.Linear(2, 1)
slow = copy.deepcopy(net)
for_net, for_critic = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (net, critic))
later = torch.optim.lr_scheduler.StepLR(for_net, step_size=100)
step = 0
for epoch in range(3):
    LOOP
        for _ in range(5):
            worse = critic(net(x).detach()).mean() - critic(x).mean()
            for_critic.zero_grad()
            worse.backward()
            for_critic.step()
        loss = -critic(net(x)).mean() * min(1.0, step / 500)
        for_net.zero_grad()
        loss.backward()
        for_net.step()
        later.step()
        with torch.no_grad():
            for s, p in zip(slow.parameters(), net.parameters()):
                s.lerp_(p, 0.01)
        step += 1
        if step % 200 == 0:
            torch.save(slow.state_dict(), "slow.pt")
"""


@pytest.mark.parametrize(
    "loop",
    [
        "for x, _ in DataLoader(data, 4, shuffle=True):",
        "for i in range(0, 48, 4):\n        x = data.tensors[0][i:i + 4]",
        "for i in range(300):\n        x = data.tensors[0][torch.randint(48, (4,))]",
    ],
)
def test_a_step_in_which_a_critic_is_updated_more_often_counts_as_one(loop):
    text = port(HEAD + CRITIC.replace("LOOP", loop)).text
    assert "min(1.0, dl.serial_steps(step) / 500)" in text
    assert "s.lerp_(p, 1 - dl.compound(1 - 0.01))" in text
    assert "if step % dl.steps(200) == 0:" in text
    assert "step_size=dl.steps(100)" in text


def test_what_moves_once_an_epoch_forgets_as_in_the_serial_run():
    """The turns of the outer loop are no steps, where it does not update itself."""
    inner, rest = CRITIC.replace("LOOP", "for x, _ in DataLoader(data, 4, shuffle=True):").split(
        "        later.step()\n"
    )
    after = "\n".join(line.removeprefix("    ") for line in rest.splitlines())
    text = port(HEAD + inner + after).text
    assert "            s.lerp_(p, 0.01)" in text
    assert "    if dl.should_stop() or step % 200 == 0:\n        dl.save" in text


TABLED = """
import numpy as np
net = torch.nn.Linear(2, 3)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for epoch in range(3):
    hits, table = torch.zeros(3), np.zeros((3, 3))
    for x, _ in DataLoader(data, 4, shuffle=True):
        out, y = net(x), x @ torch.ones(2, 3)
        loss = (out - y).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        hits += ((out > 0) == (y > 0)).float().sum(0)
        for a, b in zip(out.argmax(1).tolist(), y.argmax(1).tolist()):
            table[a, b] += 1
    print((hits / 48).mean())
    print(READS)
"""


def test_outcomes_that_are_compared_and_counted_are_a_ranks_own():
    text = port(HEAD + TABLED.replace("READS", "epoch")).text
    assert "    hits = dl.total(hits)  #" in text and "    print((hits / 48).mean())" in text


@pytest.mark.parametrize(("reads", "read"), [("table.trace() / table.sum()", True), ("epoch", False)])
def test_a_table_whose_entries_a_ranks_own_samples_pick_is_that_of_all_ranks_where_it_is_read(reads, read):
    ported = port(HEAD + TABLED.replace("READS", reads))
    assert ("    hits, table = dl.total(hits, table)  #" in ported.text) == read
    assert not [d for d in ported.doubts if d.danger == "medium"]


RECALLED = """
net, weights = torch.nn.Linear(2, 3), torch.ones(3)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for epoch in range(3):
    right, seen = torch.zeros(3), torch.zeros(3)
    for x, y in DataLoader(data, 4, shuffle=True):
        out, y = net(x), y[:, 0].long().clamp(0, 2)
        loss = torch.nn.functional.cross_entropy(out, y, weight=weights)
        opt.zero_grad()
        loss.backward()
        opt.step()
        hit = out.argmax(1) == y
        right.index_add_(0, y, hit.float())
        seen.index_add_(0, y, torch.ones(len(y)))
    weights = 1.5 - right / seen.clamp(min=1)
"""


def test_weights_of_classes_that_follow_hits_follow_those_of_all_ranks():
    ported = port(HEAD + RECALLED)
    assert "    right, seen = dl.total(right, seen)  #" in ported.text


@pytest.mark.xfail(strict=True, reason="weights that are made of totals are still doubted as local")
def test_weights_of_classes_that_follow_hits_are_doubted_only_where_nothing_makes_them_serial():
    assert not [d for d in port(HEAD + RECALLED).doubts if d.danger == "high"]
    told = [d.why for d in port(HEAD + RECALLED.replace("    weights =", "    if epoch:\n        weights =")).doubts]
    assert not [why for why in told if "weights" in why]
    ahead = RECALLED.replace("hit = ", "right *= 0.9\n        hit = ")  # forgets, and is no sum
    assert any("weights" in d.why for d in port(HEAD + ahead).doubts if d.danger == "high")


FADED = """
class Fade:
    def __init__(self, first, last, steps): self.first, self.last, self.steps = first, last, steps
    def __call__(self, step): return self.first + (self.last - self.first) * min(step / self.steps, 1.0)
def train(net, loader, parts_of, fades):
    opt, step = torch.optim.SGD(net.parameters(), lr=0.1), 0
    for epoch in range(3):
        for x, y in loader:
            total = 0.0
            for name, part in parts_of(net(x), y).items():
                part = part.mean()
                part *= fades[name](step)
                total += part
            opt.zero_grad()
            total.backward()
            opt.step()
            if not step % every:
                print("step", step)
            step += 1
every, net = 4, torch.nn.Linear(2, 3)
parts = lambda out, y: {"data": (out - y).pow(2), "size": out.pow(2)}
train(net, DataLoader(data, 4), parts, {"data": Fade(1, 1, 1), "size": Fade(1.0, 0.1, 24)})
"""


def test_weights_of_parts_of_a_loss_follow_the_serial_steps_in_a_loop_over_the_parts():
    text = port(HEAD + FADED).text
    assert "part *= fades[name](dl.serial_steps(step))" in text


@pytest.mark.parametrize("fade", ["fading.linear", "fading.Fade(3)", "fading.Fade(3).at"])
def test_weights_that_a_library_out_of_sight_makes_of_the_steps_are_told(fade):
    source = "import fading\n" + HEAD + FADED.replace("fades[name](step)", f"{fade}(step)")
    assert [d.why for d in port(source).doubts if d.danger == "high" and "weighs the loss by the steps" in d.why]


@pytest.mark.parametrize(
    ("behind", "written"),
    [
        ("weight = weight * 1.1 if total / seen > 0.2 else weight * 0.9", "if total / seen > 0.2 else"),
        ("weight = min(1.0, 0.01 * seen)", "weight = min(1.0, 0.01 * seen)"),
        ("weight = min(1.0, steps / 100)", "weight = min(1.0, dl.serial_steps(steps) / 100)"),
    ],
)
def test_a_count_by_which_a_weight_changes_behind_the_loop_is_made_serial_once(behind, written):
    ported = port(
        f"""{HEAD}
net = torch.nn.Linear(2, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
weight, steps = 1.0, 0
for epoch in range(2):
    total, seen = 0.0, 0
    for x, y in DataLoader(data, 4, shuffle=True):
        loss = (net(x) - y).pow(2).mean() + weight * net(x).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item()
        seen += 1
        steps += 1
    {behind}
"""
    )
    assert written in ported.text
    assert ("seen = dl.total(" in ported.text or "total, seen = dl.total(" in ported.text) is ("seen" in behind)


def test_what_corrects_a_young_average_follows_the_serial_steps():
    text = port(
        f"""{HEAD}
class Smooth:
    def __init__(self, beta):
        self.beta, self.mean, self.steps = beta, 0.0, 0
    def __call__(self, new):
        self.steps += 1
        self.mean = self.beta * self.mean + (1 - self.beta) * new
        return self.mean / (1 - self.beta**self.steps)
net = torch.nn.Linear(2, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
smooth, mean = Smooth(0.9), 0.0
for epoch in range(2):
    for i, (x, y) in enumerate(DataLoader(data, 4, shuffle=True)):
        loss = (net(x) - y).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        mean = 0.9 * mean + 0.1 * loss.item()
        seen = smooth(loss.item())
    print(seen, mean / (1 - 0.9 ** (i + 1)))
"""
    ).text
    assert "return self.mean / (1 - self.beta**dl.serial_steps(self.steps))" in text
    assert "print(seen, mean / (1 - 0.9 ** dl.serial_steps(i + 1)))" in text


@pytest.mark.parametrize("asks", [True, False])
def test_epochs_that_are_counted_where_a_loader_ends_are_those_of_the_serial_script(asks):
    takes = (
        "batch = next(it, None)\n    if batch is None:"
        if asks
        else "try:\n        x, y = next(it)\n    except StopIteration:"
    )
    text = port(
        f"""{HEAD}
net = torch.nn.Linear(2, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
loader = DataLoader(data, 4, shuffle=True)
it, epoch, seen, total = iter(loader), 0, 0, 0.0
while epoch < 2:
    {takes}
        print(epoch, seen, total / seen)
        it = iter(loader)
        epoch += 1
        seen, total = 0, 0.0
        continue
    {"x, y = batch" if asks else "pass"}
    weight = 0.5 if epoch < 3 else 1.0
    loss = weight * (net(x) - y).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if epoch >= 5:
        weight = 0.1
    total += loss.item()
    seen += 1
"""
    ).text
    assert "while epoch < 2:" in text and "0.5 if epoch < 3 else 1.0" in text and "if epoch >= 5:" in text
    assert "print(epoch, dl.serial_steps(seen), dl.total(total) / dl.serial_steps(seen))" in text
