"""Batches that are drawn before a loop, and anew in it, are local from the first step on."""

import pytest
from running import ran

from dlrun.port import port

OWN = "dl.reseed()  # from here on each rank draws random numbers of its own\n"
HEAD = """import torch
torch.manual_seed(0)
data = torch.randn(512, 4)
def get_batch():
    return data[torch.randint(512, (8,))]
model = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.01)
"""
FIRST = """x = get_batch()
"""
LOOP = """step = 0
while True:
    loss = model(x).pow(2).mean()
    x = get_batch()
    loss.backward()
    opt.step()
    opt.zero_grad()
    step += 1
    if step >= 4:
        break
"""
ORDER = """order, at = torch.randperm(512), 0
for step in range(40):
    if at + 8 > 512:
        order, at = torch.randperm(512), 0
    x = data[order[at:at + 8]]
    at += 8
    model(x).pow(2).mean().backward()
    opt.step()
"""


def test_a_batch_that_is_drawn_before_the_loop_is_each_ranks_own():
    assert f"{OWN}x = get_batch()\nstep = 0\ndl.broadcast(" in port(HEAD + FIRST + LOOP).text
    inside = "    " + (HEAD[HEAD.index("model") :] + FIRST + LOOP).replace("\n", "\n    ").rstrip(" ")
    text = port(f"{HEAD[: HEAD.index('model')]}def train():\n{inside}train()\n").text
    assert f"    {OWN}    x = get_batch()\n" in text


def test_an_order_that_is_drawn_before_the_loop_and_again_at_its_end_is_each_ranks_own():
    assert f"{OWN}order, at = torch.randperm(512), 0\nfor" in port(HEAD + ORDER).text.replace(
        "dl.broadcast(model, opt)  # every rank starts from rank 0's state\n" + OWN, ""
    )


@pytest.mark.parametrize("between", ["split = torch.randperm(512)[:50]\n", "fixed = torch.randn(4, 9)\n"])
def test_what_all_ranks_share_and_is_drawn_in_between_leaves_a_doubt(between):
    found = port(HEAD + FIRST + between + LOOP)
    assert found.text.count("dl.reseed()") == 1
    (doubt,) = [d for d in found.doubts if "all begin with the same samples" in d.why]
    assert doubt.danger == "high"


def test_a_probe_of_the_shapes_is_no_first_batch():
    loop = LOOP.replace("    loss = model(x)", "    x = get_batch()\n    loss = model(x)", 1)
    loop = loop.replace("    x = get_batch()\n    loss.backward", "    loss.backward")
    assert port(HEAD + FIRST + loop).text.count("dl.reseed()") == 1


def test_the_ranks_train_on_other_samples_in_the_first_step(tmp_path):
    script = tmp_path / "train_dist.py"
    seen = "    every = dl.broadcast(x.clone())\n    both = int(dl.total(int((every == x).all())))\n"
    text = port(HEAD + FIRST + LOOP).text
    text = text.replace("while True:\n", f"while True:\n{seen}    dl.print(step, both)\n", 1)
    script.write_text(text + "if dl.get_rank() == 0:\n    torch.save(model.state_dict(), 'last.pt')\n")
    said, _ = ran(script, tmp_path / "run", 2)
    assert said.split("\n")[0] == "0 1"  # rank 0 alone holds rank 0's first batch
