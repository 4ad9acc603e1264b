"""Part of step "shard": data of a TensorFlow script that every rank sees whole, as nothing deals them out."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import libcst as cst

from dlrun.port.edits import Doubt
from dlrun.port.facts.models.kinds_tensorflow import plain
from dlrun.port.facts.tensorflow import TensorFlowFacts
from dlrun.port.program.script import dotted, walk


def tensorflow(facts: TensorFlowFacts) -> Iterator[Doubt]:
    """Yield doubts about queues of files, data sets that may train, and draws of batches from all samples."""
    names = [plain(facts.script.name_of(call.func)).rsplit(".", 1)[-1] for call in facts.queues]
    fills = [call for call, name in zip(facts.queues, names, strict=True) if name.endswith("producer")]
    if facts.queues and not fills:
        yield Doubt(
            facts.queues[0],
            "queues that are filled out of sight feed every rank: it reads all samples, in an order of its own",
            "high",
            f"give what fills them {facts.alias}.shard(...) of the files",
            name="not-shared",
        )
    for call in fills:
        yield Doubt(
            call,
            "every rank reads the whole queue, in an order of its own; it is not sharded",
            "high",
            f"give it {facts.alias}.shard(...) of the files",
            name="not-shared",
        )
    for node in facts.unclear:
        yield Doubt(
            node,
            "these data may feed the training, and are not shared",
            "high",
            f"{facts.alias}.shard(...) around the data set that trains",
            name="not-shared",
        )
    for tape in list(_tapes_beside(facts))[:1]:
        yield Doubt(
            tape,
            "a loop trains by this tape, beside a session's runs: its samples are not sharded, its steps not divided",
            "high",
            "a script of its own for each way to train",
            name="not-shared",
        )
    for function in _with_cursors(facts):
        yield Doubt(
            function,
            f"{function.name.value}() goes on from where it was, alike on all ranks: they take the same samples",
            "high",
            "begin at another place on each rank, "
            f"{facts.alias}.get_rank() * length // {facts.alias}.get_nranks() further",
            name="same-samples",
        )
        break
    sharded = {f.node for f in facts.feeds if f.how == "turns"}
    for loop, _ in facts.counted if not facts.keeps_steps else ():  # else all take a part of what rank 0 draws
        draws = [
            n
            for n in walk(loop)
            if isinstance(n, cst.Call) and dotted(n.func).endswith(".next_batch") and n.func not in sharded
        ]
        if draws:
            yield Doubt(
                draws[0],
                "each rank draws batches of its own from all samples: within an epoch some are drawn by several ranks",
                "low",
                name="same-samples",
            )


def _tapes_beside(facts: TensorFlowFacts) -> Iterator[cst.With]:
    """Yield the tapes in loops of a script whose training is taken to be that of a session."""
    for node in facts.script.of(cst.With) if facts.style == "session" else ():
        made = [item.item for item in node.items if isinstance(item.item, cst.Call)]
        looped = any(isinstance(up, (cst.For, cst.While)) for up in facts.script.above(node))
        if looped and any(plain(facts.script.name_of(call.func)).endswith(".GradientTape") for call in made):
            yield node


def _with_cursors(facts: TensorFlowFacts) -> Iterator[cst.FunctionDef]:
    """Yield the functions by which loops draw batches from several places at once, which these keep in a list."""
    script, seen = facts.script, set()
    todo = [loop.body for loop, _ in facts.counted if isinstance(loop, (cst.For, cst.While))]
    while todo:
        for call in (n for n in walk(todo.pop()) if isinstance(n, cst.Call)):
            for function in facts.flow.targets(call):
                if function in seen:
                    continue
                seen.add(function)
                todo.append(function.body)
                if facts.flow.returns(function) and any(_moves_place(script.code, n) for n in walk(function.body)):
                    yield function


def _moves_place(code: Callable[[cst.CSTNode], str], node: cst.CSTNode) -> bool:
    """Tell whether ``node`` moves one of the places on: ``self.at[i] = (self.at[i] + 1) % n``, ``self.at[i] += 1``."""
    target = node.target if isinstance(node, cst.AugAssign) else None
    if isinstance(node, cst.Assign):
        target = node.targets[0].target
    kept = isinstance(target, cst.Subscript) and dotted(target.value).startswith("self.")
    again = (
        isinstance(node, cst.Assign)
        and target is not None
        and any(isinstance(n, cst.Subscript) and code(n) == code(target) for n in walk(node.value))
    )
    return kept and (isinstance(node, cst.AugAssign) or again)
