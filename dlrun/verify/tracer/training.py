"""The training step: backward, clipping, zero_grad, the optimizers' steps, and the random numbers drawn meanwhile."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from dlrun.verify.tracer import calls, compiler
from dlrun.verify.tracer.by_hand import ByHand
from dlrun.verify.tracer.counted import Counted
from dlrun.verify.tracer.importing import changed, number_of
from dlrun.verify.tracer.iteration_seeds import Turns
from dlrun.verify.tracer.lineage import Lineage
from dlrun.verify.tracer.loaders import Loaders
from dlrun.verify.tracer.options import base_rates, options_of
from dlrun.verify.tracer.quiet import is_still
from dlrun.verify.tracer.randomness import Draws, states
from dlrun.verify.tracer.recorder import Recorder, is_user_file
from dlrun.verify.tracer.tensors import (
    batch_digest,
    digest,
    is_parameter,
    leaves,
    lengths,
    named_tensors,
    rows,
    tensor_note,
)
from dlrun.verify.tracer.values import KEPT, kind_of

NOISE = (nn.modules.dropout._DropoutNd, nn.RReLU)
NORMS = (nn.modules.batchnorm._BatchNorm,)


class Training:
    """Follows parameters through the steps of their optimizers.

    Optimizers are numbered in the order of their first step, parameters in the order in which they are first seen.
    """

    def __init__(self, recorder: Recorder, draws: Draws, loaders: Loaders) -> None:
        self.recorder, self.draws, self.loaders = recorder, draws, loaders
        self._optimizers: dict[int, tuple[int, Optimizer]] = {}
        self._held: dict[int, int] = {}  # how many parameters each had at its last step
        self._last: Optimizer | None = None
        self._parameters: dict[int, tuple[int, torch.Tensor]] = {}
        self._names: dict[int, str] = {}
        self._norms: dict[int, nn.Module] = {}
        self.moved: set[int] = set()  # layers whose statistics local batches moved since they were averaged
        self._renewed: dict[int, nn.Module] = {}  # whose statistics were made anew
        self._taken: tuple[int, dict[str, Any]] = (-1, {})  # by the last call that did not train
        self._depth, self._evaluates = 0, False  # nested calls of modules; whether one that does not train runs
        self._stepping: set[int] = set()
        self._grads: list[Any] = []
        self._before: list[
            Any
        ] = []  # what backward made, where no dl.gradients() has averaged it and it is another now
        self._rates: list[float] = []
        self.made: dict[int, Any] = {}  # the gradient of each parameter, as the last backward left it
        self.turns = Turns(recorder)
        self.by_hand = ByHand(recorder, self._described)
        self.lineage = Lineage(recorder, is_parameter)
        self._rounds: dict[int, int] = {}  # steps of each optimizer
        self.averaged = False  # by dl.gradients(), since the last step
        self.broadcast: set[int] = set()  # ids and addresses of tensors that dl_comm has broadcast

    def number(self, tensor: torch.Tensor) -> int:
        """Return a small number for a tensor object, the same one each time."""
        return self._parameters.setdefault(id(tensor), (len(self._parameters), tensor))[0]

    def optimizer_number(self, optimizer: Optimizer) -> int | None:
        """Return the number of an optimizer, None of one that has not stepped."""
        return self._optimizers.get(id(optimizer), (None,))[0]

    def stepped(self, last: bool = False) -> set[int]:
        """Return the ids of the parameters that optimizers hold, or the one that made the ``last`` step."""
        optimizers = [optimizer for _, optimizer in self._optimizers.values() if not last or optimizer is self._last]
        groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        by_hand = self.by_hand.parameters if self.by_hand.wanted else []
        return {id(p) for p in [*by_hand, *(p for group in groups for p in group["params"])]}

    def has_seen(self, optimizer: Optimizer) -> bool:
        """Whether any of an optimizer's parameters had a part in an earlier step."""
        return any(id(p) in self._parameters for group in optimizer.param_groups for p in group["params"])

    @property
    def names(self) -> set[str]:
        """The names that parameters have in their models."""
        return set(self._names.values())

    def name_of(self, parameter: Any) -> str:
        """Return the name of a parameter in its model, its number where it was not seen in one."""
        return self._names.get(id(parameter)) or f"parameter {self.number(parameter)}"

    def forward(self, call: Callable[..., Any], module: nn.Module, args: Any, kwargs: Any) -> Any:
        """Run a module's call; of the outermost one note input, kinds of layers and use of random numbers."""
        if self._depth or self.recorder.inside or not (module.training and torch.is_grad_enabled()):
            return self._evaluated(call, module, args, kwargs)
        for name, parameter in module.named_parameters():
            self._names.setdefault(id(parameter), name)
        self.settle()
        self.lineage.given([*args, *kwargs.values()])
        before = states()
        self._depth += 1
        try:
            return call(module, *args, **kwargs)
        finally:
            self._depth -= 1
            layers = list(module.modules())
            quiet = self.recorder.orders.quiet
            self._norms |= {id(m): m for m in layers if isinstance(m, NORMS)}
            self.recorder.note(
                "forward",
                hash=batch_digest([args, kwargs]),
                rows=rows(args, kwargs),
                columns=rows(args, kwargs, axis=1),
                lengths=lengths(args, kwargs),
                noise=not quiet and any(isinstance(m, NOISE) and getattr(m, "p", 1) for m in layers),
                norm=any(isinstance(m, NORMS) and not (quiet and is_still(m)) for m in layers),
                drew=[name for name, state in states().items() if not quiet and before.get(name, state) != state],
                **({"statistics": statistics} if (statistics := "" if quiet else self.statistics()) else {}),
            )
            self.moved |= {id(m) for m in layers if isinstance(m, NORMS) and m.training and m.track_running_stats}

    def _evaluated(self, call: Callable[..., Any], module: nn.Module, args: Any, kwargs: Any) -> Any:
        """Run a module's call that does not train; of the outermost one note the statistics of batch norm it takes."""
        if self._depth or self._evaluates or self.recorder.inside:
            return call(module, *args, **kwargs)
        self._evaluates = True
        try:
            return call(module, *args, **kwargs)
        finally:
            self._evaluates = False
            self._renew(module)
            taken = [m for m in module.modules() if isinstance(m, NORMS) and not m.training and m.track_running_stats]
            facts = {"statistics": _digest(taken), "moved": any(id(m) in self.moved for m in taken)} if taken else {}
            if (self.recorder.steps, facts) != self._taken and facts:
                self._taken = (self.recorder.steps, facts)
                self.recorder.note("evaluated", **facts)

    def _renew(self, module: nn.Module) -> None:
        """Take note of statistics that are made anew of a shard, without gradients, as ``update_bn`` does."""
        if self.loaders.totals.read in self.loaders.shared:
            made = {id(m): m for m in module.modules() if isinstance(m, NORMS) and m.training and m.track_running_stats}
            self._renewed |= made
            self.moved |= set(made)

    def statistics_in(self, what: Any) -> dict[str, bool]:
        """Return whether what is saved ``holds`` batch norm's statistics, and whether own batches moved them."""
        here = {tensor.data_ptr() for _, tensor in named_tensors("", what)}
        norms = (self._norms | self._renewed).items()
        kept = {key for key, norm in norms if here & {b.data_ptr() for b in norm.buffers(False)}}
        return {"holds": bool(kept & set(self._norms)), "moved": bool(kept & self.moved)}

    def averaged_statistics(self, what: Any) -> None:
        """Take note that the statistics in modules, or these tensors, have become all ranks'."""
        for thing in what:
            here = {id(buffer) for buffer in (thing.buffers() if isinstance(thing, nn.Module) else [thing])}
            norms = (self._norms | self._renewed).items()
            self.moved -= {key for key, norm in norms if here & {id(b) for b in norm.buffers(False)}}

    def target(self, target: Any) -> None:
        """Note what the script's own call of a loss compares with, while it trains."""
        if not self._depth and not self.recorder.inside and torch.is_grad_enabled():
            self.recorder.note("loss", rows=rows((), {"target": target}), columns=rows((), {"target": target}, axis=1))

    def settle(self) -> None:
        """Note an update that was made by hand, where one was."""
        steps = self.recorder.steps
        self.by_hand.settle(states)
        if self.recorder.steps > steps:
            self.lineage.stepped(self.recorder.steps)
            self.turns.stepped()
        if self.recorder.orders.frozen:
            self.by_hand.take_back()

    def before_step(self, optimizer: Optimizer, *_: Any) -> None:
        """Note that a step begins; on an optimizer's first step, its parameters."""
        if id(optimizer) in self._stepping:
            return  # a step of a subclass calling its base's
        self._stepping.add(id(optimizer))
        self.lineage.paused = True
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        known, self._held[id(optimizer)] = self._held.get(id(optimizer), 0), len(parameters)
        if 0 < known < len(parameters):
            joined = self._described(parameters[known:])
            self.recorder.note("joined", optimizer=self._optimizers[id(optimizer)][0], **joined)
        if id(optimizer) not in self._optimizers:
            number = len(self._optimizers)
            self._optimizers[id(optimizer)] = (number, optimizer)
            facts = self._described(parameters) | {"base": base_rates(optimizer), "options": options_of(optimizer)}
            self.recorder.note("optimizer", optimizer=number, type=type(optimizer).__name__, **facts)
            self.by_hand.wanted = False
            # The optimizer's own hooks come after this one and may average, or change the rate (a warm-up): look then.
            optimizer.register_step_pre_hook(self._look)

    def _described(self, parameters: list[torch.Tensor]) -> dict[str, Any]:
        """Return the names, numbers and values of parameters, and which of them were broadcast."""
        return {
            "names": [self._names.get(id(p), f"parameter {i}") for i, p in enumerate(parameters)],
            "ids": [self.number(p) for p in parameters],
            "broadcast": [bool({id(p), p.data_ptr()} & self.broadcast) for p in parameters],
            "params": [tensor_note(p) for p in parameters],
        }

    def _look(self, optimizer: Optimizer, *_: Any) -> None:
        """Note the gradients and rates with which the step is made."""
        held = [p for group in optimizer.param_groups for p in group["params"]]
        self._grads = [tensor_note(p.grad) for p in held]
        made = [] if self.averaged else [self.made.get(id(p)) for p in held]
        self._before = made if any(changed(*pair) for pair in zip(made, self._grads, strict=False)) else []
        self._rates = [float(group["lr"]) for group in optimizer.param_groups if "lr" in group]

    def after_step(self, optimizer: Optimizer, *_: Any) -> None:
        """Note a finished step: rates, gradients used, parameters reached, and the generators' states."""
        if id(optimizer) not in self._stepping:
            return
        self._stepping.discard(id(optimizer))
        self._last, self.lineage.paused = optimizer, False
        self._rounds[id(optimizer)] = self._rounds.get(id(optimizer), 0) + 1
        self.lineage.stepped(min(self._rounds.values()))
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self.recorder.steps, self.recorder.known = self.recorder.steps + 1, self.recorder.made
        self.recorder.note(
            "step",
            step=self.recorder.steps,
            optimizer=self._optimizers[id(optimizer)][0],
            lr=self._rates,
            grads=self._grads,
            params=[tensor_note(p) for p in parameters],
            states=states(),
            drew=self._drew(),
            **({"made": self._before} if self._before else {}),
        )
        self.averaged = False
        self.turns.stepped()

    def statistics(self) -> str:
        """Return a hash of batch norm's statistics; nothing where there are none."""
        return _digest(self._norms.values())

    def is_shadow(self, value: Any) -> bool:
        """Whether a list, tuple or dict keeps a tensor for each parameter of an optimizer from step to step."""
        parts = list(value.values() if isinstance(value, dict) else value)
        if not parts or not all(isinstance(part, torch.Tensor) for part in parts):
            return False
        groups = [optimizer.param_groups for _, optimizer in self._optimizers.values()]
        trained = [[p for group in g for p in group["params"]] for g in groups] or [self.by_hand.parameters]
        shapes, values = [part.shape for part in parts], [self.lineage.of(part) for part in parts]
        kept = all(v is not None and (v.born < v.round or v.accumulates) for v in values)
        return kept and any(shapes == [p.shape for p in parameters] for parameters in trained)

    def is_memory(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is known to keep what it was given, as a queue does, and not to compute itself on."""
        value = self.lineage.of(tensor)
        return value is not None and value.round > 0 and kind_of(value) == KEPT

    def _drew(self) -> list[str]:
        drew = self.draws.collect()
        return drew if self.recorder.steps > 1 or self.loaders.fed else []  # else the model was built since


def _digest(norms: Iterable[nn.Module]) -> str:
    """Return a hash of the statistics of these layers of batch norm."""
    return "".join(digest(buffer)[:4] for norm in norms for buffer in norm.buffers())


def _settle_after_no_grad(training: Training) -> None:
    """Take back what the script updates by hand, without gradients, at once: an evaluation may follow."""
    leave = torch.no_grad.__exit__

    def left(self: Any, *error: Any) -> None:
        leave(self, *error)
        if is_user_file(sys._getframe(1).f_code.co_filename):
            training.settle()

    torch.no_grad.__exit__ = left  # type: ignore[method-assign]


def install(recorder: Recorder, draws: Draws, loaders: Loaders) -> Training:
    """Put the instruments into modules, autograd, optimizers, schedulers and the functions that clip."""
    training = Training(recorder, draws, loaders)
    recorder.statistics, recorder.statistics_in = training.statistics, training.statistics_in
    compiler.leave_out()
    if recorder.orders.lineage:
        training.lineage.__enter__()  # type: ignore[no-untyped-call]
    counted = Counted(recorder, lambda array: tensor_note(torch.from_numpy(array)))
    call, backward, zero = nn.Module.__call__, torch.autograd.backward, Optimizer.zero_grad
    build = Optimizer.__init__

    @functools.wraps(call)  # by its own name: TorchScript takes a method that is called forward for the class's own
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return training.forward(call, self, args, kwargs)

    @functools.wraps(backward)
    def noted_backward(*args: Any, **kwargs: Any) -> Any:
        training.settle()
        loaders.backward()
        if recorder.done and not recorder.goes_on():
            recorder.stop()
        root = args[0] if args else kwargs["tensors"]
        recorder.note("backward", loss=number_of(root.detach()) if isinstance(root, torch.Tensor) else None)
        reached = list(leaves(root))
        result = backward(*args, **kwargs)
        training.by_hand.reached(reached)
        if recorder.orders.lineage:  # ranks with samples of their own: what they average is compared with this
            training.made.update({id(p): tensor_note(p.grad) for p in reached})
        training.lineage.backward(root)
        counted.backward()
        return result

    @functools.wraps(build)
    def made(self: Optimizer, *args: Any, **kwargs: Any) -> None:
        build(self, *args, **kwargs)
        training.by_hand.optimizers.add(self)
        recorder.made += not training.has_seen(self)

    @functools.wraps(zero)
    def zero_grad(self: Optimizer, *args: Any, **kwargs: Any) -> Any:
        recorder.note("zero_grad")
        return zero(self, *args, **kwargs)

    if recorder.orders.frozen:
        _settle_after_no_grad(training)
    nn.Module.__call__ = forward  # type: ignore[method-assign]
    torch.autograd.backward = noted_backward
    Optimizer.__init__ = made  # type: ignore[method-assign]
    Optimizer.zero_grad = zero_grad  # type: ignore[method-assign]
    register_optimizer_step_pre_hook(training.before_step)
    register_optimizer_step_post_hook(training.after_step)
    for name in ("clip_grad_norm_", "clip_grad_value_", "clip_grad_norm"):
        for module in (nn.utils, nn.utils.clip_grad):
            if hasattr(module, name):
                calls.note(recorder, module, name, "clip", training.by_hand.look)
    for scaler in {getattr(torch.amp, "GradScaler", torch.cuda.amp.GradScaler), torch.cuda.amp.GradScaler}:
        calls.note(recorder, scaler, "unscale_", "unscale")
    calls.note_restores(recorder)
    calls.note_metric(recorder)
    calls.note_precision(recorder)
    calls.note_targets(recorder, training.target)
    return training
