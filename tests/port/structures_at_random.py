"""Makes training scripts whose structure is put together at random.

How the loop goes, where it stands, what it counts, what it keeps and where, what it does every so many steps, and
what it shows and decides behind it. The rate is 0, so that serial and ported scripts find the same numbers.
"""

import random
import textwrap
from typing import NamedTuple

PRELUDE = """import collections, dataclasses, itertools, json, math, statistics
import numpy as np, torch, torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
X = torch.randn(96, 5); Y = X.sum(1, keepdim=True) + 0.1 * torch.randn(96, 1)
loader = DataLoader(TensorDataset(X, Y), batch_size=8, shuffle={shuffle})
val = DataLoader(TensorDataset(X[:40] * 2, Y[:40]), batch_size=8)
model = nn.Linear(5, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.0)
"""
DEFINITIONS = {
    "Meter": """class Meter:
    def __init__(self): self.reset()
    def reset(self): self.sum, self.count, self.avg = 0.0, 0, 0.0
    def update(self, v, n=1):
        self.sum += v * n; self.count += n
        self.avg = self.sum / self.count
""",
    "Stats": """@dataclasses.dataclass
class Stats:
    loss: float = 0.0
    n: int = 0
    def add(self, v): self.loss += v; self.n += 1
    @property
    def mean(self): return self.loss / max(self.n, 1)
""",
    "State": "class State: pass\n",
    "wrap": "def wrap(it):\n    for at, batch in enumerate(it):\n        yield batch\n",
    "batches": "def batches():\n    for i in range(0, len(X), 8):\n        yield X[i:i + 8], Y[i:i + 8]\n",
}
EVALUATIONS = (
    """def evaluate():
    total, hits, n = 0.0, 0, 0
    with torch.no_grad():
        for a, b in val:
            o = model(a)
            total += nn.functional.mse_loss(o, b).item() * len(a)
            hits += int((o > b).sum()); n += len(a)
    return total / n, hits
""",
    """@torch.no_grad()
def evaluate():
    losses = [nn.functional.mse_loss(model(a), b).item() for a, b in val]
    return sum(losses) / len(losses), len(losses)
""",
    """def evaluate():
    ps, ts = [], []
    with torch.no_grad():
        for a, b in val:
            ps.append(model(a)); ts.append(b)
    p, t = torch.cat(ps), torch.cat(ts)
    return float((p - t).pow(2).mean()), int((p > t).sum())
""",
)
STEPS = (
    "out = model(x)\nloss = nn.functional.mse_loss(out, y)\nopt.zero_grad()\nloss.backward()\nopt.step()\n",
    "opt.zero_grad()\nout = model(x)\nloss = ((out - y) ** 2).mean()\nloss.backward()\nopt.step()\n",
)
FLOATS = ("loss.item()", "float(loss)", "float((out - y).abs().mean())", "loss.item() * len(x)")
VALUES = (
    *FLOATS,
    *("int((out > y).sum())", "len(x)", "x.size(0)", "1", "(out * y).sum().item()", "loss.detach()"),
    *("(out > 0).sum().item()", "(out.round() == y.round()).float().sum().item()", "loss.item() ** 0.5 * 2"),
)


class Loop(NamedTuple):
    """How a loop goes: what stands before it, its head, how it gets a batch, its number from 0, and its end."""

    before: str
    head: str
    gets: str = ""
    number: str = ""
    ends: str = ""
    needs: str = ""


LOOPS = (
    Loop("", "for x, y in loader:"),
    Loop("", "for i, (x, y) in enumerate(loader):", number="i"),
    Loop("", "for i, (x, y) in enumerate(loader, 1):", number="i - 1"),
    Loop("", "for i, batch in enumerate(loader):", "x, y = batch\n", "i"),
    Loop("", "for i, (x, y) in zip(itertools.count(), loader):", number="i"),
    Loop("it = iter(loader)\n", "for i in range(len(loader)):", "x, y = next(it)\n", "i"),
    Loop(
        *("it, i = iter(loader), 0\n", "while True:"),
        *("try:\n    x, y = next(it)\nexcept StopIteration:\n    break\n", "i", "i += 1\n"),
    ),
    Loop("", "for x, y in wrap(loader):", needs="wrap"),
    Loop("", "for i in range(0, len(X), 8):", "x, y = X[i:i + 8], Y[i:i + 8]\n", "i // 8"),
    Loop(
        *("order = torch.randperm(len(X))\n", "for b in range(len(X) // 8):"),
        *("at = order[b * 8:(b + 1) * 8]\nx, y = X[at], Y[at]\n", "b"),
    ),
    Loop("", "for i, (x, y) in enumerate(batches()):", number="i", needs="batches"),
    Loop("", "for i, (x, y) in enumerate(itertools.islice(loader, 12)):", number="i"),
)


class Kept(NamedTuple):
    """What a loop fills: how it begins, what an iteration does, what is read, and how many iterations it counts."""

    begins: str
    adds: str
    read: str
    count: str = ""
    needs: str = ""


