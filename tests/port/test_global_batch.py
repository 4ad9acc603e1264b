"""``--batch global``: n ranks take 1/n of every batch each, and leave the serial script's parameters."""

import pytest
import torch
from click.testing import CliRunner
from projects import PROJECT, lay
from running import ran

from dlrun.cli.port import command
from dlrun.errors import DlrunError
from dlrun.port import Options, port
from dlrun.port.files import port_tree

GLOBAL = Options(batch="global")
LOOP = """
import torch
from torch.utils.data import DataLoader
model = torch.nn.Linear(2, 1)
opt = torch.optim.Adam(model.parameters(), lr=0.1)
sched = torch.optim.lr_scheduler.StepLR(opt, step_size=1000)
for x, y in DataLoader(data, batch_size, shuffle=True):
    loss = (model(x) - y).pow(2).mean()
    loss.backward()
    opt.step()
    sched.step()
"""


def test_rate_and_steps_stay_and_the_loader_divides_its_batches():
    ported = port(LOOP, GLOBAL)
    assert 'dl.shard(DataLoader(data, batch_size, shuffle=True), batch="global")' in ported.text
    assert "lr=0.1)" in ported.text
    assert "step_size=1000)" in ported.text
    assert "keeps the global batch" in ported.report()
    assert "n times the learning rate" in port(LOOP).report()


@pytest.mark.parametrize(
    ("old", "new", "doubt"),
    [
        (".pow(2).mean()", ".pow(2).sum()", "multiply the loss by dl.get_nranks()"),
        ("    opt.step()", "    noise = torch.zeros(batch_size)\n    opt.step()", "batch_size is the global batch"),
        ("torch.nn.Linear(2, 1)", "torch.nn.BatchNorm1d(2)", "dl.sync_batchnorm(model)"),
    ],
)
def test_what_depends_on_the_batch_is_doubted(old, new, doubt):
    assert doubt in port(LOOP.replace(old, new), GLOBAL).report()
    assert "doubts" in port(LOOP, GLOBAL).report()
    assert doubt not in port(LOOP, GLOBAL).report()


def test_a_loss_that_is_a_sum_where_it_evaluates_is_not_doubted():
    score = "error = torch.nn.functional.mse_loss(model(x), y, reduction='sum').item()\n"
    assert "multiply the loss" not in port(f"{LOOP}with torch.no_grad():\n    {score}", GLOBAL).report()
    assert "multiply the loss" in port(LOOP + score, GLOBAL).report()


def test_batches_that_are_no_loaders_are_refused():
    source = LOOP.replace("for x, y in DataLoader(data, batch_size, shuffle=True):",
                          "for i in range(0, 900, 9):\n    x, y = a[i:i + 9], b[i:i + 9]")  # fmt: skip
    assert "dl.shard(range(0, 900, 9))" in port(source).text
    with pytest.raises(DlrunError, match=r"script:7: --batch global divides the batches of a DataLoader; .* by number"):
        port(source, GLOBAL)
    with pytest.raises(DlrunError, match="for PyTorch so far"):
        port("import keras\nmodel.compile('sgd')\nmodel.fit(x)\n", GLOBAL)


def test_scaling_the_rate_and_keeping_the_global_batch_exclude_each_other(tmp_path):
    script = lay(tmp_path)
    result = CliRunner().invoke(command, ["--batch", "global", "--lr-scaling", "sqrt", str(script)])
    assert result.exit_code == 2
    assert "go with --batch local" in result.output.replace("\n", " ")


@pytest.fixture(scope="module")
def serial(tmp_path_factory):
    """The project's folder, and what the serial script left."""
    folder = tmp_path_factory.mktemp("serial")
    script = lay(folder / "project", PROJECT)
    return script, *ran(script, folder / "run")


@pytest.mark.parametrize("ranks", [2, 4])
def test_n_ranks_leave_the_serial_parameters_to_rounding(ranks, serial, tmp_path):
    script, said, parameters = serial
    port_tree(script, tmp_path / "out", GLOBAL)
    shown, shared = ran(tmp_path / "out" / "train.py", tmp_path / "run", ranks)
    for name, value in parameters.items():
        torch.testing.assert_close(shared[name], value, rtol=1e-4, atol=1e-6)
    assert "seen 24" in said
    assert shown.count("seen 24") == 2
    assert [line for line in shown.splitlines() if "epoch" in line] == [s for s in said.splitlines() if "epoch" in s]


def test_a_batch_that_the_ranks_do_not_divide_says_which_numbers_would(serial, tmp_path):
    script, _, _ = serial
    port_tree(script, tmp_path / "out", GLOBAL)
    data = tmp_path / "out" / "lab" / "data" / "digits.py"
    data.write_text(data.read_text().replace("train, batch_size, shuffle", "train, 63, shuffle"))
    with pytest.raises(AssertionError, match="a global batch of 63 cannot be divided among 2 ranks"):
        ran(tmp_path / "out" / "train.py", tmp_path / "run", 2)


ALL = """import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(10, 3)
data = TensorDataset(x, x.sum(1, keepdim=True))
model = torch.nn.Linear(3, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(4):
    for a, b in DataLoader(data, batch_size=SIZE, shuffle=True):
        loss = (model(a) - b).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
torch.save(model.state_dict(), "last.pt")
odd = x[:9]
for (a,) in DataLoader(TensorDataset(odd), batch_size=len(odd)):
    model(a).mean().backward()
    opt.step()
"""


def test_a_loader_of_one_batch_keeps_the_serial_parameters(tmp_path):
    for size in ("len(data)", "data.__len__()", "x.shape[0]", "x.size(0)"):
        text = port(ALL.replace("SIZE", size)).text
        assert 'batch="global")' in text and "lr_scale" not in text
    assert "lr_scale" in port(ALL.replace("SIZE", "len(x) // 3")).text
    (tmp_path / "train.py").write_text(ALL.replace("SIZE", "len(data)"))
    (tmp_path / "dist.py").write_text(port(ALL.replace("SIZE", "len(data)")).text)
    _, serial = ran(tmp_path / "train.py", tmp_path / "one")
    _, shared = ran(tmp_path / "dist.py", tmp_path / "two", 2)
    for name, value in serial.items():
        torch.testing.assert_close(shared[name], value, rtol=1e-5, atol=1e-6)
