"""A loop that takes so many batches of what is sharded takes 1/n of them on n ranks."""

import pytest

from dlrun.port import port

SCRIPT = """import argparse
import itertools
import torch
from torch.utils.data import DataLoader, TensorDataset
args = argparse.ArgumentParser().parse_args()
torch.manual_seed(0)
data = torch.randn(512, 4)
loader = DataLoader(TensorDataset(data), batch_size=8, shuffle=True)
batches = [(data[i:i + 8],) for i in range(0, 512, 8)]
model = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.01)
def forever():
    while True:
        for batch in loader:
            yield batch
{before}
for {target} in {over}:
    model(x).pow(2).mean().backward()
    opt.step()
    {after}
"""


def lines(target, over, before="", after="opt.zero_grad()"):
    text = port(SCRIPT.format(target=target, over=over, before=before, after=after)).text
    return text.replace("dl.should_stop() or ", "")  # of a job that is told to end see ``test_written``


@pytest.mark.parametrize(
    ("target", "over", "written"),
    [
        ("(x,)", "itertools.islice(loader, 20)", "itertools.islice(loader, dl.steps(20))"),
        ("(x,)", "itertools.islice(loader, args.steps)", "itertools.islice(loader, dl.steps(args.steps))"),
        ("(x,)", "itertools.islice(loader, 10, 30)", "itertools.islice(loader, dl.steps(10), dl.steps(30))"),
        ("(x,)", "itertools.islice(loader, 0, 30)", "itertools.islice(loader, 0, dl.steps(30))"),
        ("(x,)", "itertools.islice(batches, 20)", "itertools.islice(dl.shard(batches), dl.steps(20))"),
        ("k, (x,)", "enumerate(itertools.islice(loader, 20))", "enumerate(itertools.islice(loader, dl.steps(20)))"),
        ("k, (x,)", "zip(range(20), loader)", "zip(range(dl.steps(20)), loader)"),
        ("k, (x,)", "zip(range(1, 20 + 1), loader)", "zip(range(1, dl.steps(20) + 1), loader)"),
        ("(x,), k", "zip(loader, range(20))", "zip(loader, range(dl.steps(20)))"),
        ("k, (x,)", "zip(range(200), forever())", "zip(range(dl.steps(200)), forever())"),
        ("k, (x,)", "zip(range(len(loader)), loader)", "zip(range(len(loader)), loader)"),
        ("(x,)", "itertools.islice(loader, 10, None)", "itertools.islice(loader, 10, None)"),
    ],
)
def test_so_many_batches_are_fewer_of_a_rank(target, over, written):
    assert f"for {target} in {written}:" in lines(target, over)


def test_a_name_for_the_batches_that_are_taken_is_followed():
    text = lines("(x,)", "head", "head = itertools.islice(loader, args.steps)")
    assert "head = itertools.islice(loader, dl.steps(args.steps))" in text


def test_samples_that_are_taken_before_they_are_sharded_stay_as_many():
    text = lines("(x,)", "few", "few = DataLoader(list(itertools.islice(TensorDataset(data), 100)), batch_size=8)")
    assert "itertools.islice(TensorDataset(data), 100)" in text


@pytest.mark.parametrize("over", ["zip(range(args.steps), forever())", "zip(range(args.steps), loader)"])
def test_what_is_done_at_some_of_the_steps_and_at_the_last_is_done_at_those_of_a_rank(over):
    after = 'if k % 50 == 0 or k == args.steps - 1:\n        torch.save(model.state_dict(), "net.pt")'
    assert "if k % dl.steps(50) == 0 or k == dl.steps(args.steps) - 1:" in lines("k, (x,)", over, after=after)
