"""Samples that a loop takes out of queues and lists of its own: sharded turn by turn, drawn anew, or refused."""

import pytest
from small import UPDATE, refused

from dlrun.port import port

HEAD = f"""import random
from collections import deque
import torch
x, y = torch.arange(1024.0).view(512, 2), torch.arange(512.0).view(512, 1)
model = torch.nn.Linear(2, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
batches = [(x[i:i + 8], y[i:i + 8]) for i in range(0, 512, 8)]
{UPDATE}
"""
LOOP = """for step in range(60):
    {takes}
    loss = (model(a) - b).pow(2).mean()
    loss.backward()
    opt.step()
"""


@pytest.mark.parametrize(
    ("queue", "takes", "move"),
    [
        (
            "deque(range(0, 512, 8))",
            "i = queue[0]\n    queue.rotate(-1)\n    a, b = x[i:i + 8], y[i:i + 8]",
            "queue.rotate(-1)",
        ),
        (
            "deque(range(0, 512, 8))",
            "i = queue.popleft()\n    queue.append(i)\n    a, b = x[i:i + 8], y[i:i + 8]",
            "queue.popleft()",
        ),
        ("list(range(512))", "i = [queue.pop() for _ in range(8)]\n    a, b = x[i], y[i]", "queue.pop()"),
        ("deque(batches)", "a, b = queue[0]\n    queue.rotate(-1)", "queue.rotate(-1)"),
        ("list(batches)", "a, b = queue.pop(0)", "queue.pop(0)"),
    ],
)
def test_samples_that_are_taken_out_of_a_queue_are_refused(queue, takes, move):
    error = refused(HEAD + f"queue = {queue}\n" + LOOP.format(takes=takes))
    assert f"{move} moves on in a queue of samples" in error.message
    assert "for batch in batches" in error.hint


def test_a_function_that_returns_the_batch_at_its_count_is_sharded_call_by_call():
    get = "at = 0\ndef get():\n    global at\n    batch = batches[at % len(batches)]\n    at += 1\n    return batch\n"
    assert "a, b = dl.shard(get)()" in port(HEAD + get + LOOP.format(takes="a, b = get()")).text


def test_an_order_that_each_rank_draws_anew_is_its_own_from_the_beginning():
    takes = (
        "if len(order) < 8:\n        order = list(range(512))\n        random.shuffle(order)\n"
        "    idx, order = order[:8], order[8:]\n    a, b = x[idx], y[idx]"
    )
    text = port(HEAD + "order = list(range(512))\nrandom.shuffle(order)\n" + LOOP.format(takes=takes)).text
    before = text[: text.index("\nrandom.shuffle(order)")].splitlines()[-1]
    assert before == "dl.reseed()  # from here on each rank draws random numbers of its own"


def test_a_part_of_a_list_of_batches_that_a_loop_trains_on_is_sharded():
    train = "train = batches[:48]\nfor a, b in train:\n    loss = (model(a) - b).pow(2).mean()\n    loss.backward()\n"
    assert "for a, b in dl.shard(train):" in port(HEAD + train + "    opt.step()\n").text


READER = """class Reader:
    def __init__(self):
        self.at = 0
    def has_next(self):
        return self.at < 512
    def next(self):
        batch = x[self.at:self.at + 8], y[self.at:self.at + 8]
        self.at += 8
        return batch
data = Reader()
"""


@pytest.mark.parametrize(("loop", "doubted"), [("while data.has_next():", True), ("for step in range(64):", False)])
def test_a_last_turn_past_the_end_of_what_a_reader_hands_out_is_doubted(loop, doubted):
    ported = port(HEAD + READER + LOOP.format(takes="a, b = data.next()").replace("for step in range(60):", loop))
    assert "a, b = dl.shard(data.next)()" in ported.text
    assert [d.danger for d in ported.doubts if "past the end in the last iteration" in d.why] == ["high"] * doubted
