"""Samples that a script draws itself are sharded: by generators, by objects that keep their place."""

import pytest
from small import refused

from dlrun.port import port

HEAD = "import numpy as np\nimport torch\nfrom torch.utils.data import DataLoader\n"
MADE = "model = torch.nn.Linear(2, 1)\nopt = torch.optim.SGD(model.parameters(), lr=0.1)\n"
UPDATE = "(model(x) - y).pow(2).mean().backward()\n        opt.step()\n"
GENERATOR = """
def minibatches(x, y, size, shuffle=True):
    order = np.arange(len(x))
    if shuffle:
        np.random.shuffle(order)
    for start in range(0, len(x), size):
        pick = order[start : start + size]
        yield x[pick], y[pick]
"""
WALKER = """
class Data:
    def __init__(self, x, y):
        self.x, self.y, self.at = x, y, 0
    def next_batch(self, size):
        start = self.at
        self.at += size
        if self.at > len(self.x):
            order = np.random.permutation(len(self.x))
            self.x, self.y = self.x[order], self.y[order]
            start, self.at = 0, size
        return self.x[start : self.at], self.y[start : self.at]
"""


def test_a_generator_is_sharded_in_one_order_and_stays_whole_where_it_only_evaluates():
    text = port(f"""{HEAD}{GENERATOR}{MADE}
for epoch in range(3):
    for i, (x, y) in enumerate(minibatches(a, b, 8)):
        {UPDATE}
    for x, y in minibatches(c, d, 8, shuffle=False):
        print(model(x).mean().item())
""").text
    assert "in enumerate(dl.shard(minibatches(a, b, 8))):" in text
    assert "in minibatches(c, d, 8, shuffle=False):" in text
    assert "order = dl.broadcast(order)" in text


def test_a_generator_that_passes_on_the_batches_of_a_loader_leaves_the_sharing_to_the_loader():
    text = port(f"""{HEAD}{MADE}
def forever(loader):
    while True:
        for batch in loader:
            yield batch
batches = forever(DataLoader(data, batch_size=8, shuffle=True))
for step in range(100):
        x, y = next(batches)
        {UPDATE}""").text
    assert "batches = forever(dl.shard(DataLoader(data, batch_size=8, shuffle=True)))" in text
    assert "range(dl.steps(100))" in text


@pytest.mark.parametrize(("make", "take"), [("iter(loader)", "it.next()"), ("loader.__iter__()", "it.__next__()")])
def test_an_iterator_may_be_advanced_by_its_methods(make, take):
    text = port(f"""{HEAD}{MADE}
loader = DataLoader(data, batch_size=8, shuffle=True)
def forever(batches):
    it = {make.replace("loader", "batches")}
    while True:
        try:
            yield {take}
        except StopIteration:
            it = {make.replace("loader", "batches")}
source = forever(loader)
for step in range(5 * len(loader)):
        x, y = source.__next__()
        {UPDATE}
it = {make}
for step in range(len(loader)):
        x, y = {take}
        {UPDATE}""").text
    assert text.count("dl.shard(") == 1
    assert "loader = dl.shard(DataLoader(data, batch_size=8, shuffle=True))" in text
    assert "dl.steps" not in text  # the loader's length is that of the share


CRITIC = """
og = torch.optim.SGD(made.parameters(), lr=0.1)
{outer}
    for _ in range(5):
        real = {real}
        (model(real) - model(made(torch.randn(8, 2)))).mean().backward()
        opt.step()
    model(made(torch.randn(8, 2))).mean().backward()
    og.step()
"""


