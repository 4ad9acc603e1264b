"""Counts of steps that are a function's default, and sums that decide."""

import pytest
from running import ran
from small import HEAD, LOOP

from dlrun.port import port

SCRIPT = """
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(3)

def train(model, opt, *, most=1000):
    done = 0
    for step in range(1, most + 1):
        x = torch.rand(4, 2)
        loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        done += 1
    return done

model = torch.nn.Linear(2, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
done = train(model, opt, most=8)
loader = DataLoader(TensorDataset(torch.arange(48.0).view(24, 2)), batch_size=4)
best, kept = 0.0, []
for epoch in range(2):
    total = other = 0.0
    for (x,) in loader:
        loss = x.mean() + 0 * model(x).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item()
        other += loss.item()
    if total > 99.0:
        best = total
        torch.save(best, "best.pt")
    if other > 1.0:
        torch.save(other, "last.pt")
    kept.append(other)
"""


def test_a_default_is_not_what_calls_give_and_a_sum_that_decides_is_of_all_ranks(tmp_path):
    ported = port(HEAD + SCRIPT).text
    kept = ported.replace("dl.finalize()", "dl.save(torch.tensor([done, best, *kept]), 'last.pt')\ndl.finalize()")
    (tmp_path / "train.py").write_text(kept)
    _, (done, *totals) = ran(tmp_path / "train.py", tmp_path / "2", 2)
    assert done == 8  # steps, of which each of 2 ranks takes 4
    assert [round(float(t), 3) for t in totals] == [141.0, 141.0, 141.0]  # of six batches, as in the serial run


FLAG = """opt = torch.optim.Adam(model.parameters())
done, spent = False, 0.0
while not done:
    for x, y in DataLoader(data, shuffle=True):
        start = time.time()
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        opt.step()
        spent += time.time() - start
        if {test}:
            done = True
"""


@pytest.mark.parametrize(
    ("test", "alike"),
    [
        ("loss.item() < 0.01", "done = dl.maximum(done)"),
        ("spent > 100", "done = dl.maximum(done)"),
        ("len(x) < 8", "if len(x) < 8:"),
    ],
)
def test_what_ends_the_training_in_another_line_is_decided_alike(test, alike):
    assert alike in port("import time\n" + HEAD + FLAG.format(test=test)).text


@pytest.mark.parametrize(
    "chosen",
    [f"config.{how}('optimizer', torch.optim.SGD)" for how in ("get", "pop")] + ["getattr(torch.optim, name)"],
)
def test_an_entry_that_is_a_class_stays_a_class_also_where_its_name_becomes_the_optimizer(chosen):
    text = port(HEAD + LOOP.replace("opt = ", f"opt = {chosen}\nopt = opt(model.parameters(), lr=0.1)\nother = ")).text
    assert f"opt = {chosen}\nopt = opt(model.parameters(), lr=dl.lr_scale(0.1))\n" in text


def test_keras_is_imported_once_for_all_optimizers_that_strings_stand_for() -> None:
    made = "model = Sequential([Dense(1)])\nmodel.compile(optimizer='adam', loss='mse')\nmodel.fit(x, x)\n"
    text = port(f"from keras.layers import Dense\nfrom keras.models import Sequential\nx = load()\n{made}{made}").text
    assert text.count("import keras\n") == 1 and text.count("keras.optimizers.Adam(") == 2
