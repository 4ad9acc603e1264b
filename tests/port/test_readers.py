"""Ways to read what a loop has summed: each as its only reader, so that nothing else has it reduced, or told."""

import pytest

from dlrun.port import port

LOOP = """import collections, copy, functools, json, logging, math, operator, statistics, sys
from argparse import Namespace
from dataclasses import asdict, dataclass
import numpy as np
import torch
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(96, 5), torch.randn(96, 1)), 8)
model = torch.nn.Linear(5, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
class M:
    def __init__(self): self.s, self.n = 0.0, 0
    def mean(self): return self.s / self.n
    @property
    def avg(self): return self.s / self.n
    def __iter__(self): return iter((self.s, self.n))
    def __float__(self): return self.s
    def __getitem__(self, k): return getattr(self, k)
    def __call__(self): return self.s
@dataclass
class D:
    s: float = 0.0
made = {made}
for x, y in loader:
    loss = torch.nn.functional.mse_loss(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    v = loss.item()
    {adds}
"""
# What is made before the loop, and what iterations add to it: a sum, and what is none.
MADE = {
    "m": ("M()", "made.s += v; made.n += 1", "made.s = made.s * v + v"),
    "dc": ("D()", "made.s += v", "made.s = made.s * v + v"),
    "d": ('{"s": 0.0}', 'made["s"] += v', 'made["s"] = made["s"] * v + v'),
    "l": ("[0.0, 0.0]", "made[0] += v; made[1] += v", "made[0] = made[0] * v + v; made[1] = made[0]"),
    "h": ("[]", "made.append(v)", "made.append(made[-1] * v if made else v)"),
    "a": ("np.zeros(2)", "made[0] += v", "made[0] = made[0] * v + v"),
    "v": ("0.0", "made += v", "made = made * v + v"),
    "t": ("(0.0, 0.0)", "made = (made[0] + v, made[1] + v)", "made = (made[0] * v + v, made[1] * v + v)"),
    "ms": ("[M(), M()]", "for e in made: e.s += v", "for e in made: e.s = e.s * v + v"),
}
WAYS = {
    "m": """print(made.s)
print(made.mean())
print(made.avg)
print(made())
print(vars(made)["s"])
print(made.__dict__)
print(made["s"])
print(float(made))
print(list(made))
s, n = made; print(s)
print(*made)
print("{0.s}".format(made))
print("{s}".format(**vars(made)))
print("{s}".format_map(made.__dict__))
print("%(s)s" % vars(made))
print(f"{made.avg:.3f}")
print(operator.attrgetter("s")(made))
print([getattr(made, k) for k in ("s", "n")])
for k in ("s", "n"): print(k, getattr(made, k))
print({k: w for k, w in vars(made).items() if k != "n"})
print(json.dumps(made, default=vars))
print((lambda q: q.s)(made))
print(copy.copy(made).s)
q = {"m": made}; print(q["m"].s)
print(max([made], key=lambda o: o.s).s)
print([o.s for o in [made]])
print(next(o for o in [made] if o.n is not None).s)
print(functools.reduce(lambda p, o: p + o.s, [made], 0.0))
f = made.mean; print(f"{f():.3f}")
g = functools.partial(M.mean, made); print(g())
if (z := made.s) > 0: print(z)
if made.s > 50: print("large")
with open("o.txt", "w") as f: json.dump({"r": made.s}, f)
torch.save({"m": vars(made)}, "o.pt")
logging.getLogger("a").info("x %(s)s", vars(made))
sys.stdout.write(f"{made.s}")""",
    "dc": """print(made)
print(asdict(made))
print(f"{made}")""",
    "d": """print(made)
print(made.get("s"))
print(list(made.values()))
print({**made})
print(dict(**made, k=1)["s"])
print(Namespace(**made).s)
print(made | {"k": 1})
print(made.pop("s"))
print(made.setdefault("s", 0))
print(operator.itemgetter("s")(made))
print([made[k] for k in sorted(made)])
print("{s}".format(**made))
print("{0[s]}".format(made))
for k, w in sorted(made.items()): print(k, w)
print(", ".join(f"{k}={w}" for k, w in made.items()))
print(collections.ChainMap(made)["s"])""",
    "l": """print(made)
print(*made)
print(made[:1])
(s, *rest) = made; print(s)
print(" ".join(map(str, made)))
print("{} {}".format(*made))
print(list(reversed(made)))
print(dict(zip("ab", made)))
for i, w in enumerate(made): print(i, w)""",
    "h": """print(made)
print(sum(made) / len(made))
print(sorted(made)[-1])
print(statistics.median(made))
print(" ".join(f"{w:.2f}" for w in made))
while made: print(made.pop())""",
    "a": """print(made)
print(made.sum())
print(f"{made}")""",
    "v": """print(-made)
print("%f" % made)
print({made})
print(math.sqrt(made))
print((lambda: made)())
print("{made}".format(**globals()))
print(globals()["made"])
for w in [made]: print(w)
for k, w in [("a", made), ("b", 1)]: print(k, w)""",
    "t": """print(made)
s, n = made; print(s)
print("%s %s" % made)""",
    "ms": """print([o.s for o in made])
for o in made: print(o.s)
x1, x2 = made; print(x1.s)
print({i: o.s for i, o in enumerate(made)})""",
}


@pytest.mark.parametrize("kind", WAYS)
def test_each_way_to_read_a_sum_has_it_reduced(kind) -> None:
    made, adds, _ = MADE[kind]
    ways = {way: port(LOOP.replace("{made}", made).replace("{adds}", adds) + way + "\n") for way in _ways(kind)}
    behind = {way: ported.text.partition("dl.gradients(opt)")[2] for way, ported in ways.items()}
    assert [way for way, text in behind.items() if not any(f"dl.{how}(" in text for how in ("total", "gather"))] == []
    assert [way for way, ported in ways.items() if any(d.name == "unknown-placement" for d in ported.doubts)] == []


@pytest.mark.parametrize("kind", WAYS)
def test_each_way_to_read_what_nothing_makes_serial_is_told(kind) -> None:
    made, _, adds = MADE[kind]
    ways = {way: port(LOOP.replace("{made}", made).replace("{adds}", adds) + way + "\n") for way in _ways(kind)}
    untold = [way for way, ported in ways.items() if not any(d.name == "unknown-placement" for d in ported.doubts)]
    assert untold == []


def _ways(kind):
    return WAYS[kind].splitlines()