def test_the_updates_of_a_critic_in_each_turn_are_as_many_as_before():
    source = HEAD + MADE + "made = torch.nn.Linear(2, 2)\n"
    drawn = port(source + CRITIC.format(outer="for it in range(1000):", real="x[np.random.randint(0, 99, 8)]")).text
    assert "for it in range(dl.steps(1000)):" in drawn
    assert "for _ in range(5):" in drawn
    sharded = port(source + CRITIC.format(outer="for x, y in DataLoader(data, shuffle=True):", real="x")).text
    assert "for x, y in dl.shard(DataLoader(data, shuffle=True)):" in sharded
    assert "for _ in range(5):" in sharded
    batches = "it = iter(loader)\nwhile i < len(loader):\n    j = 0"
    counting = CRITIC.replace("for _ in range(5)", "while j < 5")
    by_hand = counting.format(outer=batches, real="next(it)[0]; j += 1; i += 1")
    counted = port(source + "i, loader = 0, DataLoader(data, shuffle=True)\n" + by_hand).text
    assert "while j < 5:" in counted
    assert "while i < len(loader):" in counted


@pytest.mark.parametrize(
    ("turns", "last", "written"),
    [
        ("args.n", "it == args.n - 1", ("dl.steps(args.n)", "it == dl.steps(args.n) - 1")),
        ("args.n", "it + 1 >= args.n", ("dl.steps(args.n)", "it + 1 >= dl.steps(args.n)")),
        ("1, args.n + 1", "it == args.n", ("1, dl.steps(args.n) + 1", "it == dl.steps(args.n)")),
        ("args.n", "size == args.n", ("dl.steps(args.n)", "size == args.n")),
    ],
)
def test_what_is_done_at_the_last_step_is_done_at_the_last_of_fewer(turns, last, written):
    text = port(f"""{HEAD}{MADE}
for it in range({turns}):
        x, y = draw(np.random.randint(0, 99, 8))
        {UPDATE}
        if it % 100 == 0 or {last}:
            torch.save(model.state_dict(), "net.pt")
""").text
    assert f"for it in range({written[0]}):" in text
    assert f"if dl.should_stop() or it % dl.steps(100) == 0 or {written[1]}:" in text


def test_the_time_steps_that_a_model_goes_through_with_next_are_no_samples():
    text = port(f"""{HEAD}
class Net(torch.nn.Module):
    def loss(self, x):
        scores = self.layer(x) + self.bias
        scores = torch.relu(scores).view(len(x), -1)
        steps = enumerate(scores)
        _, first = next(steps)
        return sum(step - first for _, step in steps).sum() / next(self.parameters()).abs().sum()
model = Net()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
batches = len(x) // 8 + 1
for epoch in range(3):
    for i in range(batches):
        part = x[i * 8 : i * 8 + 8]
        model.loss(part).backward()
        opt.step()
""").text
    assert "scores = torch.relu(scores).view(len(x), -1)" in text
    assert "for i in dl.shard(range(batches)):" in text


LOGGER = """
class Logger:
    def log_every(self, iterable, every):
        for i, obj in enumerate(iterable):
            yield obj
            if i % every == 0:
                print(i, len(iterable))
def train(loader, logger):
    for x, y in logger.log_every(loader, 10):
        (model(x) - y).pow(2).mean().backward()
        opt.step()
def evaluate(loader, logger):
    for x, y in logger.log_every(loader, 10):
        print(model(x).mean().item())
"""


def test_a_generator_that_passes_on_what_it_is_given_leaves_a_loader_a_loader():
    text = port(f"""{HEAD}{MADE}{LOGGER}
train_loader, val_loader = DataLoader(data, shuffle=True), DataLoader(other)
for epoch in range(3):
    train(train_loader, Logger())
    evaluate(val_loader, Logger())
""").text
    assert "train_loader, val_loader = dl.shard(DataLoader(data, shuffle=True)), DataLoader(other)\n" in text
    assert "in logger.log_every(loader, 10):" in text


