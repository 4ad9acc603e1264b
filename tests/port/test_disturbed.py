"""Samples that a script disturbs by their own gradients are no weights: nothing averages over the ranks there."""

import pytest
from small import HEAD

from dlrun.port import port

ATTACK = (
    HEAD
    + """opt = torch.optim.SGD(model.parameters(), lr=0.1)
def attack(x, y):
    d = MADE
    for _ in range(5):
        (model(x + d) - y).pow(2).mean().backward()
        MOVES
        d.grad.zero_()
    return d.detach()
for x, y in DataLoader(data, shuffle=True):
    d = attack(x, y)
    opt.zero_grad()
    (model(x + d) - y).pow(2).mean().backward()
    opt.step()
"""
)


@pytest.mark.parametrize(
    ("made", "moves"),
    [
        (
            "torch.zeros_like(x).uniform_(-0.1, 0.1).requires_grad_(True)",
            "d.data = (d + 0.02 * d.grad.sign()).clamp(-1, 1)",
        ),
        ("torch.zeros_like(x, requires_grad=True)", "d.data += 0.02 * d.grad.sign()"),
        ("(x.clone() - x).requires_grad_()", "d.data.add_(0.02 * d.grad.sign())"),
    ],
)
def test_what_is_made_of_samples_moves_by_its_own_gradients(made, moves):
    ported = port(ATTACK.replace("MADE", made).replace("MOVES", moves))
    assert ported.text.count("dl.gradients(") == 1
    assert not [doubt for doubt in ported.doubts if "by hand" in doubt.why]


def test_weights_that_a_function_makes_are_averaged():
    made = "torch.zeros(x.shape[1], requires_grad=True)"
    assert "dl.gradients([d])" in port(ATTACK.replace("MADE", made).replace("MOVES", "d.data -= 0.1 * d.grad")).text


def test_weights_that_a_function_is_given_are_averaged():
    script = (
        ATTACK.replace("    d = MADE\n", "").replace("attack(x, y)", "attack(x, y, d)").replace("d = attack", "attack")
    )
    assert "dl.gradients([d])" in port(script.replace("MOVES", "d.data -= 0.1 * d.grad")).text
