"""Whatever is fed to the porter: a port that compiles, or a sentence; never a traceback, and never twice.

Some hundred programs are tried; ``DLRUN_FUZZ`` sets another number, ``DLRUN_FUZZ_SEED`` another beginning.
"""

import os
import random
import warnings
from collections import Counter
from pathlib import Path

import pytest
from programs import mutated, program
from small import SERIAL
from test_passes import SCRIPT
from test_shown import EVALUATED
from test_translation import KERAS, TAPE, TORCH

from dlrun.errors import DlrunError
from dlrun.port import Options, facts_of, port, run_passes
from dlrun.port.edits import Edit, apply
from dlrun.port.facts import Decay
from dlrun.port.program.reading import read
from dlrun.port.steps import STEPS

EXAMPLES = sorted(Path(__file__).parents[2].glob("examples/*/serial.py"))
SOURCES = [SCRIPT, EVALUATED, SERIAL, *(p.read_text() for p in EXAMPLES)]
FOREIGN = [TORCH, KERAS, TAPE]
PROGRAMS = int(os.environ.get("DLRUN_FUZZ", "300"))
FIRST = int(os.environ.get("DLRUN_FUZZ_SEED", "0"))
OPTIONS = [
    Options(),
    Options(batch="global"),
    Options("sqrt", 5),
    Options("none"),
    Options(origin="horovod"),
    Options(warmup_epochs=2, lr_decay=Decay((3,), 0.1), lars=True),
]
ROUND = 50  # programs a test


def outcome(source: str, options: Options | None = None) -> str:
    """Port ``source``; return the text, or an empty string where it was refused."""
    try:
        text = port(source, options, name="train.py").text
    except DlrunError as error:
        assert error.message.startswith("train.py"), error.message
        return ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compile(text, "train_dist.py", "exec")
    return text


def made(seed: int) -> tuple[str, Options]:
    """Return the program and the options of one trial."""
    luck = random.Random(seed)
    how = luck.random()
    source = program(luck) if how < 0.6 else luck.choice(SOURCES if how < 0.9 else FOREIGN)
    if how > 0.4:
        source = mutated(source, luck)
    options = luck.choice(OPTIONS) if how < 0.9 else OPTIONS[-1]
    return source, options


@pytest.mark.parametrize("start", range(FIRST, FIRST + PROGRAMS, ROUND))
def test_a_program_is_ported_or_refused_and_a_port_is_not_ported_again(start):
    count: Counter[str] = Counter()
    for seed in range(start, min(start + ROUND, FIRST + PROGRAMS)):
        source, options = made(seed)
        try:
            text = outcome(source, options)
            count["ported" if text else "refused"] += 1
            if text:
                with pytest.raises(DlrunError, match="already ported"):
                    port(text, name="train.py")
        except Exception as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}\n{source}") from error
    print(f"from {start}: {dict(count)}")
    assert count["ported"], "the generator makes no program that can be ported"


@pytest.mark.parametrize("seed", range(30))
def test_the_order_of_the_passes_does_not_matter(seed):
    luck = random.Random(seed)
    try:
        script = read(program(luck), "train.py")
        facts = facts_of(script, Options())
    except DlrunError:
        return
    names = [step.name for step in STEPS]
    texts = set()
    for _ in range(3):
        luck.shuffle(names)
        edits = [f for f in run_passes(facts, names) if isinstance(f, Edit)]
        texts.add(apply(script.module, edits, [step.name for step in STEPS]).code)
    assert len(texts) == 1


@pytest.mark.parametrize(
    "source",
    [
        "",
        "\n",
        "#",
        "\x00",
        "import torch",
        "import torch\nx = " + "(" * 300 + ")" * 300,
        "\ufeffimport torch\n",
        "'''",
        "import torch\nopt.step()\n",
        "import torch\nwhile True:\n    loss.backward(); opt.step()\n",
        "import torch\nx = " + "+".join("1" * 3000),
        "import torch\nfor x in x: x.backward(); x.step()\n",
        "import torch\nnet = net.module\nfor x in loader:\n    net(x).backward(); opt.step()\n",
    ],
)
def test_odd_input_is_refused_in_a_sentence_or_ported(source):
    outcome(source)


KEYED = """import torch
from torch.utils.data import DataLoader, TensorDataset
loaders = {}
for name in ("train", "val"):
    loaders[name] = DataLoader(TensorDataset(torch.randn(32, 4), torch.randn(32, 1)), 8)
for name in loaders:
    loaders[name] = loaders[name]
model = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
weights = model.state_dict()
for epoch in range(2):
    for phase in loaders:
        for x, y in loaders[phase]:
            loss = (model(x) - y).pow(2).mean()
            if phase == "train":
                opt.zero_grad()
                loss.backward()
                opt.step()
"""


def test_a_loop_over_a_dicts_keys_that_fills_it_is_followed() -> None:
    source = KEYED + "for name in weights:\n    weights[name] = weights[name] * 0.5\n"
    assert "dl.gradients(opt)" in port(source).text