def test_entries_kept_behind_a_bar_are_those_of_its_loader_and_a_name_is_what_it_was_bound_to_last():
    text = port(f"""from tqdm import tqdm
{HEAD}{MADE}
loader = DataLoader(data, shuffle=True)
for epoch in range(3):
    kept = []
    bar = tqdm(loader)
    for x, y in bar:
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        opt.step()
        kept.append(loss.item())
    print(sum(kept) / len(kept))
kept = []
bar = tqdm(range(1, 9))
for step in bar:
    x, y = torch.randn(4, 2), torch.randn(4, 1)
    loss = (model(x) - y).pow(2).mean()
    loss.backward()
    opt.step()
    kept.append(loss.item())
print(len(kept))
""").text
    assert "loader = dl.shard(DataLoader(data, shuffle=True))" in text
    assert "kept = dl.gather(kept, over=loader)" in text
    assert "bar = tqdm(range(1, dl.steps(9))" in text
    assert "kept = dl.gather(kept)" in text


def test_a_loader_behind_a_progress_bar_is_cut_and_not_the_bar():
    text = port(f"""from tqdm import tqdm
{HEAD}{MADE}
loader = DataLoader(data, shuffle=True)
for epoch in range(3):
    for x, y in loader:
        print(model(x).mean().item())
    bar = tqdm(loader)
    for x, y in bar:
        {UPDATE}
        bar.set_description("training")
    bar = tqdm(held)
    for x, y in bar:
        print(model(x).mean().item())
""").text
    assert "bar = tqdm(dl.shard(loader), disable=not dl.is_rank0())" in text
    assert "for x, y in bar:" in text
    picked = UPDATE.replace("x", "x[i]")
    text = port(f"from tqdm import trange\n{HEAD}{MADE}\nfor i in trange(9):\n        {picked}\n").text
    assert "for i in dl.shard(trange(9, disable=not dl.is_rank0())):" in text


def test_a_length_that_training_extends_counts_no_steps_and_what_ends_by_it_may_hang():
    ported = port(f"""{HEAD}{MADE}
length = 2
while length < 64:
        x, y = draw(np.random.randint(0, 99, 8), length)
        {UPDATE}
        if (model(x) - y).abs().max().item() < 0.1:
            length += 1
""")
    assert "while length < 64:" in ported.text
    assert "may-hang" in {d.name for d in ported.doubts}


def test_the_end_of_a_validation_is_no_end_of_the_training():
    text = port(f"""{HEAD}{MADE}
for epoch in range(3):
    for i, (x, y) in enumerate(DataLoader(data, shuffle=True)):
        {UPDATE}
        if i == 2000:
            break
    for i, (x, y) in enumerate(DataLoader(data)):
        if i == 3000:
            break
        print((model(x) - y).pow(2).mean().item())
""").text
    assert "if i == dl.steps(2000):" in text
    assert "if i == 3000:" in text


@pytest.mark.parametrize(
    ("made", "train"),
    [
        ("train = Data(a, b)", "train"),
        (
            "class Sets: pass\ndef read():\n    sets = Sets()\n    sets.train = Data(a, b)\n"
            "    return sets\nd = read()",
            "d.train",
        ),
    ],
)
def test_what_keeps_its_place_among_the_samples_is_asked_in_turn(made, train):
    text = port(f"""{HEAD}{WALKER}{MADE}
{made}
for step in range(100):
        x, y = {train}.next_batch(8)
        {UPDATE}""").text
    assert f"x, y = dl.shard({train}.next_batch)(8)" in text
    assert "order = dl.broadcast(np.random.permutation(len(self.x)))" in text
    assert "range(dl.steps(100))" in text


@pytest.mark.parametrize(
    ("parameter", "test", "training", "evaluation"),
    [
        ("optimizer=None", "optimizer is not None", "opt", ""),
        ("train", "train", "True", "False"),
        ("phase='train'", "phase == 'train'", "'train'", "phase='val'"),
        ("evaluate=False", "not evaluate", "", "evaluate=True"),
    ],
)
def test_a_loader_that_a_shared_function_only_evaluates_stays_whole(parameter, test, training, evaluation):
    text = port(f"""{HEAD}{MADE}
def run(loader, {parameter}):
    total = count = 0
    for x, y in loader:
        loss = (model(x) - y).pow(2).mean()
        if {test}:
            loss.backward()
            opt.step()
        total += loss.item() * len(x)
        count += len(x)
    return total / count
train_loader = DataLoader(data, batch_size=8, shuffle=True)
val_loader = DataLoader(other, batch_size=8)
for epoch in range(3):
    run(train_loader, {training})
    print(run(val_loader, {evaluation}))
""").text
    assert "train_loader = dl.shard(DataLoader(data, batch_size=8, shuffle=True))" in text
    assert "val_loader = DataLoader(other, batch_size=8)" in text


