"""Scripts in the styles that people write them in: each trains like one process, with overlap and without."""

import tempfile

import dl_comm.torch as dl
import torch
from dl_comm import _core
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch_situations import _mse, _n, _net, _trains_like_one_process
from torch_versions import with_a_scaler


class _Trainer:
    """The class that many frameworks have: groups, a schedule, accumulation, clipping, an average, checkpoints."""

    def __init__(self, average, seed):
        torch.manual_seed(seed)
        self.average = average
        self.model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 2)).double()
        plain = [p for name, p in self.model.named_parameters() if name.endswith("bias") or p.dim() == 1]
        decayed = [p for p in self.model.parameters() if all(p is not q for q in plain)]
        groups = [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0, "lr": 0.02}]
        self.optimizer = torch.optim.AdamW(groups, 0.01)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda k: min(1.0, (k + 1) / 3))
        self.ema = torch.optim.swa_utils.AveragedModel(
            self.model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
        )
        self.step = 0

    def parts(self):
        return {name: getattr(self, name) for name in ("model", "optimizer", "schedule", "ema")}

    def train(self, batch, until, accumulate=2):
        while self.step < until:
            for i in range(accumulate):
                k = 10 * self.step + i
                (_mse(self.model(batch(k, 6)), batch(99 + k, 2)) / accumulate).backward()
            self.average(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
            self.optimizer.step()
            self.schedule.step()
            self.optimizer.zero_grad()
            self.ema.update_parameters(self.model)
            self.step += 1

    def save(self, path):
        state = {name: part.state_dict() for name, part in self.parts().items()} | {"step": self.step}
        (torch.save if self.average.serial else dl.save)(state, path)

    def load(self, path):
        state = (torch.load if self.average.serial else dl.load)(path)
        for name, part in self.parts().items():
            part.load_state_dict(state[name])
        self.step = state["step"]


def a_trainer_that_is_interrupted_and_goes_on_from_its_checkpoint():
    def train(average, batch):
        folder = _core.broadcast_bytes(tempfile.mkdtemp().encode(), 0).decode()
        rank = 0 if average.serial else dl.get_rank()
        path = f"{folder}/alone-{dl.get_rank()}.pt" if average.serial else f"{folder}/ported.pt"
        first = _Trainer(average, 1 + rank)
        if not average.serial:
            dl.broadcast(*first.parts().values())
        average.begin(first.optimizer)
        first.train(batch, 3)
        first.save(path)
        second = _Trainer(average, 7 + rank)
        second.load(path)
        average.begin(second.optimizer)
        second.train(batch, 6)
        return nn.ModuleList([second.model, second.ema.module])

    _trains_like_one_process(train)


def sequences_of_many_lengths_whose_loss_is_a_mean_over_tokens():
    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(5, 6)
            self.lstm = nn.LSTM(6, 7, num_layers=2, bidirectional=True, batch_first=True)
            self.head = nn.Linear(14, 3)

        def forward(self, words, lengths):
            packed = pack_padded_sequence(self.table(words), lengths, batch_first=True, enforce_sorted=False)
            hidden, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True, total_length=words.shape[1])
            return self.head(hidden)

    def train(average, batch):
        model = Tagger().double()
        optimizer = torch.optim.Adam(model.parameters(), 0.01)
        average.begin(optimizer)
        for k in range(4):
            words = batch(k, 9).nan_to_num(posinf=0).mul(2).long().clamp(-2, 2) + 2
            lengths = batch(50 + k).abs().mul(4).nan_to_num(posinf=0).long().clamp(0, 8) + 1
            tags = words.remainder(3).masked_fill(torch.arange(9) >= lengths[:, None], -100)
            losses = nn.functional.cross_entropy(model(words, lengths).flatten(0, 1), tags.flatten(), reduction="sum")
            # Ranks hold different numbers of tokens: the mean over ranks of sums / (tokens of all / ranks).
            tokens = lengths.sum() if average.serial else dl.total(lengths.sum()) / _n
            optimizer.zero_grad()
            (losses / tokens).backward()
            average(optimizer)
            nn.utils.clip_grad_value_(model.parameters(), 0.01)
            optimizer.step()
        return model

    _trains_like_one_process(train)


