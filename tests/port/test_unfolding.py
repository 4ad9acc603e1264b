"""Comprehensions that train are the loops that they are."""

import pytest
from running import ran

from dlrun.port import port
from dlrun.port.program.unfolding import before_growth, drawn, trainers, unfolded

STEP = """def step(x, y):
    loss = (model(x) - y).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.item()
def epoch_of(loader):
    return [step(x, y) for x, y in loader]
"""


def _loops(lines: str) -> str:
    text, _ = unfolded(STEP + lines, trainers([STEP]))
    assert isinstance(text, str)
    return text.partition("in loader:\n        results.append(step(x, y))\n    return results\n")[2]


@pytest.mark.parametrize(
    ("lines", "loops"),
    [
        (
            "losses = [step(x, y) for x, y in loader]\n",
            "losses = []\nfor x, y in loader:\n    losses.append(step(x, y))\n",
        ),
        (
            "mean = sum(step(x, y) for x, y in loader) / 9  # of all\n",
            "results = []\nfor x, y in loader:\n    results.append(step(x, y))\nmean = sum(results) / 9  # of all\n",
        ),
        (
            "for e in range(3):\n\tlosses += [step(*b) for b in loader if b]\n",
            "for e in range(3):\n\tresults = []\n\tfor b in loader:\n\t    if b:\n\t        results.append(step(*b))\n"
            "\tlosses += results\n",
        ),
        (
            "[step(x, y) for e in range(3) for x, y in loader]\n",
            "for e in range(3):\n    for x, y in loader:\n        step(x, y)\n",
        ),
        (
            "history = [[step(*b) for b in loader] for e in range(3)]\n",
            "history = []\nfor e in range(3):\n    history_of_one = []\n    for b in loader:\n"
            "        history_of_one.append(step(*b))\n    history.append(history_of_one)\n",
        ),
        (
            "worst = max(map(step, loader))\n",
            "results = []\nfor each_result in loader:\n    results.append(step(each_result))\nworst = max(results)\n",
        ),
        (
            "history = [epoch_of(loader) for e in range(3)]\n",
            "history = []\nfor e in range(3):\n    history.append(epoch_of(loader))\n",
        ),
        (
            "print(np.mean([step(\n    x, y) for x, y in loader]), 3)\n",
            "results = []\nfor x, y in loader:\n    results.append(step(x, y))\nprint(np.mean(results), 3)\n",
        ),
        (
            "print(max([step(*b) for b in loader]), max(step(*b) for b in loader))\n",
            "results = []\nfor b in loader:\n    results.append(step(*b))\n"
            "all_results = []\nfor b in loader:\n    all_results.append(step(*b))\n"
            "print(max(results), max(all_results))\n",
        ),
        (
            "if (most := max(step(*b) for b in loader)) > 3:  # high\n    print(most)\n",
            "results = []\nfor b in loader:\n    results.append(step(*b))\n"
            "if (most := max(results)) > 3:  # high\n    print(most)\n",
        ),
        (
            "first, *rest = (step(*b) for b in loader)\n",
            "results = []\nfor b in loader:\n    results.append(step(*b))\nfirst, *rest = results\n",
        ),
        (
            "text = ','.join(str(step(*b)) for b in loader)\n",
            "results = []\nfor b in loader:\n    results.append(str(step(*b)))\ntext = ','.join(results)\n",
        ),
        (
            "for loss in [step(*b) for b in loader]:\n    print(loss)\n",
            "results = []\nfor b in loader:\n    results.append(step(*b))\nfor loss in results:\n    print(loss)\n",
        ),
    ],
)
def test_a_comprehension_that_trains_becomes_a_loop(lines, loops):
    assert _loops(lines) == loops