def test_what_some_ranks_may_not_come_to_is_averaged_by_none():
    text = port(f"""import gymnasium as gym
{HEAD}{MADE}
env, returns, losses, state = gym.make("CartPole-v1"), [], [], start()
for update in range(100):
    for t in range(32):
        state, reward, done, cut, info = env.step(model(state).argmax().item())
        if done or cut:
            returns.append(reward)
    loss = model(state).mean()
    loss.backward()
    opt.step()
    losses.append(loss.item())
    if returns:
        print("with returns", loss.item())
    if losses:
        print("always", loss.item())
""").text
    assert 'print("with returns", loss.item())' in text
    assert 'print("always", dl.average(loss.item()))' in text


def test_a_position_that_a_global_keeps_and_that_begins_anew_is_asked_in_turn():
    text = port(f"""{HEAD}{MADE}
at = 0
def batch(size):
    global at
    rows = []
    for _ in range(size):
        rows.append(words[at])
        at = (at + 1) % len(words)
    return torch.tensor(rows), torch.randn(size, 1)
for step in range(900):
        x, y = batch(8)
        {UPDATE}""").text
    assert "x, y = dl.shard(batch)(8)" in text
    assert "range(dl.steps(900))" in text


def test_an_environment_of_ones_own_is_played_on_each_rank_and_its_episodes_are_not_cut():
    ported = port(f"""{HEAD}import random
class Corridor:
    def reset(self): return np.zeros(2)
    def step(self, action): return np.zeros(2), 1.0, random.random() < 0.1, {{}}
env = Corridor()
{MADE}
for episode in range(9):
    state = env.reset()
    for t in range(200):
        state, reward, done, _ = env.step(random.randrange(2))
        loss = model(torch.tensor(state)).mean() * reward
        loss.backward()
        opt.step()
        if done:
            break
    print(episode, loss.item())
    torch.save(model.state_dict(), "policy.pt")
""")
    assert "range(200)" in ported.text
    assert "dl.save" in ported.text
    for together in ("dl.average", "dl.should_stop"):  # the ranks do not come to the end of an episode together
        assert together not in ported.text
    assert "episodes differ in length" in ported.report()


EVALUATED = """
import torch
from torch.utils.data import DataLoader
loader = DataLoader(data, batch_size=8, shuffle=True)
model = torch.nn.Linear(2, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)

def endless(batches):
    while True:
        for batch in batches:
            yield batch

def error():
    taken, total = MADE, 0.0
    with torch.no_grad():
        for i in range(4):
            x, y = next(taken)
            total += (model(x) - y).pow(2).mean().item()
    return total

it = MADE
for step in range(100):
    try:
        x, y = next(it)
    except StopIteration:
        it = MADE
        x, y = next(it)
    loss = (model(x) - y).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 10 == 0:
        print(error())
"""


@pytest.mark.parametrize(
    ("made", "sharded"), [("iter(loader)", "iter(dl.shard(loader))"), ("endless(loader)", "endless(dl.shard(loader))")]
)
def test_a_loader_stays_whole_where_an_evaluation_draws_from_it_and_each_iterator_of_the_training_is_sharded(
    made, sharded
):
    text = port(EVALUATED.replace("MADE", made)).text
    assert "loader = DataLoader(data, batch_size=8, shuffle=True)\n" in text
    assert f"    taken, total = {made}, 0.0\n" in text
    assert f"\nit = {sharded}\n" in text
    assert f"        it = {sharded}\n" in text