def _kept(draw: random.Random, name: str) -> Kept:
    """Return one of the ways in which scripts keep numbers, as ``name``."""
    v, f = draw.choice(VALUES), draw.choice(FLOATS)
    p, n = name, f"{name}_n"
    return draw.choice(
        (
            Kept(f"{p} = 0.0", draw.choice((f"{p} += {v}", f"{p} = {p} + {v}")), p),
            Kept(f"{p} = 0.0; {n} = 0", f"{p} += {f}; {n} += {draw.choice(('1', 'len(x)'))}", f"{p} / max({n}, 1)", n),
            Kept(f"{p} = {{'a': 0.0, 'n': 0}}", f"{p}['a'] += {v}; {p}['n'] += 1", f"{p}['a'] / {p}['n']", f"{p}['n']"),
            Kept(
                f"{p} = []",
                draw.choice((f"{p}.append({v})", f"{p} += [{v}]", f"{p} = {p} + [{v}]")),
                draw.choice((f"sum({p})", f"float(np.mean({p}))", f"sum({p}) / len({p})")),
                f"len({p})",
            ),
            Kept(f"{p} = ()", f"{p} = {p} + ({v},)", f"sum({p})", f"len({p})"),
            Kept(
                f"{p} = collections.defaultdict(list)",
                f"{p}['loss'].append({v}); {p}['n'].append(len(x))",
                f"sum({p}['loss']) / sum({p}['n'])",
                f"len({p}['loss'])",
            ),
            Kept(
                f"{p} = Meter()",
                draw.choice((f"{p}.update({f})", f"{p}.update({f}, len(x))")),
                draw.choice((f"{p}.avg", f"{p}.sum")),
                f"{p}.count",
                "Meter",
            ),
            Kept(f"{p} = Stats()", f"{p}.add({f})", draw.choice((f"{p}.loss", f"{p}.mean")), f"{p}.n", "Stats"),
            Kept(f"{p} = torch.zeros(())", f"{p} += loss.detach()", f"{p}.item()"),
            Kept(f"{p} = np.zeros(2)", f"{p} += ({f}, len(x))", f"{p}[0] / {p}[1]", f"{p}[1]"),
            Kept(f"{p} = (0.0, 0)", f"{p} = ({p}[0] + {f}, {p}[1] + 1)", f"{p}[0] / {p}[1]", f"{p}[1]"),
            Kept(f"{p} = [0.0, 0]", f"{p}[0] += {f}; {p}[1] += 1", f"{p}[0] / {p}[1]", f"{p}[1]"),
            Kept(f"{p} = collections.Counter()", f"{p}['n'] += len(x)", f"sum({p}.values())"),
            Kept(f"{p} = collections.deque()", f"{p}.append({v})", f"sum({p}) / max(len({p}), 1)", f"len({p})"),
            Kept(f"{p} = []", f"{p}.append(f'{{{f}:.4f}}')", f"len({p})", f"len({p})"),
            Kept(f"{p} = 0.0; {n} = 0", f"{n} += 1; {p} += ({f} - {p}) / {n}", p, n),
        )
    )


def _shown(draw: random.Random, tag: str, reads: list[str]) -> str:
    row = ", ".join(reads)
    return draw.choice(
        (
            f"print('{tag}', {row})",
            f"print('{tag} ' + ' '.join('{{}}'.format(e) for e in ({row},)))",
            f"print('{tag} {' '.join(['%s'] * len(reads))}' % ({row},))",
            f"line = '{tag}: ' + ', '.join(map(str, [{row}]))\nprint(line)",
            "\n".join(f"print('{tag}', {read})" for read in reads),
            f"print('{tag}', {row}, sep=' | ')",
        )
    )


def _block(text: str) -> str:
    return textwrap.indent(text.rstrip("\n") + "\n", "    ")


def _begun(kept: list[Kept]) -> str:
    return "".join(each.begins.replace("; ", "\n") + "\n" for each in kept)


