"""Every Before / After pair in the passes' docstrings holds."""

import itertools
import random
import re
import textwrap

import pytest

from dlrun.port import Options, gather, port
from dlrun.port.edits import Edit, apply
from dlrun.port.facts import keras as facts_keras
from dlrun.port.facts import tensorflow as facts_tensorflow
from dlrun.port.facts.loops import Loops
from dlrun.port.facts.torch import Gradients
from dlrun.port.facts.updates.tape import TapeGradients
from dlrun.port.feeds import Feeds
from dlrun.port.feeds.tensorflow import TapeFeeds
from dlrun.port.program.flow import Flow
from dlrun.port.program.script import Script
from dlrun.port.steps import GRID, STEPS
from dlrun.port.steps.counts import script_schedules, steps
from dlrun.port.steps.counts.keras import annealing as keras_annealing
from dlrun.port.steps.counts.keras import schedules as keras_schedules
from dlrun.port.steps.metrics import annealing, guards, statistics, weights
from dlrun.port.steps.output import caches, downloads, stamps, stopping
from dlrun.port.steps.shard import stretches, unseeded
from dlrun.port.steps.start import devices, start

PRELUDES = {
    "torch": "import torch\nfrom torch.utils.data import DataLoader\n",
    "keras": "import keras\nimport numpy as np\n",
    "tensorflow": "import keras\nimport tensorflow as tf\n",
}
PASSES = [(framework, step, run) for framework, steps in GRID.items() for step, run in steps.items()]
PASSES.append(("torch", "devices", devices.torch))
PASSES.append(("torch", "stopping", stopping.torch))
PASSES.append(("torch", "statistics", statistics.torch))
PASSES.append(("torch", "stretches", stretches.torch))
PASSES.append(("torch", "weights", weights.torch))
PASSES.append(("torch", "caches", caches.torch))
PASSES.append(("torch", "stamps", stamps.names))
PASSES.append(("torch", "folders", stamps.folders))
PASSES.append(("torch", "guards", guards.torch))
PASSES.append(("torch", "unseeded", unseeded.torch))
PASSES.append(("torch", "start", lambda facts: start.own_first(facts.script)))
PASSES[-1][2].__doc__ = start.own_first.__doc__
PASSES.append(("keras", "schedules", keras_schedules.keras))
PASSES.append(("keras", "annealing", lambda facts: keras_annealing.keras(facts, keras_schedules.batches(facts), ())))
PASSES[-1][2].__doc__ = keras_annealing.keras.__doc__
PASSES.append(("tensorflow", "annealing", lambda facts: annealing.tensorflow(facts, ())))
PASSES[-1][2].__doc__ = annealing.tensorflow.__doc__
for of, run in (
    ("torch", lambda facts: steps.torch(facts)),
    ("tensorflow", lambda facts: script_schedules.tensorflow(facts, ())),
):
    run.__doc__ = getattr(script_schedules, of).__doc__
    PASSES.append((of, "schedules", run))
PASSES.append(("torch", "downloads", downloads.both))


def facts_of(script, options, framework):
    """Return the facts of a fragment, which need not be a whole training script."""
    if framework == "keras":
        return facts_keras.read(script, options)
    if framework == "tensorflow":
        loops = Loops(TapeGradients(Flow(script)))
        return facts_tensorflow.gather(script, options, "tape", loops.gradients, loops, TapeFeeds(loops))
    loops = Loops(Gradients(Flow(script)))
    return gather(loops, Feeds(loops), options)


def pair(docstring):
    """Return the two scripts of a docstring."""
    text = textwrap.dedent("    " + docstring)
    found = re.search(r"Before:\n(.*?)\n\s*After:\n(.*)", text, re.S)
    assert found, "a pass shows what it does as a Before and an After"
    return tuple(textwrap.dedent(part).strip() + "\n" for part in found.groups())


@pytest.mark.parametrize(("framework", "step", "run"), PASSES, ids=[f"{f}-{s}" for f, s, _ in PASSES])
def test_a_pass_does_what_its_docstring_shows(framework, step, run):
    before, after = pair(run.__doc__)
    if not before.startswith("import"):
        before, after = PRELUDES[framework] + before, PRELUDES[framework] + after
    script = Script(before)
    facts = facts_of(script, Options(), framework)
    assert apply(script.module, [e for e in run(facts) if isinstance(e, Edit)]).code == after


SCRIPT = """
import argparse
import torch
from torch.utils.data import DataLoader

def evaluate(model, loader):
    total = 0.0
    for x, y in loader:
        total += (model(x) - y).abs().mean().item()
    return total / len(loader)

def main(args):
    model = torch.nn.Linear(4, 1)
    opt = torch.optim.SGD(model.parameters(), lr=args.lr)
    train_loader = DataLoader(args.data, batch_size=4, shuffle=True)
    test_loader = DataLoader(args.data, batch_size=4)
    best = 1e9
    for epoch in range(3):
        for x, y in train_loader:
            opt.zero_grad()
            loss = (model(x) - y).pow(2).mean()
            loss.backward(); opt.step()
            print("loss", loss.item())
        error = evaluate(model, test_loader)
        if error < best:
            best = error
            torch.save(model.state_dict(), "best.pt")

if __name__ == "__main__":
    main(None)
"""


def test_all_orders_of_the_passes_give_one_text():
    script = Script(SCRIPT)
    facts = facts_of(script, Options(warmup_steps=5), "torch")
    names = [step.name for step in STEPS]
    found = {name: list(GRID["torch"][name](facts)) for name in names}
    from dataclasses import replace

    marked = {n: [replace(f, step=n) for f in found[n] if isinstance(f, Edit)] for n in names}
    orders = random.Random(0).sample(list(itertools.permutations(names)), 300)
    texts = {apply(script.module, [e for n in order for e in marked[n]], names).code for order in orders}
    assert len(texts) == 1


def test_no_edits_give_back_the_same_bytes():
    source = "\ufeff#!/usr/bin/env python\r\nx = [1,2 ,  3]  # odd\r\n\r\n\r\nif x :\r\n\ty=1;z=2\r\n"
    script = Script(source.encode())
    assert apply(script.module, []).bytes == source.encode()


def test_the_mean_is_taken_before_the_step_on_one_line():
    text = port(SCRIPT).text
    assert "loss.backward(); dl.gradients(opt); opt.step()" in text
