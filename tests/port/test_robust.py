"""Whatever is fed to the porter: a port that compiles, or a sentence; never a traceback, and never twice."""

import random
from pathlib import Path

import pytest
from test_passes import SCRIPT
from test_port import EVALUATED, SERIAL

from dlrun.errors import DlrunError
from dlrun.port import port

SOURCES = [SCRIPT, EVALUATED, SERIAL, *(p.read_text() for p in Path(__file__).parents[2].glob("examples/*/serial.py"))]


def mutated(source: str, luck: random.Random) -> str:
    """Return ``source`` after a few random accidents."""
    lines = source.splitlines(keepends=True)
    for _ in range(luck.randint(1, 4)):
        i, j = luck.randrange(len(lines)), luck.randrange(len(lines))
        match luck.randrange(7):
            case 0:
                del lines[i : i + luck.randint(1, 3)]
            case 1:
                lines[i], lines[j] = lines[j], lines[i]
            case 2:
                lines.insert(i, lines[j])
            case 3:
                words = lines[i].replace("(", " ( ").split(" ")
                lines[i] = " ".join(words[: luck.randrange(len(words)) + 1]) + "\n"
            case 4:
                lines[i] = lines[i].replace(luck.choice("()[]:=,."), luck.choice(["", "(", ".x", "[0]", " if x else "]))
            case 5:
                lines[i] = lines[i].replace(
                    luck.choice(["model", "opt", "loader", "loss", "torch"]), luck.choice("abc")
                )
            case 6:
                lines[i] = "    " + lines[i]
        if not lines:
            return ""
    return "".join(lines)


def outcome(source: str) -> str:
    """Port ``source``; return the text, or an empty string where it was refused."""
    try:
        text = port(source, name="train.py").text
    except DlrunError as error:
        assert error.message.startswith("train.py")
        return ""
    compile(text, "train_dist.py", "exec")
    return text


@pytest.mark.parametrize("seed", range(150))
def test_a_mutated_script_is_ported_or_refused(seed):
    luck = random.Random(seed)
    text = outcome(mutated(luck.choice(SOURCES), luck))
    if text:
        with pytest.raises(DlrunError, match="already ported"):
            port(text, name="train.py")


@pytest.mark.parametrize(
    "source",
    ["", "\n", "#", "\x00", "import torch", "import torch\nx = " + "(" * 300 + ")" * 300, "\ufeffimport torch\n", "'''",
     "import torch\nopt.step()\n", "import torch\nwhile True:\n    loss.backward(); opt.step()\n",
     "import torch\nx = " + "+".join("1" * 3000), "import torch\nfor x in x: x.backward(); x.step()\n"],
)  # fmt: skip
def test_odd_input_is_refused_in_a_sentence_or_ported(source):
    outcome(source)
