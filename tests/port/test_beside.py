"""A list of batches that a loop goes through beside a loader is shared like the loader."""

import pytest
from small import refused

from dlrun.port import port

SCRIPT = """import torch
from torch.utils.data import DataLoader, TensorDataset
x, other = torch.randn(48, 2), torch.randn(48, 2)
loader = DataLoader(TensorDataset(x), batch_size=4, shuffle={shuffle})
batches = {batches}
model = torch.nn.Linear(2, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for {target} in {source}:
    loss = model(x).pow(2).mean() + {loss}
    opt.zero_grad()
    loss.backward()
    opt.step()
"""


def made(
    shuffle="True", batches="other.split(4)", target="(x,), u", source="zip(loader, batches)", loss="model(u).mean()"
):
    return SCRIPT.format(shuffle=shuffle, batches=batches, target=target, source=source, loss=loss)


@pytest.mark.parametrize(
    ("written", "changed"),
    [
        ({}, "in zip(loader, dl.shard(list(batches))):"),
        ({"batches": "list(other.split(4))"}, "in zip(loader, dl.shard(list(batches))):"),
        ({"batches": "[torch.randn(4, 2) for _ in range(12)]"}, "in zip(loader, dl.shard(batches)):"),
        (
            {"source": "zip(torch.split(other, 4), loader)", "target": "u, (x,)"},
            "in zip(dl.shard(list(torch.split(other, 4))), loader):",
        ),
        (
            {"source": "enumerate(zip(loader, batches))", "target": "i, ((x,), u)"},
            "in enumerate(zip(loader, dl.shard(list(batches)))):",
        ),
        (
            {"batches": "[(other[i:i + 4], i) for i in range(0, 48, 4)]", "target": "(x,), (u, _)"},
            "in zip(loader, dl.shard(batches)):",
        ),
        (
            {
                "batches": "[(other[i:i + 4], i) for i in range(0, 48, 4)]",
                "target": "(x,), (u, _)",
                "loss": "0\n    x = torch.cat([x, u])\n    loss = model(x).mean()",
            },
            "in zip(loader, dl.shard(batches)):",
        ),
        (
            {"batches": "[]\nfor i in range(0, 48, 4):\n    batches.append(other[i:i + 4])"},
            "in zip(loader, dl.shard(batches)):",
        ),
        (
            {"batches": "[]\nfor i in range(12):\n    batches.append(0.9 ** i)", "loss": "u * model(x).mean()"},
            "in zip(loader, batches):",
        ),
        ({"batches": "[0.1, 0.2] * 6", "loss": "u * model(x).mean()"}, "in zip(loader, batches):"),
        ({"batches": "[k / 12 for k in range(12)]", "loss": "u * model(x).mean()"}, "in zip(loader, batches):"),
        ({"source": "zip(loader, range(99))", "loss": "u * model(x).mean()"}, "in zip(loader, range(dl.steps(99))):"),
    ],
)
def test_batches_beside_a_shuffled_loader_are_shared_and_numbers_are_not(written, changed):
    assert changed in port(made(**written)).text


def test_batches_that_belong_to_those_of_a_loader_in_its_order_are_refused():
    error = refused(made(shuffle="False"))
    assert "batches is picked by the number of the batch" in error.message
    assert "put both into its data set" in error.hint


TABLES = """import torch
sets = {{k: torch.randn(40, 2) for k in ("a", "b")}}
at = {{k: 0 for k in sets}}
model = torch.nn.Linear(2, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(60):
    k = list(sets)[step % 2]
    x = sets[k][at[k] : at[k] + 4]
    {moves}
    loss = model({taken}).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""


@pytest.mark.parametrize("moves", ["at[k] = (at[k] + 4) % 40", "at[k] += 4"])
def test_samples_at_positions_that_a_table_keeps_are_doubted(moves):
    high = [d for d in port(TABLES.format(moves=moves, taken="x")).doubts if d.danger == "high"]
    assert [d.write for d in high] == ["sets = dl.shard(sets) before the loop"]


def test_a_table_of_numbers_that_moves_no_position_of_samples_is_not_doubted():
    source = TABLES.format(moves="at[k] += 4", taken="torch.randn(4, 2)").replace("[at[k] : at[k] + 4]", "")
    assert not [d for d in port(source).doubts if "slice" in d.why]


NOISE = """import torch
{made}
model = torch.nn.Linear(2, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(60):
    noise, t = {draws}
    loss = (model(t * x + (1 - t) * noise) - x).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
WHOLE = "every rank takes all of x"


@pytest.mark.parametrize(
    ("made", "draws", "doubted"),
    [
        ("x = torch.from_numpy(make_moons(400)[0])", "torch.randn(400, 2), 0.5", True),
        ("n = 400\nx = torch.linspace(0, 1, 2 * n).view(n, 2)", "torch.randn((n, 2)), 0.5", True),
        ("x = torch.from_numpy(make_moons(400)[0])", "torch.randn_like(x), torch.rand(len(x), 1)", False),
        ("x = torch.tensor([0.0, 1.0])", "torch.rand(64, 2), torch.rand(64, 1)", False),
    ],
)
def test_noise_of_as_many_rows_as_there_are_samples_is_doubted_and_not_in_their_shape(made, draws, doubted):
    told = [d.danger for d in port(NOISE.format(made=made, draws=draws)).doubts if WHOLE in d.why]
    assert told == ["medium"] * doubted
