"""Ways in which scripts train: each leaves what one process does on the whole batch, with overlap and without."""

import hashlib
import itertools
import warnings

import dl_comm.torch as dl
import torch
from dl_comm import _core
from torch import nn
from torch_versions import with_a_scaler

_r, _n = dl.get_rank(), dl.get_nranks()
_mse = nn.functional.mse_loss


class _Averaging:
    """What a script's step has to know: its rows of a batch, and what to call before the step. Serially, nothing."""

    def __init__(self, mode):
        self.rows = slice(None) if mode == "serial" else slice(_r, None, _n)
        self.serial, self.overlaps = mode == "serial", mode == "overlap"

    def __call__(self, *optimizers):
        for optimizer in optimizers if not self.serial else ():
            dl.gradients(optimizer)

    def begin(self, *optimizers):
        for optimizer in optimizers if self.overlaps else ():
            dl.overlap(optimizer)


def _trains_like_one_process(train, rtol=1e-9, infinities=(False, True)):
    """``train(averaging, batch)`` returns the model it trained; ``batch(k, *shape)`` is this process's part.

    All is done again with an infinity among the last rank's numbers: then the same parameters must be no numbers.
    """

    def run(mode, infinite):
        averaging, calls = _Averaging(mode), itertools.count(1)

        def batch(k, *shape):
            generator = torch.Generator().manual_seed(k)
            whole = torch.randn(4 * _n, *shape, dtype=torch.float64, generator=generator)
            if infinite and next(calls) == 3:
                whole[_n - 1].view(-1)[-1] = float("inf")
            return whole[averaging.rows]

        torch.manual_seed(1)
        return [p.detach() for p in train(averaging, batch).parameters()]

    for infinite in infinities:
        expected = run("serial", infinite)
        for mode in ("plain", "overlap"):
            got = run(mode, infinite)
            for one, many in zip(expected, got, strict=True):
                torch.testing.assert_close(many, one, rtol=rtol, atol=rtol, equal_nan=True)
            bits = b"".join(p.contiguous().numpy().tobytes() for p in got)
            assert len(set(_core.allgather_bytes(hashlib.sha256(bits).digest()))) == 1


def _net():
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)).double()


def accumulation_with_another_number_of_backwards_in_each_step():
    for set_to_none in (True, False):

        def train(average, batch, set_to_none=set_to_none):
            model = _net()
            optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
            average.begin(optimizer)
            for k in range(6):
                optimizer.zero_grad(set_to_none=set_to_none)
                count = (1, 3, 2, 2, 1, 4)[k]
                for i in range(count):
                    (_mse(model(batch(10 * k + i, 6)), batch(99 + 10 * k + i, 2)) / count).backward()
                average(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 0.3)
                optimizer.step()
            return model

        _trains_like_one_process(train)


def two_networks_against_each_other():
    def train(average, batch):
        made, judge = _net(), nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1)).double()
        of_made, of_judge = torch.optim.Adam(made.parameters(), 0.01), torch.optim.Adam(judge.parameters(), 0.01)
        average.begin(of_made, of_judge)
        for k in range(4):
            of_judge.zero_grad()
            (judge(made(batch(k, 6)).detach()).mean() - judge(batch(50 + k, 2)).square().mean()).backward()
            average(of_judge)
            of_judge.step()
            of_made.zero_grad()
            judge(made(batch(k, 6))).square().mean().backward()  # leaves gradients in the judge, too
            average(of_made)
            of_made.step()
        return nn.ModuleList([made, judge])

    _trains_like_one_process(train)


@with_a_scaler
def a_scaler_skips_the_step_in_which_one_sample_overflows():
    def train(average, batch):
        model = _net()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
        average.begin(optimizer)
        for k in range(6):
            optimizer.zero_grad()
            x = batch(k, 6)
            if k == 2 and (average.serial or _r == 0):
                x[0] = float("inf")  # the first sample of the whole batch
            scaler.scale(_mse(model(x), batch(50 + k, 2))).backward()
            average(optimizer)
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
        return model

    _trains_like_one_process(train)


def sparse_tables_shared_weights_and_channels_last():
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(9, 4, sparse=True)
            self.back = nn.Linear(4, 9, bias=False)
            self.back.weight = self.table.weight if _tied else self.back.weight
            self.conv = nn.Conv2d(4, 3, 3)

        def forward(self, x):
            picked = self.table((x[:, 0].abs() * 3).long().clamp(max=8))
            images = x.reshape(len(x), 4, 4, 4).to(memory_format=torch.channels_last)
            return self.back(picked).sum(1) + self.conv(images).sum((1, 2, 3))

    for _tied in (False, True):

        def train(average, batch):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                model = Mixed().double().to(memory_format=torch.channels_last)
            optimizer = torch.optim.SGD(model.parameters(), 0.01)
            average.begin(optimizer)
            for k in range(4):
                optimizer.zero_grad()
                _mse(model(batch(k, 64)), batch(50 + k)).backward()
                average(optimizer)
                optimizer.step()
            return model

        _trains_like_one_process(train)


def compiled_models_and_parameters_that_thaw():
    def train(average, batch):
        model = _net()
        compiled = torch.compile(model, backend="aot_eager")
        optimizer = torch.optim.AdamW(model.parameters(), 0.01)
        average.begin(optimizer)
        model[0].weight.requires_grad_(False)
        for k in range(5):
            if k == 2:
                model[0].weight.requires_grad_(True)
            optimizer.zero_grad()
            _mse(compiled(batch(k, 6)), batch(50 + k, 2)).backward()
            average(optimizer)
            optimizer.step()
        return model

    _trains_like_one_process(train)


def parameters_that_join_the_optimizer_later():
    def train(average, batch):
        model, head = _net(), nn.Linear(2, 2).double()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for k in range(4):
            if k == 2:
                optimizer.add_param_group({"params": list(head.parameters()), "lr": 0.05})
            optimizer.zero_grad()
            _mse(head(model(batch(k, 6))), batch(50 + k, 2)).backward()
            average(optimizer)
            optimizer.step()
        return nn.ModuleList([model, head])

    _trains_like_one_process(train)
