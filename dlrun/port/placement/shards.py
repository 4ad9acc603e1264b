"""What the abstract run is told by the readers of the frameworks: where shards come from, and which loops use them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import libcst as cst


@dataclass(frozen=True)
class Cadence:
    """A number of serial steps, and how this rank's is written: as a count, or as the number of an iteration.

    ``repeats`` tells whether what it lets run comes as often as in the serial script, ``known`` whether it is divided
    already.
    """

    node: cst.BaseExpression
    index: bool = False
    repeats: bool = True
    known: bool = False


@dataclass(frozen=True)
class Shards:
    """Where batches come from.

    ``made`` are the expressions that are a shard of the batches; ``named`` the statements after which the names are
    one; ``loops`` those each iteration of which trains on a batch; ``drawing`` the functions that return the next
    batch; ``divided`` the expressions that become 1/n (steps), ``counted`` those that are made serial already.
    ``cadences`` are those of ``divided`` that were found by what the run of the program counts (see ``cadences``).
    ``annealed`` are those of ``counted`` that are so unless the run finds that a loop has left them serial.
    ``ramped`` are those by which edits let something change as much an epoch as in the serial script; ``fractions``
    those of them that the run of the program found (see ``countdowns``).
    ``lengths`` are the calls of ``len()`` that count a rank's batches; ``sampled`` draw samples at random for a step.
    ``kind`` tells what an expression is: module, optimizer, ...; ``steps`` are the updates, ``gradients`` those that
    become those of all ranks where they are made; ``before`` has the statements before which gradients are averaged,
    ``unaveraged`` what reads gradients that nothing averages: those of a serial iteration.
    ``whole`` are those of ``made`` that are sharded in whole batches of the serial script, for evaluations;
    ``turns`` the tests by which those of them are so that are trained on, too: where the test does not hold.

    ``together`` are tests that leave out short batches, and edits let all ranks answer alike.
    ``forced`` are numbers of a part that edits make those of the iteration, wherever their line is run.
    ``noisy`` are the loops that evaluate all batches on each rank, and draw random numbers: no two ranks find the same.
    ``runs`` are the runs of a session that compute with this rank's samples; ``local`` tells whether a tensor of the
    graph is computed from what they are fed, ``number`` whether it is one number, ``counts_steps`` whether it is the
    number of updates so far; ``resumes`` whether the script goes on from the number in the name of a checkpoint.

    ``parts``: each rank runs every serial iteration, on a part of its batch (see ``interpret.parts``); ``cut`` are
    the expressions that are this rank's part of an array then, ``sliced`` the names that are so behind a statement,
    or from the beginning of a loop. ``averaged`` are the sums over a part that are n times as large
    (``dl.partial_sum``). ``alike`` are the calls that draw on all ranks alike, within loops that draw their
    batches. ``episodes``: a part is an episode of this rank's, of which nothing adds up; ``plays`` are the loops
    that play one, ``answers`` what an environment answers, and how many values.
    """

    made: frozenset[cst.CSTNode] = frozenset()
    named: dict[cst.CSTNode, tuple[str, ...]] = field(default_factory=dict)
    loops: frozenset[cst.CSTNode] = frozenset()
    training: frozenset[cst.CSTNode] = frozenset()
    drawing: frozenset[cst.CSTNode] = frozenset()
    divided: frozenset[cst.CSTNode] = frozenset()
    cadences: dict[cst.CSTNode, Cadence] = field(default_factory=dict)
    counted: frozenset[cst.CSTNode] = frozenset()
    annealed: frozenset[cst.CSTNode] = frozenset()
    ramped: frozenset[cst.CSTNode] = frozenset()
    fractions: frozenset[cst.CSTNode] = frozenset()
    lengths: frozenset[cst.CSTNode] = frozenset()
    sampled: frozenset[cst.CSTNode] = frozenset()
    kind: Callable[[cst.CSTNode], str] = lambda node: ""
    steps: frozenset[cst.CSTNode] = frozenset()
    whole: frozenset[cst.CSTNode] = frozenset()
    turns: dict[cst.CSTNode, cst.BaseExpression] = field(default_factory=dict)
    before: dict[cst.CSTNode, cst.CSTNode] = field(default_factory=dict)
    unaveraged: frozenset[cst.CSTNode] = frozenset()
    gradients: frozenset[cst.CSTNode] = frozenset()
    cut: frozenset[cst.CSTNode] = frozenset()
    sliced: dict[cst.CSTNode, tuple[str, ...]] = field(default_factory=dict)
    averaged: frozenset[cst.CSTNode] = frozenset()
    alike: frozenset[cst.CSTNode] = frozenset()
    together: frozenset[cst.CSTNode] = frozenset()
    runs: frozenset[cst.CSTNode] = frozenset()
    local: Callable[[cst.CSTNode], bool] = lambda node: False
    number: Callable[[cst.CSTNode], bool] = lambda node: False
    counts_steps: Callable[[cst.CSTNode], bool] = lambda node: False
    resumes: bool = False
    noisy: frozenset[cst.CSTNode] = frozenset()
    plays: frozenset[cst.CSTNode] = frozenset()
    answers: dict[cst.CSTNode, int] = field(default_factory=dict)
    forced: frozenset[cst.CSTNode] = frozenset()
    parts: bool = False
    episodes: bool = False
