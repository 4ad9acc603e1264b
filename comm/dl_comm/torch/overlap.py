"""Gradients that travel while backward still runs.

Parameters get their gradients in nearly the same order in every step, the last layers first. In the first step that
order is noted, and rank 0's is agreed on: it cuts the parameters into buckets. From then on each gradient is copied
into its bucket as soon as it is there, and a bucket whose gradients are all there is reduced in the background:

    backward     [ layer 4 ][ layer 3 ][ layer 2 ][ layer 1 ]
    reduction               [ bucket 0 (4, 3)    ][ bucket 1 (2, 1) ]
    gradients()                                   [ waits, copies back ]

Every rank starts every bucket once a step, in the same order, so nothing is negotiated. What a rank lacks when the
step comes (a parameter that got no gradient, a backward less than usual) it starts then. What changed after it had
been copied (another backward, an edited or replaced gradient) is reduced again. So the result is that of the plain
average in every case, and only the time depends on how regular the steps are.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import TensorWeakRef, WeakTensorKeyDictionary

from dl_comm import CommError, _core, settings
from dl_comm.parts import weight_of_gradients
from dl_comm.rank0 import tell
from dl_comm.ranks import get_nranks
from dl_comm.torch import gpu
from dl_comm.torch.buckets import Bucket, Copy, Slot
from dl_comm.torch.memory import expanded, label
from dl_comm.torch.overlap_buffers import take
from dl_comm.torch.parameters import DENSE, DONE, holders, kind_of
from dl_comm.torch.uneven import scale

_ALIGNMENT = 64  # bytes: gradients begin at cache lines


@dataclass(eq=False)
class Overlap:
    """The parameters of one ``overlap`` call, whose hooks keep it alive.

    ``buckets`` is empty until the first step has shown the order; then there is a ``team``, too.
    """

    slots: list[Slot]
    team: int = 0
    buckets: list[Bucket] = field(default_factory=list)
    clock: int = 0
    quiet: bool = False

    @property
    def checked(self) -> bool:
        """Whether no script has asked for it: it ends where ``gradients`` gets other parameters, or memory lacks."""
        return any(slot.checked for slot in self.slots)

    def fire(self, slot: Slot) -> None:
        """Note that backward has accumulated into the parameter; start what is complete now."""
        slot.fired += 1
        self.clock += 1
        slot.last = self.clock
        bucket = slot.bucket
        if bucket is None or self.quiet or slot.copied or slot.fired != slot.expected or bucket.ticket is not None:
            return
        if kind_of(slot.parameter) == DENSE:
            self._copy(slot)
            self._start(complete=True)

    @staticmethod
    def _copy(slot: Slot) -> None:
        grad = slot.parameter.grad
        assert slot.bucket is not None
        assert slot.view is not None
        slot.bucket.there += 1
        if gpu.is_on_gpu(slot.view):
            slot.bucket.streams[gpu.current_stream(slot.view.device)] = gpu.stream_object(slot.view.device)
        if grad is None or grad.is_sparse:
            slot.view.zero_()
        else:
            slot.view.copy_(grad.detach())
            scale(slot.view, weight_of_gradients())
            slot.copied = Copy.of(grad, slot.checked)

    def _start(self, complete: bool) -> None:
        """Start the next buckets in order: those that are complete, or all that are left."""
        for number, bucket in enumerate(self.buckets):
            if bucket.ticket is not None:
                continue
            if complete and bucket.there < len(bucket.slots):
                return
            for slot in bucket.slots:
                if not complete and not slot.copied:
                    self._copy(slot)
            bucket.start(self.team, self._name(number))

    def _name(self, number: int) -> str:
        slots = self.buckets[number].slots
        return f"bucket {number}, {slots[0].name} to {slots[-1].name}"

    def finish(self) -> dict[int, int]:
        """Put the averages into the gradients; return by ``id`` what is left to do: ``DONE``, or how it is held."""
        if not self.buckets:
            try:
                self._plan()
            except CommError as error:  # on all ranks alike
                if not self.checked:
                    raise
                self.buckets.clear()
                self.dissolve()
                tell(f"averaging does not overlap backward: {error.message}")
            return {}
        self._start(complete=False)
        state = torch.tensor([[kind_of(s.parameter), not s.is_current()] for s in self.slots], dtype=torch.int32)
        _core.allreduce([(state.data_ptr(), state.numel(), "int32")], "max", self.team, ["which gradients changed"])
        for bucket in self.buckets:
            bucket.wait()
        left: dict[int, int] = {}
        grads, means = [], []
        for slot, (kind, changed) in zip(self.slots, state.tolist(), strict=True):
            parameter = slot.parameter
            left[id(parameter)] = kind if changed or kind > DENSE else DONE
            if kind == DENSE and not changed and slot.view is not None:
                if parameter.grad is None or expanded(parameter.grad):
                    parameter.grad = torch.empty_like(parameter, requires_grad=False)
                grads.append(parameter.grad.detach())
                means.append(slot.view)
            slot.expected, slot.fired, slot.copied = slot.fired, 0, None
        if grads:
            torch._foreach_copy_(grads, means)
        return left

    def dissolve(self) -> None:
        """End it: what is under way arrives nowhere, and gradients are averaged as before. Collective."""
        for slot in self.slots:
            slot.handle.remove()
            if (parameter := slot.weak()) is not None:
                _overlaps.pop(parameter, None)
        for number, bucket in enumerate(self.buckets):  # of which other ranks may have started more
            if bucket.ticket is None:
                bucket.start(self.team, self._name(number))
        for bucket in self.buckets:
            bucket.wait()

    def _plan(self) -> None:
        """Cut the parameters into buckets in the order in which rank 0 got its last gradients, and find them memory."""
        labels = "\n".join(label(slot.name, slot.parameter) for slot in self.slots)
        theirs = [text.decode() for text in _core.allgather_bytes(labels.encode())]
        if len(set(theirs)) > 1:
            other = next(r for r, text in enumerate(theirs) if text != theirs[0])
            raise CommError(
                f"overlap: rank {other} has other parameters than rank 0", "Build the same model everywhere."
            )
        never = self.clock + 1
        mine = sorted(range(len(self.slots)), key=lambda i: self.slots[i].last if self.slots[i].fired else never)
        order = _core.broadcast_bytes(" ".join(map(str, mine)).encode(), 0).split()
        limit = int(settings.number(os.environ, "DL_COMM_BUCKET_MB", 16) * 2**20)
        open_buckets: dict[Any, Bucket] = {}
        offsets: dict[Slot, int] = {}
        ends: dict[Bucket, int] = {}
        for slot in (self.slots[int(i)] for i in order):
            p = slot.parameter
            size = -(-p.numel() * p.element_size() // _ALIGNMENT) * _ALIGNMENT
            alike = (p.dtype, p.device)
            bucket = open_buckets.get(alike)
            if bucket is None or ends[bucket] + size > limit:
                bucket = open_buckets[alike] = Bucket([])
                ends[bucket] = 0
                self.buckets.append(bucket)
            bucket.slots.append(slot)
            slot.bucket, offsets[slot], ends[bucket] = bucket, ends[bucket], ends[bucket] + size
        on_host = [bucket for bucket in self.buckets if not gpu.is_on_gpu(bucket.slots[0].parameter)]
        buffer = take(sum(ends[bucket] for bucket in on_host), self, self.buckets)
        self.team, memory = buffer.team, buffer.memory
        for bucket in self.buckets:
            first_of_all = bucket.slots[0].parameter
            if bucket in on_host:
                here, memory = memory[: ends[bucket]], memory[ends[bucket] :]
            else:
                here = gpu.memory(ends[bucket], first_of_all.device)
            bucket.memory = here.view(first_of_all.dtype)
            for slot in bucket.slots:
                p = slot.parameter
                first = offsets[slot] // p.element_size()
                stride = torch.empty_like(p, device="meta").stride()
                slot.view = bucket.memory[first : first + p.numel()].as_strided(p.shape, stride)
        for slot in self.slots:
            slot.expected, slot.fired = slot.fired, 0


_overlaps: WeakTensorKeyDictionary = WeakTensorKeyDictionary()  # parameter -> weak reference to its Overlap


def overlap(what: Any, checked: bool = False) -> None:
    """From now on reduce these gradients while backward still runs; ``gradients(what)`` then waits for the rest.

    ``what`` is an optimizer, a module or parameters, as for ``gradients``, which must still be called before each step,
    with the same parameters or more. Averages, errors and every special case stay as they are without overlap: any
    number of backwards per step, also changing; parameters that get no gradient; sparse gradients; ``no_sync``. One
    thing is not seen: a gradient edited through ``.data`` between backward and ``gradients``.

    Takes memory of the size of the gradients once (shared between the ranks, or the GPU's), buckets of
    ``DL_COMM_BUCKET_MB`` (16) megabytes, and a team of threads; a later model takes over those of one that is gone.
    Floating-point parameters on the CPU and on CUDA's GPUs take part; others are averaged by ``gradients`` as before.
    On a GPU no call waits for it. On one rank nothing happens. Raises ``ValueError`` when a parameter already overlaps.

    ``checked`` is for what no script has asked for (``overlap_choice``): such edits are seen then, by a sum of each
    gradient, and ``gradients`` of a part of the parameters ends it.
    """
    held = holders(what)
    if get_nranks() == 1:
        return
    slots = [
        Slot(name, TensorWeakRef(p), checked)
        for name, p in held
        if p.requires_grad and p.is_leaf and p.is_floating_point() and (p.device.type == "cpu" or gpu.is_on_gpu(p))
    ]
    for slot in slots:
        if slot.parameter in _overlaps:
            raise ValueError(f"overlap() was called before for {slot.name}; call it once for each parameter")
    if not slots:
        return
    made = Overlap([slot for slot in slots if slot.parameter.numel()])
    for slot in made.slots:
        _overlaps[slot.parameter] = weakref.ref(made)
        slot.handle = slot.parameter.register_post_accumulate_grad_hook(_hook(made, slot))


def overlaps(tensors: Iterable[Tensor]) -> bool:
    """Return whether the gradient of one of these overlaps backward."""
    return any(tensor in _overlaps for tensor in tensors)


def dissolve(tensors: Iterable[Tensor]) -> None:
    """End the overlaps that these belong to. Collective."""
    for found in _met(list(tensors)):
        found.dissolve()


def _met(tensors: list[Tensor]) -> list[Overlap]:
    refs = (_overlaps.get(t) for t in tensors)
    return list(
        {id(found): found for found in (ref() for ref in refs if ref is not None) if found is not None}.values()
    )


def _hook(made: Overlap, slot: Slot) -> Any:
    def fire(parameter: Tensor) -> None:
        with torch.no_grad():
            made.fire(slot)

    return fire


def finish_overlapped(tensors: Iterable[Tensor]) -> dict[int, int]:
    """Finish the overlaps that these tensors belong to; return, by ``id``, what is left to do for each of theirs."""
    if not len(_overlaps):
        return {}
    given = list(tensors)
    here = set(map(id, given))
    left: dict[int, int] = {}
    for found in _met(given):
        missing = [slot.name for slot in found.slots if slot.weak() is None or id(slot.parameter) not in here]
        if missing and found.checked:
            found.dissolve()
            continue
        if missing:
            raise CommError(
                f"gradients() got a part of what overlaps: {missing[0]} is missing",
                "Call overlap() for each optimizer, and gradients() with the same.",
            )
        left |= found.finish()
    return left


@contextlib.contextmanager
def no_sync() -> Iterator[None]:
    """Within it, backward starts no reductions: for all but the last backward of a step with accumulation.

    Only a matter of speed where the number of backwards changes from step to step; results are the same.
    """
    all_of_them = {id(found): found for found in (ref() for ref in _overlaps.values()) if found is not None}
    for found in all_of_them.values():
        found.quiet = True
    try:
        yield
    finally:
        for found in all_of_them.values():
            found.quiet = False