SHARED = """
def forever(batches):
    it = batches.__iter__()
    while True:
        try:
            yield it.__next__()
        except StopIteration:
            it = batches.__iter__()
def take(source):
    x, y = source.__next__()
    return {"x": x, "y": y}
def error(model, source, n):
    total = 0
    for i in range(n):
        batch = take(source)
        total += (model(batch["x"]) - batch["y"]).pow(2).mean()
    return total / n
def sources(name):
    train = DataLoader(data[:48], batch_size=8, shuffle=True)
    test = DataLoader(data[48:], batch_size=8)
    if name == "other":
        train = DataLoader(other, batch_size=8)
    return {"train": forever(train), "test": forever(test), "n": len(train)}
held = sources("one")
for step in range(5 * held["n"]):
        batch = take(held["train"])
        x, y = batch["x"], batch["y"]
        UPDATE
        if step % held["n"] == 0:
            with torch.no_grad():
                print(error(model, held["test"], 2))
                shown = take(held["test"])
                plot(model(shown["x"]))
"""


def test_a_function_that_draws_for_training_and_for_evaluation_shares_what_trains_alone():
    text = port(HEAD + MADE + SHARED.replace("        UPDATE\n", f"        {UPDATE}\n")).text
    assert "train = dl.shard(DataLoader(data[:48], batch_size=8, shuffle=True))" in text
    assert "train = dl.shard(DataLoader(other, batch_size=8))" in text
    assert text.count("dl.shard(") == 2
    assert "dl.steps" not in text


BLIND = f"""{HEAD}
class Crops(torch.utils.data.Dataset):
    def __init__(self, text):
        self.text, self.rng = text, np.random.RandomState(0)
    def __len__(self):
        return 64
    def __getitem__(self, index):
        at = DRAWN
        return self.text[at], self.text[at + 1]
def begin(worker):
    np.random.seed(SEED)
{MADE}for x, y in DataLoader(Crops(text), batch_size=8, num_workers=2WORKERS):
        {UPDATE}"""


@pytest.mark.parametrize(
    ("drawn", "workers", "seed", "doubted"),
    [
        ("self.rng.randint(63)", "", "0", "__getitem__() draws a sample whatever its number, from one seed"),
        ("self.rng.randint(63) + 0 * index", "", "0", ""),  # noise beside samples of its own
        ("np.random.randint(63)", "", "0", ""),  # local chance
        ("np.random.randint(63)", ", worker_init_fn=begin", "worker", "the workers of all ranks get the same seeds"),
        ("np.random.randint(63)", ", worker_init_fn=begin", "torch.initial_seed() % 2**32 + worker", ""),
        ("index", ", worker_init_fn=begin", "worker", ""),
    ],
)
def test_a_data_set_that_draws_its_samples_itself_needs_other_seeds_on_other_ranks(drawn, workers, seed, doubted):
    source = BLIND.replace("DRAWN", drawn).replace("WORKERS", workers).replace("SEED", seed)
    high = [d.why for d in port(source).doubts if d.danger == "high"]
    assert [why.startswith(doubted) for why in high] == ([True] if doubted else [])


def test_workers_that_get_the_same_seeds_on_all_ranks_are_told():
    told = BLIND.replace("DRAWN", "index").replace("WORKERS", ", worker_init_fn=begin")
    low = [d.why for d in port(told.replace("SEED", "42 + worker")).doubts if d.danger == "low"]
    assert "the workers of all ranks get the same seeds here, and draw the same noise beside samples" in low
    assert not any("seeds" in d.why for d in port(told.replace("SEED", "torch.initial_seed() % 2**32")).doubts)


ENDLESS = """import torch
from torch.utils.data import DataLoader
def endless(iterable):
    iterator = iterable.__iter__()
    while True:
        try:
            yield iterator.__next__()
        except StopIteration:
            iterator = iterable.__iter__()
def loaded(data):
    loader = DataLoader(data, batch_size=4)
    n = len(loader)
    loader = endless(loader)
    return loader, n
def batch(loader):
    return loader.__next__()
model = torch.nn.Linear(4, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
loader, n = loaded(data)
for epoch in range(3):
    for i in range(n):
        opt.zero_grad()
        model(batch(loader)).mean().backward()
        opt.step()
"""