@pytest.mark.parametrize(
    "lines",
    [
        "scores = [evaluate(x, y) for x, y in loader]\n",  # does not train
        "x = 3\nlosses = [step(x, y) for x, y in loader]\nprint(x)\n",  # the loop would bind x
        "losses = [step(x, y) for x, y in loader] if train else []\n",
        "good = any(step(x, y) < 1 for x, y in loader)\n",  # ends early
        "lazy = (step(x, y) for x, y in loader)\n",
        "if train: losses = [step(x, y) for x, y in loader]\n",
        "if e:\n    pass\nelif sum(step(x, y) for x, y in loader) > 2:\n    pass\n",
        "if sum(step(x, y) for x, y in loader) > 2:\n    print(x)\n",  # the loop would bind x
        "while sum(step(x, y) for x, y in loader) > 2:\n    pass\n",
    ],
)
def test_what_is_no_whole_loop_stays(lines):
    assert _loops(lines) == lines


def test_lines_are_those_of_the_script_as_it_is():
    _, grown = unfolded("losses = [step(x) for x in data]\nprint(losses)\n", frozenset({"step"}))
    assert [before_growth(line, grown) for line in (1, 2, 3, 4, 5)] == [1, 1, 1, 2, 3]


def test_a_partial_of_a_function_that_trains_trains():
    source = STEP + "run = functools.partial(step, model)\nlosses = [run(x, y) for x, y in loader]\n"
    assert trainers([source]) == {"step", "epoch_of", "run"}
    assert "for x, y in loader:\n    losses.append(run(x, y))\n" in str(unfolded(source, trainers([source]))[0])


def test_a_partial_of_a_generator_that_trains_draws():
    source = STEP + "def steps(loader):\n    for x, y in loader:\n        yield step(x, y)\n"
    source += "run = partial(steps)\nlosses = list(run(loader))\n"
    names = trainers([source])
    assert drawn([source], names) == {"steps", "run"}
    text = str(unfolded(source, names, drawn([source], names))[0])
    assert "for each_result in run(loader):\n    results.append(each_result)\nlosses = list(results)\n" in text


SCRIPT = f"""import torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(64, 4), torch.randn(64, 1)), batch_size=8, shuffle=True)
{STEP}for epoch in range(2):
    losses = [step(x, y) for x, y in loader]
    print(epoch)
torch.save(model.state_dict(), "last.pt")
"""


def test_a_script_that_trains_in_a_comprehension_is_ported_and_the_report_has_its_own_lines(tmp_path):
    ported = port(SCRIPT)
    assert "dl.shard(DataLoader(" in ported.text
    assert "    for x, y in loader:\n        losses.append(step(x, y))\n" in ported.text
    assert "-    losses = [step(x, y) for x, y in loader]" in ported.diff()
    assert ported.script_part.source == SCRIPT
    saved = next(e for e in ported.edits if e.step == "output")
    assert ported.line(saved) == SCRIPT.splitlines().index('torch.save(model.state_dict(), "last.pt")') + 1
    script = tmp_path / "train_dist.py"
    script.write_text(ported.text)
    assert ran(script, tmp_path / "ran", 2)[0] == "0\n1\n"


LEFT = f"""import functools, torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(64, 4), torch.randn(64, 1)), batch_size=8, shuffle=True)
{STEP.partition("def epoch_of")[0]}for x, y in loader:
    step(x, y)
verbose = True
"""


@pytest.mark.parametrize(
    "line",
    [
        "print(sum(step(x, y) for x, y in loader) if verbose else 0)",
        "print({i: step(x, y) for i, (x, y) in enumerate(loader)})",
        "print(len({step(x, y) for x, y in loader}))",
        "a = sum(step(x, y) for x, y in loader); print(a)",
        "print((lambda: sum(step(x, y) for x, y in loader))())",
        "print(functools.reduce(max, (step(x, y) for x, y in loader)))",
        "print(any(step(x, y) > 9 for x, y in loader))",
    ],
)
def test_numbers_of_a_comprehension_that_trains_and_stays_are_told(line):
    ported = port(f"{LEFT}{line}\n")
    assert "unknown-placement" in {d.name for d in ported.doubts}, ported.text
