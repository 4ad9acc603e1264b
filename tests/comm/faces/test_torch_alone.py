"""dl_comm.torch without a launcher: rank 0 of 1, where it changes nothing; and its pure functions."""

from __future__ import annotations

import os
import pickle
import random
import subprocess
import sys

import dl_comm.torch as dl
import numpy as np
import pytest
import torch
from dl_comm.machine import fair_threads, pick_gpus
from dl_comm.ranks import share
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def train(port):
    """Train a little, with all of dl_comm.torch if ``port``; return parameters and what the generators say."""
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    x, y = torch.randn(50, 4), torch.randn(50, 1)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=dl.lr_scale(0.01) if port else 0.01)
    loader = DataLoader(TensorDataset(x, y), 8, shuffle=True)
    if port:
        dl.init()
        assert dl.shard(loader) is loader
        assert dl.shard(x) is x
        dl.warmup(optimizer, dl.steps(3))
        dl.broadcast(model, optimizer)
        dl.reseed()
    for a, b in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(a), b)
        loss.backward()
        if port:
            dl.gradients(optimizer)
            assert dl.average(loss) is loss
        optimizer.step()
    bits = b"".join(t.detach().numpy().tobytes() for t in model.state_dict().values())
    return bits, torch.rand(1).item(), np.random.rand(), random.random()


def test_one_rank_computes_the_serial_bits():
    assert train(port=True) == train(port=False)


def test_one_rank_is_rank_0_of_1():
    assert (dl.get_rank(), dl.get_nranks(), dl.get_localrank(), dl.get_localsize()) == (0, 1, 0, 1)
    assert dl.is_rank0()
    assert dl.rank0(len) is len
    assert dl.rank0_first(len)("abc") == 3
    assert dl.average(3) == 3
    assert dl.total(3) == 3
    assert dl.broadcast(3) == 3
    assert dl.steps(1e5) == 1e5 == dl.serial_steps(1e5) == dl.serial_iteration(1e5)
    assert dl.compound(0.99) == 0.99
    dl.barrier()


def test_a_wrong_argument_is_an_error_on_one_rank_too():
    with pytest.raises(TypeError, match=r"compound\(\) got str '0.9'; a factor is a float"):
        dl.compound("0.9")
    with pytest.raises(TypeError, match="optimizer, a module"):
        dl.gradients("model")
    with pytest.raises(TypeError, match="DataLoader"):
        dl.shard(3)
    with pytest.raises(TypeError, match="modules, optimizers"):
        dl.broadcast(object())
    with pytest.raises(TypeError, match="a number, a tensor"):
        dl.average("0.5")
    with pytest.raises(ValueError, match="no rule 'cubic'"):
        dl.lr_scale(0.1, rule="cubic")


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path):
    dl.save({"a": 1}, tmp_path / "model.pt")
    with pytest.raises((AttributeError, pickle.PicklingError), match="local object"):  # by the version of Python
        dl.save({"a": lambda: 0}, tmp_path / "model.pt")
    assert dl.load(tmp_path / "model.pt") == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["model.pt"]


def test_a_folder_that_takes_no_new_file_is_no_obstacle_to_one_that_is_there(tmp_path, monkeypatch):
    dl.save({"a": 1}, tmp_path / "model.pt")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    dl.save({"a": 2}, tmp_path / "model.pt")
    assert dl.load(tmp_path / "model.pt") == {"a": 2}
    with pytest.raises(RuntimeError, match="nowhere"):
        dl.save({"a": 1}, tmp_path / "nowhere" / "model.pt")


def test_a_checkpoint_for_which_there_is_no_room_says_so(tmp_path):
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))"
    save = "import torch, dl_comm.torch as dl; dl.save(torch.zeros(100_000), 'last.pt')"
    done = subprocess.run([sys.executable, "-c", f"{limit}\n{save}"], cwd=tmp_path, capture_output=True, text=True)
    assert "OSError: [Errno 27] File too large: the checkpoint was not written: " in done.stderr
    assert not any(tmp_path.iterdir())


KILLED = """
import os, sys, signal, threading, time, torch
import dl_comm.torch as dl
from dl_comm.torch import checkpoint
if sys.argv[1] == "named":
    checkpoint._holds_unnamed = lambda folder: False
class Ends:
    def __reduce__(self): os.kill(os.getpid(), signal.SIGKILL)
dl.save([torch.ones(100_000), Ends()] if sys.argv[2] == "killed" else torch.ones(3), "big.pt")
"""


@pytest.mark.parametrize("how", ["unnamed", pytest.param("named", marks=pytest.mark.wide)])
def test_a_save_that_is_killed_leaves_nothing_for_longer_than_to_the_next(tmp_path, how):
    for end, code, left in (("killed", -9, [] if how == "unnamed" else [".saving-"]), ("well", 0, ["big.pt"])):
        done = subprocess.run([sys.executable, "-c", KILLED, how, end], cwd=tmp_path, check=False)
        assert done.returncode == code
        assert [path.name[:8] if path.name[0] == "." else path.name for path in tmp_path.iterdir()] == left
        for path in tmp_path.glob(".saving-*"):
            os.utime(path, (0, 0))  # a folder that is new may be one in use
    assert torch.load(tmp_path / "big.pt").tolist() == [1, 1, 1]
    (tmp_path / "plain").mkdir()
    torch.save(torch.ones(3), tmp_path / "plain/big.pt")
    assert (tmp_path / "big.pt").read_bytes() == (tmp_path / "plain/big.pt").read_bytes()


def test_a_saved_link_stays_a_link(tmp_path):
    (tmp_path / "real.pt").write_bytes(b"")
    (tmp_path / "link.pt").symlink_to("real.pt")
    dl.save({"a": 1}, tmp_path / "link.pt")
    assert (tmp_path / "link.pt").is_symlink()
    assert dl.load(tmp_path / "real.pt") == {"a": 1}


@pytest.mark.parametrize(
    ("visible", "picks"),
    [
        ([["a", "b"], ["a", "b"]], [0, 1]),  # all see the same list
        ([["a", "b"], ["b", "a"]], [0, 0]),  # each sees its own first
        ([["a"], ["b"]], [0, 0]),  # each sees its own only
        ([["a"], ["a"], ["a"]], [0, 0, 0]),  # more ranks than GPUs
        ([["a", "b"]] * 4, [0, 1, 0, 1]),
        ([[], []], [0, 0]),
    ],
)
def test_ranks_of_a_node_spread_over_its_gpus(visible, picks):
    assert pick_gpus(visible) == picks


def test_cores_are_divided_among_the_ranks_that_may_use_them():
    assert fair_threads([range(8)] * 2, 0) == 4
    assert fair_threads([range(4), range(4, 8)], 1) == 4
    assert fair_threads([range(2)] * 3, 2) == 1
    assert fair_threads([range(8), range(4, 8)], 0) == 6


def test_shares_are_equal_and_cover_everything():
    for length in (0, 5, 6, 7):
        for n in (1, 2, 3, 5):
            parts = [share(length, r, n) for r in range(n)]
            assert len(set(map(len, parts))) == 1
            assert {i for part in parts for i in part} == set(range(length))
