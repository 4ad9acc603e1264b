"""What ``broadcast``, ``save`` and ``load`` must do on every rank."""

import copy
import hashlib
import io
import pickle
import tempfile
from pathlib import Path
from types import SimpleNamespace

import dl_comm.torch as dl
import numpy as np
import torch
from agreement import go_on_alike
from dl_comm import CommError, _core
from torch import nn
from torch_versions import with_a_scaler

_r, _n = dl.get_rank(), dl.get_nranks()


def _on_rank0(value):
    """What rank 0 has, for comparison."""
    return pickle.loads(_core.broadcast_bytes(pickle.dumps(value), 0))


def _bits(state):
    """A digest of nested state, tensors bit by bit."""
    digest = hashlib.sha256()

    def add(x):
        if isinstance(x, torch.Tensor):
            digest.update(f"{x.dtype}{tuple(x.shape)}{x.stride()}".encode())
            digest.update(x.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        elif isinstance(x, dict):
            for k, v in x.items():
                digest.update(repr(k).encode())
                add(v)
        elif isinstance(x, (list, tuple)):
            for v in x:
                add(v)
        else:
            digest.update(repr(x).encode())

    add(state)
    return digest.hexdigest()


def _assert_like_rank0(state):
    assert _bits(state) == _on_rank0(_bits(state))


def _net(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 2))


def _step(model, optimizer, times):
    for _ in range(times):
        optimizer.zero_grad()
        model(torch.randn(4, 3, 4, 4)).square().mean().backward()
        optimizer.step()


def modules_get_rank_0s_parameters_and_buffers_bit_for_bit():
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        model = _net(_r).to(dtype).to(memory_format=torch.channels_last)
        model[1].running_mean.fill_(float("nan") if _r == 0 else 1.0)
        model.register_buffer("mask", torch.tensor([_r == 0, True]))
        model.register_buffer("hidden", torch.full((2,), _r, dtype=torch.int8), persistent=False)
        expected = _on_rank0(_bits([*model.parameters(), *model.buffers()]))
        dl.broadcast(model)
        assert _bits([*model.parameters(), *model.buffers()]) == expected
        assert all(p.requires_grad and p.is_leaf for p in model.parameters())


def shared_and_copied_modules_keep_their_ties():
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.weight = first.weight
    average = torch.optim.swa_utils.AveragedModel(first)
    dl.broadcast([first, second], average, None, {"copy": copy.deepcopy(first)})
    assert second.weight is first.weight
    _assert_like_rank0([*first.parameters(), *second.parameters(), *average.state_dict().values()])


def optimizer_state_that_only_rank_0_has_is_built_on_the_others():
    builds = [
        lambda p: torch.optim.SGD(p, 0.1 + _r, momentum=0.9, nesterov=True),
        lambda p: torch.optim.Adam(p, 0.01 + _r, amsgrad=True),
        lambda p: torch.optim.AdamW(p, torch.tensor(0.01 + _r)),
        lambda p: torch.optim.Adadelta(p, rho=0.9 if _r else 0.8),
        lambda p: torch.optim.RMSprop(p, momentum=0.5, centered=True),
        lambda p: torch.optim.Adagrad(p),
    ]
    for build in builds:
        model = _net(1)
        optimizer = build(model.parameters())
        _step(model, optimizer, 3 if _r == 0 else 0)
        dl.broadcast(model, optimizer)
        _assert_like_rank0(optimizer.state_dict())
        torch.manual_seed(7)
        _step(model, optimizer, 2)
        _assert_like_rank0([optimizer.state_dict(), list(model.parameters())])


def optimizer_state_that_rank_0_lacks_is_dropped():
    model = _net(1)
    optimizer = torch.optim.Adam(model.parameters())
    _step(model, optimizer, 0 if _r == 0 else 2)
    dl.broadcast(model, optimizer)
    assert not optimizer.state
    assert optimizer.param_groups[0]["params"][0] is model[0].weight