def test_a_loader_that_an_endless_generator_goes_through_again_and_again_is_shared_once():
    text = port(ENDLESS).text
    assert "loader = dl.shard(DataLoader(data, batch_size=4))" in text
    assert text.count("dl.shard") == 1, "what the generator yields is a batch of that share"


def test_what_moves_on_by_a_method_next_and_gives_nothing_is_no_iterator():
    source = """import torch
handle = tables[name].Handle(data)
model = torch.nn.Linear(4, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(99):
    x = handle.get_batch()
    opt.zero_grad()
    model(x).mean().backward()
    opt.step()
    handle.next()
"""
    assert "found no samples to share" in refused(source).message
    assert "handle = dl.shard(" in port(source.replace("handle.get_batch()", "handle.next()")).text


IN_TURN = """
class InTurn:
    def __init__(self, heads, tails):
        self.heads, self.tails, self.at = self.endless(heads), self.endless(tails), 0
    def __next__(self):
        self.at += 1
        return next(self.heads) if self.at % 2 else next(self.tails)
    @staticmethod
    def endless(loader):
        while True:
            yield from loader
"""


def test_loaders_behind_an_object_that_only_gives_the_next_batch_are_sharded_themselves():
    for loop in ("yield from loader", "for batch in loader:\n                yield batch"):
        text = port(f"""{HEAD}{IN_TURN.replace("yield from loader", loop)}{MADE}
heads = DataLoader(a, shuffle=True)
tails = DataLoader(b, shuffle=True)
both = InTurn(heads, tails)
for step in range(100):
        x, y = next(both)
        {UPDATE}
""").text
        assert "heads = dl.shard(DataLoader(a" in text and "tails = dl.shard(DataLoader(b" in text
        assert "both = InTurn(heads, tails)" in text


def test_what_the_sampler_of_a_loader_draws_is_left_to_the_loader():
    sampler = """class PerClass(torch.utils.data.Sampler):
    def __iter__(self):
        for k in np.random.permutation(9):
            picks = np.random.choice(self.of[k], 4)
            yield from picks
"""
    text = port(
        f"{HEAD}{sampler}{MADE}for epoch in range(9):\n    for x, y in loader:\n        {UPDATE}".replace(
            "for epoch", "loader = DataLoader(data, 8, sampler=PerClass(data))\nfor epoch"
        )
    ).text
    assert "loader = dl.shard(DataLoader(data, 8" in text and "alike" not in text


def test_a_loop_of_draws_whose_end_cannot_be_moved_is_doubted():
    for test, doubted in (("not book.end()", True), ("book.at < 100", False)):
        ported = port(f"""{HEAD}{MADE}
while {test}:
        pick = np.random.choice(99, 8)
        x, y = a[pick], b[pick]
        book.at += 1
        {UPDATE}
""")
        assert any("n times as many" in d.why for d in ported.doubts) is doubted


@pytest.mark.parametrize(
    "choice",
    [
        "loader = test_loader if evaluate else train_loader",
        "if evaluate:\n        loader = test_loader\n    else:\n        loader = train_loader",
    ],
)
def test_a_loader_that_a_function_chooses_to_evaluate_on_stays_whole(choice):
    text = port(f"""{HEAD}{MADE}train_loader = DataLoader(data, shuffle=True)
test_loader = DataLoader(others)
def run(evaluate=False):
    {choice}
    total = 0
    for x, y in loader:
        loss = (model(x) - y).pow(2).mean()
        if not evaluate:
            loss.backward()
            opt.step()
        total += loss.item()
    return total / len(loader)
for epoch in range(9):
    run()
    print(run(evaluate=True))
""").text
    assert "train_loader = dl.shard(DataLoader(data" in text and "test_loader = DataLoader(others)" in text


BESIDE = """
more, at = torch.randn(900, 2), 0
for x, y in DataLoader(data, batch_size=8, shuffle=True):
    {take}
    at += 8
    if at + 8 > len(more):
        at = 0
    ((model(x) - y).pow(2).mean(){loss}).backward()
    opt.step()
"""


