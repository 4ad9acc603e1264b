"""Numbers that a script saves, or names its files by, are those of all ranks."""

import pytest
from small import HEAD

from dlrun.port import port

LOOP = (
    HEAD
    + """opt = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(data, batch_size=8, shuffle=True)
import json, os
from pathlib import Path
hist = {"loss": [], "lr": [], "val": []}
kept = {"loss": [], "epochs": 0}
for epoch in range(3):
    total = 0
    for x, y in loader:
        opt.zero_grad()
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        opt.step()
        total += loss.item()
BATCH
    avg = total / len(loader)
LINES
"""
)

MEAN = """    total = dl.total(total)  # sums over all ranks' samples
    avg = total / dl.serial_steps(len(loader))"""


def ported(lines: str, batch: str = "pass") -> str:
    return port(LOOP.replace("BATCH", f"        {batch}").replace("LINES", f"    {lines}")).text


@pytest.mark.parametrize(
    "line",
    [
        'torch.save({"net": model.state_dict(), "loss": avg}, "m.pt")',
        'torch.save(model.state_dict(), f"m_{avg:.3f}.pt")',
        'torch.save(model.state_dict(), "m_%.3f.pt" % avg)',
        'path = Path("ck") / f"m_{avg:.3f}"\n    torch.save(model.state_dict(), path)',
        'os.makedirs(f"ck/{avg:.3f}")',
        'json.dump({"loss": avg}, open("m.json", "w"))',
    ],
)
def test_a_number_that_is_saved_or_names_a_file_is_that_of_all_ranks(line):
    text = ported(line)
    assert MEAN in text and "dl.average(" not in text


def test_a_loss_of_the_last_batch_that_is_saved_is_the_mean_over_the_ranks():
    text = ported('torch.save({"net": model.state_dict(), "loss": loss}, "m.pt")')
    assert "    loss = dl.average(loss)  #" in text and '"loss": loss}, "m.pt")' in text


def test_a_number_that_the_script_hands_to_a_function_that_saves_it_is_that_of_all_ranks():
    script = LOOP.replace("hist =", "def keep(state, path):\n    torch.save(state, path)\n\nhist =", 1)
    line = 'keep({"net": model.state_dict(), "loss": avg}, "m.pt")'
    text = port(script.replace("BATCH", "        pass").replace("LINES", f"    {line}")).text
    assert MEAN in text and '"loss": avg}, "m.pt")' in text


def test_lists_of_every_batch_that_are_saved_under_keys_have_all_ranks_entries():
    batch = 'hist["loss"].append(loss.item())\n        hist["lr"].append(opt.param_groups[0]["lr"])'
    text = ported('torch.save({"net": model.state_dict(), "hist": hist}, "m.pt")', batch)
    assert '    hist["loss"], hist["lr"] = dl.gather(hist["loss"], hist["lr"], since=' in text
    assert '"hist": hist}, "m.pt")' in text


def test_lists_of_every_batch_that_are_saved_beside_a_count_have_all_ranks_entries_and_the_count_stays():
    text = ported('kept["epochs"] += 1\n    torch.save(kept, "m.pt")', 'kept["loss"].append(loss.item())')
    assert '    kept["loss"] = dl.gather(kept["loss"], since=' in text and '    kept["epochs"] += 1\n' in text
    assert 'dl.save(kept, "m.pt")' in text


def test_a_number_that_decided_before_it_is_saved_is_not_averaged_again():
    text = ported('if avg < 0.5:\n        torch.save({"loss": avg}, f"m_{avg:.3f}.pt")')
    assert MEAN in text and f"{MEAN}\n    if avg < 0.5:\n" in text
    assert "dl.average(" not in text and text.count("dl.total(") == 1
