"""One call that makes a compiled model train on all ranks."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from typing import Any, Literal, TypeVar

from dl_comm.keras.backend import (
    alike_again,
    average_gradients,
    backend,
    broadcast,
    own_noise,
    stateful_layers,
)
from dl_comm.keras.building import build
from dl_comm.keras.callbacks import Broadcast, flat, on_this_rank
from dl_comm.keras.data import shard, split, stretches
from dl_comm.keras.evaluating import Evaluating, bound, in_order
from dl_comm.keras.global_batch import share_batches
from dl_comm.keras.lars import lars
from dl_comm.keras.metrics import folded_logs, folded_results
from dl_comm.keras.together import AverageMetrics, average_statistics, together
from dl_comm.overflow import averaged_outside
from dl_comm.rank0 import print
from dl_comm.ranks import get_nranks, get_rank
from dl_comm.rate import steps

M = TypeVar("M")
Opt = TypeVar("Opt")

# The first parameters of keras.Model.fit, for a subclass whose own fit(*args, **kwargs) passes them on.
_BY_PLACE = ("x", "y", "batch_size", "epochs", "verbose", "callbacks", "validation_split", "validation_data")
_OF_A_BATCH = ("x", "y", "sample_weight", "class_weight")  # and of train_on_batch


def distribute(
    model: M,
    shard_data: bool = True,
    callbacks: Sequence[Any] = (),
    use_lars: bool = False,
    evaluate: Literal["shared", "whole"] = "shared",
    batch: Literal["local", "global"] = "local",
    mean_step: bool = False,
) -> M:
    """Make a compiled model train on all ranks; return it. On one rank nothing changes.

    Its optimizer averages the gradients (the outermost one: with mixed precision an overflow on one rank skips the step
    on all; clipping sees the means), and ``fit`` from now on

    - trains on this rank's 1/n of ``x``, ``y`` and ``sample_weight`` (see ``shard``) with the given batch size on every
      rank, so the global batch is n times as large: scale the learning rate with ``lr_scale``. ``steps_per_epoch`` is
      divided by n. A stateful model gets a contiguous stretch of them, in whole batches, and carries each rank's states
      through it; what is left over at the end, nobody trains on. ``shard_data=False`` leaves the data to you;
    - splits off ``validation_split`` first;
    - begins with rank 0's weights and optimizer state, and averages metrics over ranks at the end of each epoch, and of
      each batch for callbacks that see it;
    - runs without XLA on TensorFlow (``jit_compile`` is switched off, with a line that says so);
    - ends on all ranks where a callback ends it on one: after an epoch, and after a batch for callbacks that see it;
    - given a ModelCheckpoint, ends behind its next save where the job was told to end (see ``should_stop``);
    - shows progress and writes files (ModelCheckpoint, TensorBoard, CSVLogger) on rank 0 only;
    - has ``callbacks`` (``WarmUp``, ``Decay``) before those it is given.

    The ranks share what ``evaluate``, ``predict`` and the validations of ``fit`` go through: rank r takes the serial
    script's batches r, r + n, ... as they are, of arrays, a tf.data.Dataset, a Sequence, a DataLoader or a generator.
    Afterwards all ranks have what one process would have: counts exactly, means to rounding; ``predict`` returns all
    rows, in order. So all ranks must call them, with the same samples. What Keras's metrics keep is added up. A class
    of metrics of the script's own that changes a state by itself says how it comes together, by an attribute
    ``fold_over_ranks``: "sum", "max" or "min", or a dict from variables' names to these. Each rank goes through all
    batches, and a line says why, where a metric does not say it, where layers draw random numbers or hand states on,
    and where a callback looks at each batch; without a line where ``shard_data`` is False, and with
    ``evaluate="whole"``.

    With ``batch="global"`` all ranks are given the same batches, as one process is, and each trains on a part of every
    one, weighed by its samples where n does not divide them: n ranks leave the parameters of one process, to rounding,
    with its learning rate and steps. Raises ``ValueError`` where the loss is no mean over the samples, where a
    ``train_step`` of the script's own may make it anything, and for stateful models. ``mean_step`` says of such a
    ``train_step`` that all losses it differentiates are means over the samples of the batch that it gets.

    Else ``train_on_batch`` takes this rank's batch, begins likewise, averages the statistics of BatchNormalization,
    too, so that all ranks evaluate one model, and returns the numbers of this batch: ``average``, ``gather`` or
    ``maximum`` bring those of all ranks together.

    ``use_lars`` gives every layer of an SGD a rate of its own (see ``lars``). Only this instance changes, no class:
    what the model saves is plain Keras and loads without dl_comm. Call it again after another ``compile`` if you do not
    call ``fit`` but ``train_on_batch``. A model that is built is broadcast at once. Raises ``ValueError`` if the model
    is not compiled, or for another word for ``evaluate``.
    """
    if evaluate not in ("shared", "whole") or batch not in ("local", "global"):
        raise ValueError(
            f"distribute() got evaluate={evaluate!r} and batch={batch!r}; they are 'shared' or 'whole', and 'local' or "
            "'global'"
        )
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None:
        raise ValueError(
            f"distribute() got the model {getattr(model, 'name', model)!r} before compile(); call it after"
        )
    if get_nranks() == 1:
        return model
    if use_lars:
        lars(optimizer)
    DistributedOptimizer(optimizer)
    _without_xla(model)
    if batch == "global":
        share_batches(model, mean_step)
    model.train_function = None  # type: ignore[attr-defined]
    if getattr(model, "built", False):
        broadcast(model)
    if not hasattr(model.fit, "_dl_comm"):  # type: ignore[attr-defined]
        model.train_on_batch = _by_hand(model, batch == "global")  # type: ignore[attr-defined]
        evaluating = Evaluating(model) if shard_data and evaluate == "shared" else None
        sharding = shard_data and batch == "local"
        model.fit = _distributed_fit(model, sharding, callbacks, use_lars, evaluating)  # type: ignore[attr-defined]
        if evaluating is not None:
            evaluating.install()
    return model


class Distribute(AverageMetrics):
    """``distribute(model, shard_data=False)`` as a callback, the first in the list, where ``fit`` is another's call.

    Gradients and metrics are averaged, and training begins with rank 0's weights. What a callback cannot do is left to
    you: the data (``shard``), writing and progress on rank 0 alone (``verbose=2 if dl.is_rank0() else 0``).
    """

    def set_model(self, model: Any) -> None:
        """Change the model's optimizer."""
        super().set_model(model)
        if get_nranks() > 1 and not hasattr(model.optimizer, "_dl_comm_averages"):
            DistributedOptimizer(model.optimizer)
            _without_xla(model)
            model.train_function = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Broadcast."""
        start = Broadcast()
        start.set_model(self.model)
        start.on_train_begin(logs)


def _without_xla(model: Any) -> None:
    if getattr(model, "jit_compile", False) is True and backend() == "tensorflow":
        print("dl_comm: jit_compile is switched off: XLA cannot compile the averaging of gradients in TensorFlow")
        model.jit_compile = False


def _distributed_fit(
    model: Any, shard_data: bool, callbacks: Sequence[Any], use_lars: bool, evaluating: Evaluating | None
) -> Any:
    plain = model.fit
    kinds = {name: part.kind for name, part in inspect.signature(plain).parameters.items()}
    named = [name for name, kind in kinds.items() if kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    by_place = _BY_PLACE if inspect.Parameter.VAR_POSITIONAL in kinds.values() else tuple(named)

    @functools.wraps(plain)
    def fit(*args: Any, **kwargs: Any) -> Any:
        options = dict(zip(by_place, args, strict=False)) | kwargs
        alike_again()
        _divide(options, shard_data, bool(stateful_layers(model)))
        build(model, options)
        if use_lars:  # compiled again
            lars(model.optimizer)
        DistributedOptimizer(model.optimizer)
        _without_xla(model)
        given = flat(options.get("callbacks"))
        own = on_this_rank(given)
        first, last = together(own, given)
        options["callbacks"] = [first, *callbacks, *own, Broadcast(), *last]
        if get_rank() > 0:
            options["verbose"] = 0
        if evaluating is None:
            return plain(**options)
        evaluating.begin_fit(options, own)
        first.folds = evaluating.fold
        try:
            return plain(**options)
        finally:
            evaluating.end_fit()

    fit._dl_comm = True  # type: ignore[attr-defined]
    return fit


def _by_hand(model: Any, parted: bool) -> Any:
    plain, begun = model.train_on_batch, False

    @functools.wraps(plain)
    def train_on_batch(*args: Any, **kwargs: Any) -> Any:
        nonlocal begun
        if not begun:
            begun = True
            build(model, dict(zip(_OF_A_BATCH, args, strict=False)) | kwargs)
            broadcast(model)
            own_noise(model)
        if not parted:
            result = plain(*args, **kwargs)
            average_statistics(model)
            return result
        options = bound(plain, args, kwargs)
        logs = plain(**options | {"return_dict": True})
        average_statistics(model)
        logs |= folded_logs(logs, folded_results(model))
        return logs if options.get("return_dict") else in_order(model, logs)

    return train_on_batch


def _divide(options: dict[str, Any], shard_data: bool, stateful: bool) -> None:
    """Split off the validation data, then divide the rest."""
    samples = {name: options[name] for name in ("x", "y", "sample_weight") if options.get(name) is not None}
    fraction = options.get("validation_split") or 0.0
    if fraction and options.get("validation_data") is None:
        pairs = {name: split(part, fraction) for name, part in samples.items()}
        samples = {name: first for name, (first, _) in pairs.items()}
        options["validation_data"] = tuple(last for _, last in pairs.values())
        options["validation_split"] = 0.0
    if shard_data:
        batch = options.get("batch_size") or 32  # Keras's default
        samples = {name: stretches(part, batch) if stateful else shard(part) for name, part in samples.items()}
        if options.get("steps_per_epoch") is not None:
            options["steps_per_epoch"] = steps(options["steps_per_epoch"])
    options.update(samples)


def DistributedOptimizer(opt: Opt) -> Opt:  # noqa: N802
    """Return the optimizer itself, changed so that it averages gradients over the ranks where it applies them.

    Its class stays, so it saves and loads as before. Give it to ``compile``, or use ``distribute`` after it: with
    mixed precision Keras wraps the optimizer at ``compile``, and the outer one has to average.
    """
    if get_nranks() == 1 or hasattr(opt, "_dl_comm_averages"):
        return opt
    if hasattr(opt, "stateless_apply"):
        _average_in_keras_3(opt)
    else:
        from dl_comm.tensorflow.optimizer import average_in_keras

        average_in_keras(opt)
    return opt


def _average_in_keras_3(opt: Any) -> None:
    apply, stateless_apply = opt.apply, opt.stateless_apply
    averaged = False  # by the call that this one is made from

    def averaged_apply(grads: Any, trainable_variables: Any = None) -> Any:
        done = averaged or averaged_outside(opt)
        return apply(list(grads) if done else average_gradients(list(grads)), trainable_variables)

    def averaged_stateless_apply(optimizer_variables: Any, grads: Any, trainable_variables: Any) -> Any:
        nonlocal averaged
        means = list(grads) if averaged_outside(opt) else average_gradients(list(grads))
        averaged = True
        try:
            return stateless_apply(optimizer_variables, means, trainable_variables)
        finally:
            averaged = False

    opt.apply, opt.stateless_apply = averaged_apply, averaged_stateless_apply
    opt._dl_comm_averages = True
