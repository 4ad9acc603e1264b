"""A trainer of 2018 for PyTorch: the plugin's optimizer, and whatever else scripts do with an optimizer around it."""

import copy
import io
import json
import os
import pickle
import warnings

import ml_comm_torch as cdl
import torch
from torch.optim import lr_scheduler, swa_utils

warnings.simplefilter("error")
cdl.init_mpi()
rank, size = cdl.get_rank(), cdl.get_nranks()
data = torch.Generator().manual_seed(3)
xs, ys = torch.randn(36, 5, generator=data).double(), torch.randn(36, 1, generator=data).double()


class Net(torch.nn.Sequential):
    def __init__(self):
        torch.manual_seed(rank)
        super().__init__(torch.nn.Linear(5, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
        self.double()


SCHEDULES = {
    "onecycle": lambda opt: lr_scheduler.OneCycleLR(opt, 0.2, total_steps=6),
    "cosine": lambda opt: lr_scheduler.CosineAnnealingWarmRestarts(opt, 2),
    "lambda": lambda opt: lr_scheduler.LambdaLR(opt, lambda e: 0.5**e),
    "cyclic": lambda opt: lr_scheduler.CyclicLR(opt, 0.01, 0.1, step_size_up=2, mode="triangular2"),
    "sequence": lambda opt: lr_scheduler.SequentialLR(
        opt, [lr_scheduler.LinearLR(opt, 0.1, total_iters=2), lr_scheduler.ExponentialLR(opt, 0.9)], [2]
    ),
    "swa": lambda opt: swa_utils.SWALR(opt, 0.05, anneal_epochs=2),
    "plateau": lambda opt: lr_scheduler.ReduceLROnPlateau(opt, patience=0),
}


def loss_of(model, step):
    rows = slice(12 * (step % 3) + rank, 12 * (step % 3 + 1), size)
    return torch.nn.functional.mse_loss(model(xs[rows]), ys[rows])


def backward(model, step):
    loss = loss_of(model, step)
    loss.backward()
    return loss


def plain(model, opt, step):
    opt.zero_grad(set_to_none=step % 2 == 0)
    backward(model, step)
    opt.step()


def closure(model, opt, step):
    def evaluated():
        opt.zero_grad()
        return backward(model, step)

    opt.step(evaluated)


scaler = torch.amp.GradScaler("cpu", init_scale=8.0)


def scaled(model, opt, step):
    opt.zero_grad()
    scaler.scale(loss_of(model, step)).backward()
    scaler.unscale_(opt)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9)
    scaler.step(opt)
    scaler.update()


def resumed(model, opt):
    file = io.BytesIO()
    torch.save({"opt": opt.state_dict(), "model": model.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file)
    again = Net()
    again.load_state_dict(saved["model"])
    opt = distributed(torch.optim.SGD(again.parameters(), lr=1.0, momentum=0.5))
    opt.load_state_dict(saved["opt"])
    return again, opt


def copied(model, opt):
    model, opt = pickle.loads(pickle.dumps(copy.deepcopy((model, opt))))
    return model, copy.copy(opt)


def grown(model, opt):
    late = torch.nn.Parameter(torch.ones(1, dtype=torch.float64))
    last, bias = model[2], model[2].bias
    model.register_parameter("late", late)
    last.forward = lambda x: torch.nn.functional.linear(x, last.weight, bias) * late
    opt.add_param_group({"params": [late], "lr": 0.01})
    return model, opt


def distributed(own):
    opt = cdl.DistributedOptimizer(own, 1000, 1, 2, 0.10, 0, 1)
    assert isinstance(opt, torch.optim.Optimizer) and isinstance(opt.state_dict(), dict) and repr(opt)
    return opt


def trained(kind, one_step=plain, schedule=None, change=None, watch=False, **settings):
    model, seen, grads = Net(), [], None
    opt = distributed(kind(model.parameters(), lr=0.1, **settings))
    schedule = SCHEDULES[schedule](opt) if schedule else None
    if watch:
        opt.register_step_pre_hook(lambda o, args, kwargs: seen.append(model[0].weight.grad.sum().item()))
        opt.register_step_post_hook(lambda o, args, kwargs: seen.append(model[0].weight.sum().item()))
    for step in range(4):
        one_step(model, opt, step)
        if grads is None:
            grads = [p.grad.ravel().tolist() for p in model.parameters()]
        if schedule:
            schedule.step(*[1.0] * isinstance(schedule, lr_scheduler.ReduceLROnPlateau))
        if change and step == 1:
            model, opt = change(model, opt)
    weights = [p.detach().ravel().tolist() for p in model.parameters()]
    return [grads, weights, [float(g["lr"]) for g in opt.param_groups], seen]


sgd, heavy = torch.optim.SGD, {"momentum": 0.9}
record = {name: trained(sgd, schedule=name, **heavy) for name in SCHEDULES}
record["onecycle of adam"] = trained(torch.optim.Adam, schedule="onecycle")
record["hooks"] = trained(sgd, watch=True, **heavy)
record["scaler"] = trained(sgd, scaled, **heavy)
record["resumed"] = trained(sgd, change=resumed, **heavy)
record["copied"] = trained(sgd, change=copied, **heavy)
record["copied adam"] = trained(torch.optim.AdamW, change=copied)
record["grown"] = trained(sgd, change=grown, **heavy)
record["closure"] = trained(torch.optim.LBFGS, closure, max_iter=3)  # more makes much of the last bit
record["closure of sgd"] = trained(sgd, closure, **heavy)
record["fused"] = trained(torch.optim.Adam, fused=True)
record["sparing"] = trained(torch.optim.Adagrad)
with open(os.path.join(os.environ["RECORDS"], "%d.json" % rank), "w") as file:
    json.dump({"weights": list(record.values()), **record}, file)
cdl.finalize()