def experts_that_only_some_ranks_use():
    def train(average, batch):
        experts = nn.ModuleList([nn.Linear(6, 2) for _ in range(_n + 1)]).double()
        optimizer = torch.optim.SGD(experts.parameters(), 0.1, momentum=0.9, weight_decay=0.1)
        average.begin(optimizer)
        for k in range(5):
            x, y = batch(k, 6), batch(50 + k, 2)
            chosen = (torch.arange(4 * _n) + k)[average.rows] % _n  # one expert on each rank; one is never chosen
            optimizer.zero_grad()
            used = [(i, chosen == i) for i in chosen.unique().tolist()]
            (sum(((experts[i](x[rows]) - y[rows]) ** 2).sum() for i, rows in used) / y.numel()).backward()
            average(optimizer)
            optimizer.step()
        return experts

    _trains_like_one_process(train)


def reparametrised_layers_and_recomputed_activations():
    def train(average, batch):
        model = nn.Sequential(
            nn.utils.parametrizations.weight_norm(nn.Linear(6, 8)),
            nn.Tanh(),
            nn.utils.parametrizations.orthogonal(nn.Linear(8, 8), use_trivialization=False),
            nn.Linear(8, 2),
        ).double()
        optimizer = torch.optim.RMSprop(model.parameters(), 0.01, centered=True)
        average.begin(optimizer)
        for k in range(4):
            x = batch(k, 6)
            for layers in (model[:2], model[2:]):
                x = torch.utils.checkpoint.checkpoint(layers, x, use_reentrant=False)
            optimizer.zero_grad()
            nn.functional.huber_loss(x, batch(50 + k, 2)).backward()
            average(optimizer)
            optimizer.step()
        return model

    # An orthogonal matrix of no numbers is whatever the LAPACK below makes of it.
    _trains_like_one_process(train, rtol=1e-8, infinities=(False,))


def gradients_of_gradients():
    def train(average, batch):
        model = _net()
        optimizer = torch.optim.NAdam(model.parameters(), 0.01)
        average.begin(optimizer)
        for k in range(3):
            x = batch(k, 6).requires_grad_()
            (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
            optimizer.zero_grad()
            (_mse(model(x), batch(50 + k, 2)) + (slope.norm(dim=1) - 1).square().mean()).backward()
            average(optimizer)
            optimizer.step()
        return model

    _trains_like_one_process(train)


def steps_that_are_taken_within_backward():
    def train(average, batch):
        model = _net()
        optimizers = {p: torch.optim.SGD([p], 0.1, momentum=0.9) for p in model.parameters()}

        def step(parameter):
            average(optimizers[parameter])
            optimizers[parameter].step()
            optimizers[parameter].zero_grad()

        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(step)
        for k in range(4):
            _mse(model(batch(k, 6)), batch(50 + k, 2)).backward()
        return model

    _trains_like_one_process(train)


def a_closure_of_a_line_search_with_overlap():
    def train(average, batch):
        model = _net()
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4, line_search_fn="strong_wolfe")
        average.begin(optimizer)
        x, y = batch(1, 6), batch(2, 2)

        def closure():
            optimizer.zero_grad()
            loss = _mse(model(x), y)
            loss.backward()
            average(optimizer)
            return loss.detach() if average.serial else dl.average(loss)

        for _ in range(2):
            optimizer.step(closure)
        return model

    _trains_like_one_process(train, rtol=1e-7)


@with_a_scaler
def automatic_mixed_precision():
    def train(average, batch):
        model = _net().float()
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        average.begin(optimizer)
        for k in range(4):
            with torch.autocast("cpu", torch.bfloat16):
                loss = _mse(model(batch(k, 6).float()), batch(50 + k, 2).float())
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            average(optimizer)
            scaler.step(optimizer)
            scaler.update()
        return model

    # A gradient is rounded to 8 bits where it is computed: four steps of 0.05 times a gradient below 1.
    _trains_like_one_process(train, rtol=4 * 0.05 * 2**-8)


def statistics_of_the_global_batch():
    def train(average, batch):
        model = nn.Sequential(nn.Conv1d(3, 4, 3), nn.BatchNorm1d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2)).double()
        if not average.serial:
            model = dl.sync_batchnorm(model)
        optimizer = torch.optim.Adam(model.parameters(), 0.01)
        average.begin(optimizer)
        for k in range(4):
            optimizer.zero_grad()
            _mse(model(batch(k, 3, 6)), batch(50 + k, 2)).backward()
            average(optimizer)
            optimizer.step()
        model.register_parameter("mean", nn.Parameter(model[1].running_mean))
        model.register_parameter("var", nn.Parameter(model[1].running_var))
        return model

    _trains_like_one_process(train, rtol=1e-7)