class _Script:
    """A script in the making: its state is in names, or in attributes of the object ``where``."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.names = iter(range(100))
        self.shape = self.draw.choice(("module", "module", "function", "function", "closure", "class", "state"))
        self.where = {"class": "self.", "state": "st."}.get(self.shape, "")
        self.an_epoch = [self._store(self.draw.random() < 0.5) for _ in range(self.draw.randint(1, 2))]
        self.all_epochs = [self._store(True) for _ in range(self.draw.randint(0, 2))]
        self.counters = [self._counter() for _ in range(self.draw.randint(0, 2))]
        self.evaluates = False

    def _name(self, kind: str, outside: bool = True) -> str:
        return f"{self.where if outside else ''}{kind}{next(self.names)}"

    def _store(self, outside: bool) -> Kept:
        return _kept(self.draw, self._name("kept", outside))

    def _counter(self) -> Kept:
        name, by = self._name("count"), self.draw.choice(("1", "1", "len(x)"))
        return Kept(f"{name} = 0", f"{name} += {by}", name, name if by == "1" else "")

    def _at_times(self, loop: Loop) -> str:
        """Return what an iteration does every so many steps."""
        every = self.draw.choice((2, 4, 6))
        tests = [f"{each.count} % {every} == 0" for each in self.counters if each.count]
        if loop.number:
            n = f"({loop.number})"
            tests += [f"({n} + 1) % {every} == 0", f"{n} % {every} == {every - 1}", f"{n} == len(loader) - 1"]
        if not tests or self.draw.random() < 0.2:
            return ""
        test, one = self.draw.choice(tests), self.draw.choice(self.an_epoch)
        step = [each.read for each in self.counters if each.count][:1]
        how = self.draw.choice(("window", "window", "shows", "keeps", "marks", "best", "evaluates"))
        name = self._name(how)
        if how == "window":
            self.an_epoch.append(made := self._store(self.draw.random() < 0.5))
            reads = [made.read, *([made.count] if made.count else []), *step]
            return f"{made.adds}\nif {test}:\n" + _block(_shown(self.draw, "window", reads) + "\n" + _begun([made]))
        if how == "shows":
            return f"if {test}:\n" + _block(_shown(self.draw, "at", [one.read, *step]))
        if how == "evaluates":
            self.evaluates = True
            return f"if {test}:\n" + _block("vl, va = evaluate()\nprint('val', vl, va)")
        if how == "best":
            self.all_epochs.append(Kept(f"{name} = float('inf')", "", name))
            return f"if {test}:\n" + _block(f"{name} = min({name}, {self.draw.choice(('len(loader)', one.read))})")
        self.all_epochs.append(Kept(f"{name} = []", "", f"[float(e) for e in {name}]", f"len({name})"))
        entry = one.count or one.read if how == "keeps" else (step or [loop.number or "1"])[0]
        return f"if {test}:\n" + _block(f"{name}.append({entry})")

    def _behind(self) -> str:
        """Return what is done behind the loop, once an epoch."""
        reads = [self.draw.choice((each.read, each.count or each.read)) for each in self.an_epoch]
        reads += [each.read for each in self.counters + self.all_epochs if self.draw.random() < 0.5]
        lines = [_shown(self.draw, "epoch", ["epoch", *reads[:3]])]
        if self.draw.random() < 0.4:
            self.evaluates, name = True, self._name("low")
            self.all_epochs.append(Kept(f"{name} = 1e9", "", name))
            lines.append(f"vl, va = evaluate()\nif vl < {name}:\n    {name} = vl\n    print('better', vl, va)")
        if self.draw.random() < 0.6:
            name = self._name("history")
            self.all_epochs.append(Kept(f"{name} = []", "", f"[round(float(e), 4) for e in {name}]", f"len({name})"))
            lines.append(f"{name}.append({self.an_epoch[0].read})")
        return "\n".join(lines) + "\n"

    def text(self) -> str:
        """Return the script."""
        loop, step = self.draw.choice(LOOPS), self.draw.choice(STEPS)
        at_times = self._at_times(loop)
        counted = "".join(f"{each.adds}\n" for each in self.counters)
        adds = "".join(f"{each.adds}\n" for each in self.an_epoch + self.all_epochs if each.adds not in at_times)
        body = loop.gets + step + adds + counted + at_times + loop.ends
        behind = self._behind()
        epoch = _begun(self.an_epoch) + loop.before + loop.head + "\n" + _block(body) + behind
        begun = _begun(self.all_epochs + self.counters)
        end = _shown(self.draw, "end", [each.read for each in self.all_epochs + self.counters][:4] or ["epoch"])
        names = sorted({line.partition(" = ")[0] for line in begun.splitlines()})
        outer = f"{'nonlocal' if self.shape == 'closure' else 'global'} {', '.join(names)}\n" if names else ""
        epochs, end = "for epoch in range(2):\n", end + "\n"
        if self.shape == "module":
            main = begun + epochs + _block(epoch) + end
        elif self.shape == "class":
            methods = f"def __init__(self):\n{_block(begun or 'pass')}def one(self, epoch):\n{_block(epoch)}"
            fit = f"def fit(self):\n{_block(epochs + '    self.one(epoch)' + chr(10) + end)}"
            main = f"class Trainer:\n{_block(methods + fit)}Trainer().fit()\n"
        elif self.shape == "state":
            one = f"def one(st, epoch):\n{_block(epoch)}"
            main = f"{one}st = State()\n{begun}{epochs}    one(st, epoch)\n{end}"
        elif self.shape == "function":
            main = f"def one(epoch):\n{_block(outer + epoch)}{begun}{epochs}    one(epoch)\n{end}"
        else:
            one = f"def one(epoch):\n{_block(outer + epoch)}"
            main = f"def main():\n{_block(begun + one + epochs + '    one(epoch)' + chr(10) + end)}main()\n"
        needed = dict.fromkeys((*(each.needs for each in self.an_epoch + self.all_epochs), loop.needs))
        needed |= {"State": None} if self.shape == "state" else {}
        evaluate = self.draw.choice(EVALUATIONS) if self.evaluates else ""
        prelude = PRELUDE.format(shuffle=self.draw.choice(("True", "False")))
        return prelude + "".join(DEFINITIONS[name] for name in needed if name) + evaluate + main


def script(seed: int) -> str:
    """Return the script of ``seed``."""
    return _Script(seed).text()
