"""Rows of sums, and tables of means, that are shown as they are."""

from __future__ import annotations

import pytest

from dlrun.port import Options, port

SCRIPT = """
import numpy as np, torch
from torch.utils.data import DataLoader
model = torch.nn.Linear(8, 2)
opt = torch.optim.SGD(model.parameters(), 0.1)
loader = DataLoader(data, batch_size=16, shuffle=True)
for epoch in range(4):
    sums, parts, places = np.zeros(2), torch.zeros(2), np.zeros(n_classes)
    stats = {{"loss": 0.0, "near": 0.0}}
    for k, (x, y) in enumerate(loader, 1):
        out = model(x)
        loss, near = torch.nn.functional.cross_entropy(out, y), out.pow(2).mean()
        (loss + near).backward()
        opt.step()
        sums += [loss.item(), near.item()]
        parts += torch.tensor([loss.item(), near.item()])
        places += out.detach().numpy().sum(0)
        stats["loss"] += loss.item()
        stats["near"] += near.item()
    print(epoch, {shown})
"""


@pytest.mark.parametrize(
    ("shown", "summed", "written"),
    [
        ("*(sums / k)", "sums", "*(sums / dl.serial_steps(k))"),
        ("sums / k", "sums", "sums / dl.serial_steps(k)"),
        ("(parts / k).tolist()", "parts", "(parts / dl.serial_steps(k)).tolist()"),
        ("sums / len(data)", "sums", "sums / len(data)"),
        ("places / k", "places", "places / dl.serial_steps(k)"),
        (
            "{n: v / k for n, v in stats.items()}",
            'stats["loss"], stats["near"]',
            "{n: v / dl.serial_steps(k) for n, v in stats.items()}",
        ),
        ("{n: 1 for n, v in stats.items()}", "", "{n: 1 for n, v in stats.items()}"),
    ],
)
def test_rows_and_tables_that_are_shown_are_means_over_the_ranks(shown, summed, written) -> None:
    text = port(SCRIPT.format(shown=shown)).text
    assert not summed or f"    {summed} = dl.total({summed})" in text
    assert f"print(epoch, {written})" in text


OF_SAMPLES = """
import torch
from collections import defaultdict
from torch.utils.data import DataLoader
model = torch.nn.Linear(8, 2)
opt = torch.optim.SGD(model.parameters(), 0.1)
rows, seen = {made}, 0
for x, y in DataLoader(data, batch_size=16):
    out = model(x)
    torch.nn.functional.cross_entropy(out, y).backward()
    opt.step()
    for score, label in zip(out[:, 0], y):
        {keeps}
        seen += 1
print(rows)
"""


@pytest.mark.parametrize("batch", ["local", "global"])
@pytest.mark.parametrize(
    ("made", "keeps"),
    [
        ("{}", "rows[len(rows)] = score.item()"),
        ("{}", "rows[seen] = {'score': score.item()}"),
        ("{}", "rows[f'{seen:05d}'] = score.item()"),
        ("defaultdict(dict)", "rows[len(rows)]['score'] = score.item()"),
        ("defaultdict(lambda: defaultdict(dict))", "at = len(rows); rows[at]['score'] = score.item()"),
        ("[0.0] * 96", "rows[seen] = score.item()"),
    ],
)
def test_rows_under_numbers_that_each_rank_counts_for_itself_are_told(made, keeps, batch) -> None:
    ported = port(OF_SAMPLES.replace("{made}", made).replace("{keeps}", keeps), Options(batch=batch))
    assert [d.name for d in ported.doubts if d.danger == "medium"] == ["unknown-placement"]
    assert "counts this rank's own" in ported.doubts[0].why and "gather" not in ported.text


def test_rows_under_labels_or_beside_a_length_are_merged() -> None:
    for keeps in ("rows[label.item()] = rows.get(label.item(), 0) + 1", "rows['last'] = len(rows)"):
        assert not port(OF_SAMPLES.replace("{made}", "{}").replace("{keeps}", keeps)).doubts