def test_samples_that_a_loop_goes_through_beside_those_of_its_loader_leave_a_doubt():
    beside = BESIDE.format(take="part = more[at : at + 8]", loss=" + model(part).pow(2).mean()")
    (doubt,) = [d for d in port(HEAD + MADE + beside).doubts if d.danger == "high"]
    assert doubt.write == "more = dl.shard(more) before the loop"
    written = BESIDE.format(take="more[at : at + 8] = x", loss="")  # what is kept of the batches
    assert not [d for d in port(HEAD + MADE + written).doubts if "the same samples" in d.why]


FOREVER = """
loader = DataLoader(data, batch_size=8, shuffle=True)
def forever():
    while True:
        for batch in loader:
            yield batch
batches = {made}
x, y = next(batches)
for step in range(100):
    (model(x) - y).pow(2).mean().backward()
    opt.step()
    x, y = next(batches)
"""


@pytest.mark.parametrize("made", ["forever()", "iter(loader)"])
def test_the_first_batch_before_the_loop_is_of_the_loader_that_is_shared(made):
    found = port(HEAD + MADE + FOREVER.format(made=made))
    assert "loader = dl.shard(DataLoader(data, batch_size=8, shuffle=True))" in found.text
    assert not [d for d in found.doubts if d.danger == "high"]


JUDGED = """
from sklearn.metrics import roc_auc_score
for epoch in range(9):
    for x, y in DataLoader(data, batch_size=8, shuffle=True):
        (model(x) - y).pow(2).mean().backward()
        opt.step()
        {inside}
    auc = roc_auc_score(labels, {given})
    print(auc)
"""


def test_what_a_model_makes_of_all_samples_once_an_epoch_is_judged_without_a_doubt():
    whole = JUDGED.format(inside="pass", given="model(held_out).detach().numpy()")
    assert not [d for d in port(HEAD + MADE + whole).doubts if d.name == "unknown-placement"]
    last = JUDGED.format(inside="out = model(x)", given="out.detach().numpy()")
    assert "print(dl.average(auc))" in port(HEAD + MADE + last).text  # as of a loss, the mean of the ranks' last ones


def test_a_name_that_becomes_an_iterator_of_its_own_loader_is_shared_once():
    text = port("""import torch
from torch.utils.data import DataLoader
class Endless:
    def __init__(self, source):
        self.source, self.it = source, iter(source)
    def __next__(self):
        try:
            return next(self.it)
        except StopIteration:
            self.it = iter(self.source)
            return next(self.it)
def train(model, opt, batches):
    batches = Endless(batches)
    for step in range(20):
        x, y = next(batches)
        (model(x) - y).pow(2).mean().backward()
        opt.step()
model = torch.nn.Linear(2, 1)
train(model, torch.optim.SGD(model.parameters(), lr=0.1), DataLoader(data, batch_size=4, shuffle=True))
""").text
    assert "dl.shard(DataLoader(data, batch_size=4, shuffle=True))" in text
    assert text.count("dl.shard(") == 1


DRAWN = """import torch
from torch.utils.data import DataLoader
model = torch.nn.Linear(2, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(data, batch_size=4, shuffle=True)
for epoch in range(9):
    for x, y in loader:
        opt.zero_grad()
        (model(x) - y).pow(2).mean().backward()
        opt.step()
    {behind}
"""


def test_what_is_drawn_behind_the_steps_of_an_epoch_is_rank_0s_and_undoubted():
    made = port(DRAWN.format(behind="torch.save(model(torch.randn(8, 2)), f'sample_{epoch}.pt')"))
    assert not [d for d in made.doubts if d.name == "unknown-placement"]


def test_what_is_drawn_and_ends_a_training_is_agreed_on():
    made = port(DRAWN.format(behind="if torch.rand(1).item() > 0.9: break"))
    assert "if dl.agree(torch.rand(1).item() > 0.9): break" in made.text