def nested_optimizer_state_travels_too():
    model = nn.Linear(3, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
    x = torch.randn(8, 3)

    def closure():
        optimizer.zero_grad()
        loss = (model(x) - 1).square().mean()
        loss.backward()
        return loss

    if _r == 0:
        optimizer.step(closure)
    dl.broadcast(model, optimizer)
    _assert_like_rank0(optimizer.state_dict())
    assert len(optimizer.state[model.weight]["old_dirs"]) > 0


def an_optimizer_alone_carries_its_parameters():
    model = _net(_r)
    dl.broadcast(torch.optim.SGD(model.parameters(), 0.1))
    _assert_like_rank0(list(model.parameters()))


class _Noam:
    """An object of a script's own, which steps an optimizer at a rate of its own."""

    def __init__(self, optimizer):
        self.optimizer, self.steps = optimizer, 0


def the_optimizer_that_an_object_holds_is_found_in_it():
    model = _net(_r)
    held = _Noam(torch.optim.Adam(model.parameters(), 0.1 + _r))
    model(torch.randn(4, 3, 4, 4)).square().mean().backward()
    dl.broadcast(held)
    dl.gradients(held)
    _assert_like_rank0([held.optimizer.state_dict(), *(p.detach() for p in model.parameters())])
    _assert_like_rank0([p.grad for p in model.parameters()])


@with_a_scaler
def schedulers_scalers_numbers_and_arrays_follow():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0 if _r == 0 else 2.0)
    array = np.full((2, 3), _r, dtype=np.float32)[:, ::-1]
    history = {"best": 0.5 + _r, "losses": [1.0 * _r, torch.full((2,), float(_r))]}
    if _r == 0:
        for _ in range(3):
            optimizer.step()
            scheduler.step()
    dl.broadcast(optimizer, scheduler, scaler, history)
    assert scheduler.last_epoch == 3
    assert optimizer.param_groups[0]["lr"] == scheduler.get_last_lr()[0] == 0.1 * 0.1
    assert scaler.get_scale() == 8.0
    assert history["best"] == 0.5
    assert history["losses"][0] == 0.0
    assert (history["losses"][1] == 0).all()
    epoch, name, same = dl.broadcast(5 + _r, f"run{_r}", array.copy())
    assert (epoch, name) == (5, "run0")
    assert (same == 0).all()
    assert dl.broadcast((_r, None)) == (0, None)
    writer = dl.rank0(SimpleNamespace)(log_dir="runs/1")
    assert dl.broadcast(writer.log_dir) == "runs/1"


def samples_of_a_list_that_share_memory_or_hold_numbers_are_replaced():
    series = np.arange(12.0)
    order = [(i + _r) % 9 for i in range(9)]  # as each rank would shuffle
    for part in (np.copy, torch.from_numpy):
        data = part(series)
        for windows in ([data[i : i + 4] for i in order], [(data[i : i + 4], str(i)) for i in order]):
            firsts = [float((w[0] if isinstance(w, tuple) else w)[0]) for w in dl.broadcast(windows)]
            assert firsts == list(range(9)) == [int(w[1]) if isinstance(w, tuple) else w[0] for w in windows]
            assert data.tolist() == series.tolist()
    rows = [(torch.full((2,), float(_r)), torch.zeros(1, requires_grad=True))]
    row = rows[0]
    assert dl.broadcast(rows)[0] is row and row[0].tolist() == [0.0, 0.0]  # what is trained stays in place


def another_root_is_followed():
    t = torch.full((3,), float(_r))
    assert dl.broadcast(t, root=1) is t
    assert (t == 1).all()
    grown = torch.arange(12.0).reshape(3, 4)[:, ::2] + _r
    dl.broadcast(grown, root=_n - 1)
    assert grown[0, 1] == 2 + _n - 1


def random_streams_are_left_alone():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    model = nn.Linear(1, 1, device="meta").to_empty(device="cpu")
    dl.broadcast(model, torch.optim.Adam(model.parameters()))
    assert torch.equal(torch.rand(2), expected)


def generators_go_on_as_rank_0s():
    go_on_alike(dl.broadcast)


def different_structures_are_an_error_on_every_rank():
    for wrong in (nn.Linear(2, 3 if _r == _n - 1 else 4), nn.Sequential(*[nn.Linear(2, 2)] * (1 + (_r == 0)))):
        model = (
            wrong if isinstance(wrong, nn.Linear) else nn.ModuleList([nn.Linear(2, 2) for _ in range(1 + (_r == 0))])
        )
        try:
            dl.broadcast(model)
        except CommError as error:
            assert f"rank {_n - 1 if isinstance(wrong, nn.Linear) else 1}" in str(error), error
        else:
            raise AssertionError("no error")
    try:
        dl.broadcast(object())
    except TypeError as error:
        assert "object" in str(error)
    else:
        raise AssertionError("no error")


def rank_0_saves_whole_files_and_all_load_them():
    folder = Path(_on_rank0(tempfile.mkdtemp()))
    state = {"rank": _r, "weights": torch.full((3,), float(_r))}
    dl.save(state, folder / "model.pt")
    loaded = dl.load(str(folder / "model.pt"), map_location="cpu", weights_only=True)
    assert loaded["rank"] == 0
    assert [p.name for p in folder.iterdir()] == ["model.pt"]
    dl.barrier()
    dl.save({"rank": 7}, str(folder / "model.pt"))
    assert dl.load(folder / "model.pt")["rank"] == 7
    dl.barrier()
    if _r == 0:
        plain, memory = folder / "serial" / "model.pt", io.BytesIO()
        plain.parent.mkdir()
        torch.save({"rank": 7}, plain)
        assert plain.read_bytes() == (folder / "model.pt").read_bytes()
        dl.save({"rank": 1}, memory)
        assert torch.load(io.BytesIO(memory.getvalue()))["rank"] == 1
    dl.barrier()
