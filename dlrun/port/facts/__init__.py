"""What is known about a script before anything is decided: values only, all of them about one Script."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import libcst as cst

from dlrun.port.facts.models.kinds import Kinds
from dlrun.port.facts.taint import Taint
from dlrun.port.facts.updates.reductions import Reductions
from dlrun.port.program.flow import Flow
from dlrun.port.program.script import Script
from dlrun.port.refusals import works_before

Rule = Literal["linear", "sqrt", "none"]
EPISODES = "as many steps as before, each with episodes of n ranks"
FULL_BATCH = "keeps the global batch, all samples: each of n ranks takes 1/n of them; learning rate and steps stay"


@dataclass(frozen=True)
class Decay:
    """The epochs, counted from 0, in which the learning rate is multiplied by ``factor``."""

    at: tuple[int, ...]
    factor: float

    @classmethod
    def read(cls, text: str) -> Decay:
        """Return what ``30,60,80:0.1`` says; raises ValueError where it says nothing of the kind."""
        epochs, colon, factor = text.partition(":")
        at, by = tuple(int(epoch) for epoch in epochs.split(",")), float(factor) if colon else 0.1
        if list(at) != sorted({*at}) or at[0] < 1 or not 0 < by < 1:
            raise ValueError(text)
        return cls(at, by)


@dataclass(frozen=True)
class Options:
    """What the user may choose: the contract, and how the learning rate follows the number of ranks.

    ``batch`` "local" keeps each rank's batch, so that the global batch grows n-fold; "global" keeps the global batch,
    and with it the learning rate and the number of steps: n ranks leave the serial script's parameters, to rounding.
    """

    lr_scaling: Rule = "linear"
    warmup_steps: int = 0  # 0: none
    warmup_epochs: int = 0
    lr_decay: Decay | None = None
    lars: bool = False
    batch: Literal["local", "global"] = "local"
    origin: Literal["", "horovod", "ddl"] = ""  # the library whose calls are translated
    evaluate: Literal["shared", "whole"] = "shared"  # what a rank evaluates: its share of the batches, or all

    @property
    def contract(self) -> str:
        """What stays the same and what follows the number of ranks, in a sentence."""
        if self.batch == "global":
            return "keeps the global batch: each of n ranks takes 1/n of it; learning rate and steps stay"
        rate = {
            "linear": "n times the learning rate",
            "sqrt": "sqrt(n) times the learning rate",
            "none": "the learning rate stays",
        }[self.lr_scaling]
        return f"keeps each rank's batch: n ranks make a global batch n times as large, {rate}, 1/n of the steps"

    @property
    def keeps_rate(self) -> bool:
        """Whether the learning rate stays what it is."""
        return self.lr_scaling == "none" or self.batch == "global"


@dataclass(frozen=True, eq=False)
class Step:
    """One place where an optimizer (or the script itself, where ``optimizer`` is None) changes the weights.

    ``before`` is the statement that first reads the gradients; ``what`` is the expression that owns them, valid at
    that statement. With a ``closure`` the gradients are made, and so averaged, inside that function. Where that
    statement makes the gradients, too, ``within`` is the expression in it which reads them.
    """

    node: cst.CSTNode
    optimizer: cst.BaseExpression | None
    what: str
    before: cst.CSTNode
    closure: cst.FunctionDef | None = None
    within: cst.BaseExpression | None = None


@dataclass(frozen=True, eq=False)
class Conditional:
    """Models and optimizers that are made before training on a condition, ``test``, which may be asked ``again``."""

    test: cst.If
    things: tuple[str, ...]
    again: bool


@dataclass(frozen=True, eq=False)
class Top:
    """The outermost training loop of a chain of calls, and the names of what must be equal on all ranks before it."""

    loop: cst.CSTNode
    things: tuple[str, ...]
    optimizers: tuple[str, ...]
    conditional: tuple[Conditional, ...] = ()


@dataclass(frozen=True, eq=False)
class Feed:
    """Where training batches come from: ``how`` tells what to do with ``node``.

    named: the assignment after which the variable ``names`` holds such a loader; loader: the call that makes the
    loader, used for training only; iterable: an expression that a training loop runs over; indices: the range of
    positions that it runs over; positions: likewise, where the loop also counts its steps by them (``names`` holds
    the variable, ``picks`` its target and its uses that pick samples); cut: likewise, where each rank takes a part
    of every batch (``picks`` are the slices that are one); drawn: a loop that draws its batches, of which each rank
    takes a part (``picks`` are the calls that return one; ``draws`` those that draw for evaluations); turns: a
    function that returns the next samples at each call; arrays: ``names`` of tensors that each step takes whole,
    sliced along axis 0 before the loop ``node``, or after the assignment ``node``, under names of their own at the
    uses ``picks``; array: an expression that stands for such an array; ``gathered`` is how the loss gathers
    samples.

    Where a state is handed on from batch to batch: stretch: an expression of which each rank takes a stretch along
    ``axis``; stretches: the assignment after which (or ``before`` the statement that) the variables ``names`` are cut
    so, and the names that hold their length are computed ``again``. ``draws`` say how far a step goes.
    """

    node: cst.CSTNode
    how: Literal[
        "loader",
        "iterable",
        "named",
        "indices",
        "positions",
        "cut",
        "drawn",
        "turns",
        "arrays",
        "array",
        "stretch",
        "stretches",
    ]
    names: tuple[str, ...] = ()
    drawn: tuple[str, ...] = ()  # of ``names``, those that each process draws at random for itself
    picks: tuple[cst.Name | cst.Attribute | cst.Subscript | cst.Call, ...] = ()
    axis: int = 0
    before: bool = False
    again: tuple[tuple[str, str], ...] = ()
    draws: tuple[cst.Call, ...] = ()
    alike: tuple[cst.Call, ...] = ()  # the calls by which ``picks`` and ``draws`` draw random numbers
    gathered: Reductions | None = None
    sizes: tuple[cst.Name, ...] = ()  # the number of samples, where it makes the shape of a state


@dataclass(frozen=True, eq=False)
class Evaluation:
    """A loop that evaluates: it goes through the batches of ``source``, a loader, and changes no weights.

    Where the loop trains, too, ``source`` is what a call that only evaluates gives it. ``mode`` tells whether the
    model is in evaluation mode then, as far as that call says. Where the loop trains by turns, ``trains`` is the test
    by which it does: ``phase == "train"``.
    """

    loop: cst.For
    source: cst.BaseExpression
    mode: bool | None = None
    trains: cst.BaseExpression | None = None


@dataclass(frozen=True, eq=False)
class ScriptFacts:
    """What is known about a script of whatever framework."""

    framework: ClassVar[str]
    kinds: Kinds
    options: Options
    guard: cst.If | None  # if __name__ == "__main__"
    optimizers: tuple[cst.Call, ...]  # the calls that make them
    loops: tuple[cst.For | cst.While, ...]  # all that run an update
    uncalled: cst.FunctionDef | None  # one that trains and that nothing in the program runs: this is a module

    @cached_property
    def meeting(self) -> cst.If | None:
        """The main guard, if the ranks meet there: lines above it may have worked already."""
        return None if self.guard is None or works_before(self.script, self.guard) else self.guard

    @property
    def script(self) -> Script:
        """The script itself."""
        return self.kinds.script

    @property
    def flow(self) -> Flow:
        """Where its values come from."""
        return self.kinds.flow

    @property
    def alias(self) -> str:
        """The name that dl_comm's module gets in the script."""
        return self.script.alias


