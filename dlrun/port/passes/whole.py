"""Part of step "shard": data of a TensorFlow script that every rank sees whole, as nothing deals them out."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from dlrun.port.edits import Doubt
from dlrun.port.facts.kinds_tensorflow import plain
from dlrun.port.facts.tensorflow import TensorFlowFacts
from dlrun.port.program.script import dotted, walk


def tensorflow(facts: TensorFlowFacts) -> Iterator[Doubt]:
    """Yield doubts about queues of files, data sets that may train, and draws of batches from all samples."""
    names = [plain(facts.script.name_of(call.func)).rsplit(".", 1)[-1] for call in facts.queues]
    fills = [call for call, name in zip(facts.queues, names, strict=True) if name.endswith("producer")]
    if facts.queues and not fills:
        yield Doubt(facts.queues[0], "queues that are filled out of sight feed every rank: it reads all samples, in an "
                    "order of its own", "high",
                    f"give what fills them {facts.alias}.shard(...) of the files")  # fmt: skip
    for call in fills:
        yield Doubt(call, "every rank reads the whole queue, in an order of its own; it is not dealt out", "high",
                    f"give it {facts.alias}.shard(...) of the files")  # fmt: skip
    for node in facts.unclear:
        yield Doubt(node, "these data may feed the training, and are not shared", "high",
                    f"{facts.alias}.shard(...) around the data set that trains")  # fmt: skip
    dealt = {f.node for f in facts.feeds if f.how == "turns"}
    for loop, _ in facts.counted:
        draws = [n for n in walk(loop) if isinstance(n, cst.Call) and dotted(n.func).endswith(".next_batch")
                 and n.func not in dealt]  # fmt: skip
        if draws:
            yield Doubt(draws[0], "each rank draws batches of its own from all samples: within an epoch some are drawn "
                        "by several ranks", "low")  # fmt: skip