@dataclass(frozen=True, eq=False)
class Facts(ScriptFacts):
    """All that the passes decide on."""

    framework = "torch"
    local: Taint  # which values may differ between the ranks
    unequal: Taint  # the same, and what depends on the clock, on chance, or on the numbers of local samples
    trained: Taint  # ... because they come from training batches
    steps: tuple[Step, ...] = ()
    runs: tuple[cst.Call, ...] = ()  # of a session that do not train, and return what local samples make
    tops: tuple[Top, ...] = ()
    feeds: tuple[Feed, ...] = ()
    states: tuple[cst.CSTNode, ...] = ()  # what hands a hidden state from batch to batch: assignments, models' calls
    carries: tuple[cst.CSTNode, ...] = ()  # of these, those in loops over batches that are sharded
    lengths: tuple[cst.Call, ...] = ()  # calls of len() of a loader, whole elsewhere, that count local batches
    sampled: tuple[cst.CSTNode, ...] = ()  # what loops run over, and what next() or chance draws for a step
    permutations: tuple[cst.Call, ...] = ()  # the calls that draw an order for loops over indices
    orders: tuple[tuple[cst.Call, bool], ...] = ()  # splits and orders drawn after training began; whether it goes on
    evaluated: tuple[cst.BaseExpression, ...] = ()  # what evaluations draw batches from that are a rank's share
    unseen: tuple[cst.Call, ...] = ()  # draws of batches from iterators that come from out of sight
    paced: tuple[cst.Call, ...] = ()  # what returns the next number of a schedule, one a step
    early: cst.CSTNode | None = None  # samples drawn anew at times, of which the first ones are the same on all ranks
    ahead: tuple[
        tuple[cst.CSTNode, bool], ...
    ] = ()  # what draws batches before a loop; whether what all share is drawn after it
    seeds: tuple[cst.Call, ...] = ()  # calls in training loops that seed the generators
    accumulating: tuple[cst.CSTNode, ...] = ()  # loops that add up gradients for an update after them
    innermost: tuple[cst.CSTNode, ...] = ()  # the first loops around an update, across calls
    evaluations: tuple[Evaluation, ...] = ()
    parts: tuple[cst.CSTNode, ...] = ()  # loops within a training step, that compute its loss or go through its samples
    counted: tuple[
        tuple[cst.CSTNode, cst.BaseExpression | None], ...
    ] = ()  # those whose iterations draw a batch; their range
    by_hand: tuple[tuple[cst.CSTNode, tuple[cst.BaseExpression, ...]], ...] = ()  # updates by hand, their rates
    full_batch: bool = False  # each step sees all samples: the global batch does not grow with the ranks
    episodes: bool = False  # each rank plays an environment of its own, through all the loops

    @property
    def keeps_steps(self) -> bool:
        """Whether n ranks take as many steps as one."""
        return self.full_batch or self.episodes or self.options.batch == "global"

    @property
    def contract(self) -> str:
        """What stays the same and what follows the number of ranks, in a sentence."""
        if self.full_batch:
            return FULL_BATCH
        return self.options.contract.replace("1/n of the steps", EPISODES) if self.episodes else self.options.contract
