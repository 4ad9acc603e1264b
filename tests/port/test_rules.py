"""Each row of ``placement/rules`` that is about numbers is proved by a script that uses it, on 2 and on 3 ranks.

A row's example stands in a loop that trains at rate 0, and in an evaluation of 7 batches, the last one short, which
2 and 3 ranks share unevenly. What both leave must be what they leave in one process. A row without an example fails.
"""

import importlib
import math
import re
from typing import NamedTuple

import pytest
from running import started

from dlrun.port import port
from dlrun.port.placement import rules
from dlrun.port.placement.rules import Row

# Of these no number comes that a row would have to make serial: their own tests show what they do.
WITHOUT_NUMBERS = {
    Row.SHOWS: "test_shown.py",
    Row.CURVE: "test_summaries.py",
    Row.AT_STEP: "test_summaries.py",
    Row.WRITES: "test_written.py",
    Row.PROGRESS: "test_shown.py",
    Row.CLOCK: "test_own_numbers.py",
    Row.ON_DISK: "test_control_dependence.py",
    Row.LATER: "test_control_dependence.py",
    Row.CHANCE: "test_own_numbers.py",
    Row.SEEDS: "test_own_numbers.py",
    Row.SETS: "test_own_numbers.py",
    Row.NOTHING: "it keeps nothing",
    Row.TAKE: "test_windows.py",
    Row.HOLDS: "numbers_of_counts_tensorflow.py",
    Row.PROPERTY: "numbers_in_objects.py",
    Row.TEXT: "test_texts.py",
    Row.PREDICTS: "test_train_steps.py",
    Row.SAMPLES: "test_sessions.py",
    Row.STATE: "placement/metric_objects.py, test_keras_on_ranks.py",
}
ALIASES = {"numpy": "np", "numpy.linalg": "np.linalg"}
PRELUDE = """
import argparse, bisect, collections, copy, dataclasses, functools, heapq, itertools, math, operator, queue, statistics
import types, typing
import numpy as np, torch
import pandas as pd, sklearn.metrics, torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
data = TensorDataset(torch.randn(96, 4), torch.randint(0, 3, (96,)))
held = TensorDataset(torch.randn(52, 4), torch.randint(0, 3, (52,)))
train_loader, held_loader = DataLoader(data, batch_size=8, shuffle=True), DataLoader(held, batch_size=8)
model = torch.nn.Linear(4, 3)
opt = torch.optim.SGD(model.parameters(), lr=0.0)
class Pair(typing.NamedTuple):
    loss: float
    seen: int
@dataclasses.dataclass
class Sums:
    loss: float = 0.0
    seen: int = 0
"""
TRAIN = """
{before}
for x, y in train_loader:
    out = model(x)
    loss = F.cross_entropy(out, y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    v, k, t, a = loss.item(), (out.argmax(1) == y).sum().item(), out.detach().mean(0), out.detach().mean(0).numpy()
    {body}
"""
EVALUATE = """
model.eval()
{before}
with torch.no_grad():
    for x, y in held_loader:
        out = model(x)
        v, k, t, a = F.cross_entropy(out, y).item(), (out.argmax(1) == y).sum().item(), out.mean(0), out.mean(0).numpy()
        {body}
"""


class Example(NamedTuple):
    """What stands before a loop, in it, and what is shown behind it, of a number that is called ``acc``."""

    before: str
    body: str
    shown: str = "acc"


def _list(text: str) -> Example:
    return Example("acc = []", text)


EXAMPLES = {
    "builtins.float": Example("acc = 0.0", "acc = float(acc + v)"),
    "builtins.int": Example("acc = 0", "acc = int(acc + k)"),
    "builtins.complex": Example("acc = 0j", "acc = complex(acc + v)", "acc.real"),
    "copy.copy": Example("acc = []", "acc = copy.copy(acc + [v])"),
    "copy.deepcopy": Example("acc = {'v': 0.0}", "acc = copy.deepcopy({'v': acc['v'] + v})"),
    "collections.namedtuple": Example(
        "Row_acc = collections.namedtuple('Row', 'n v')\nacc = Row_acc(0, 0.0)",
        "acc = Row_acc(acc.n + k, acc.v + v)",
        "acc.n, acc.v",
    ),
    "builtins.sum": Example("acc = 0.0", "acc = sum([acc, v])"),
    "math.fsum": Example("acc = 0.0", "acc = math.fsum([acc, v])"),
    "statistics.mean": Example("acc = []", "acc.append(v)", "statistics.mean(acc)"),
    "statistics.fmean": Example("acc = []", "acc.append(v)", "statistics.fmean(acc)"),
    "builtins.len": Example("acc, all_acc = 0, []", "all_acc.append(v); acc += len(y)", "acc, len(all_acc)"),
    "builtins.divmod": Example("acc = 0", "whole_acc, rest_acc = divmod(k, 3); acc += whole_acc + rest_acc"),
    "math.fmod": Example("acc = 0.0", "acc += math.fmod(k, 3)"),
    "operator.mod": Example("acc = 0", "acc += operator.mod(k, 3)"),
    "builtins.max": Example("acc = 0.0", "acc = max(acc, v)"),
    "builtins.min": Example("acc = 9.0", "acc = min(acc, v)"),
    "builtins.enumerate": Example("acc = 0", "for at, e in enumerate([v, k]): acc += at + e"),
    "builtins.zip": Example("acc = 0.0", "for e, f in zip([v], [k]): acc += e * f"),
    "builtins.iter": Example("acc = 0.0", "for e in iter([v, k]): acc += e"),
    "builtins.next": Example("acc = 0.0", "acc += next(iter([v, k]))"),
    "builtins.reversed": Example("acc = []", "acc.extend(reversed([v, k]))"),
    "itertools.islice": Example("acc = 0.0", "for e in itertools.islice([v, k, 1], 2): acc += e"),
    "itertools.cycle": Example("acc = 0.0", "acc += next(itertools.cycle([v, k]))"),
    "itertools.chain": Example("acc = 0.0", "for e in itertools.chain([v], [k]): acc += e"),
    "itertools.chain.from_iterable": Example(
        "acc = 0.0", "for e in itertools.chain.from_iterable([[v], [k]]): acc += e"
    ),
    "itertools.takewhile": Example("acc = 0.0", "for e in itertools.takewhile(lambda e: e < 9, [v, k]): acc += e"),
    "itertools.dropwhile": Example("acc = 0.0", "for e in itertools.dropwhile(lambda e: e > 9, [v, k]): acc += e"),
    "itertools.tee": Example("acc = 0.0", "for e in itertools.tee([v, k])[0]: acc += e"),
    "builtins.range": Example("acc = 0", "for e in range(k): acc += 1"),
    "builtins.list": Example("acc = []", "acc = list(acc) + [v]"),
    "builtins.tuple": Example("acc = 0.0", "acc += tuple([v, k])[0]"),
    "builtins.sorted": Example("acc = []", "acc.append(v)", "sorted(acc)"),
    "builtins.set": Example("acc = set()", "acc = acc | set(y.tolist())", "sorted(acc)"),
    "builtins.frozenset": Example("acc = frozenset()", "acc = acc | frozenset(y.tolist())", "sorted(acc)"),
    "builtins.dict": Example("acc = dict(v=0.0, k=0)", "acc['v'] += v; acc['k'] += k", "acc['v'], acc['k']"),
    "collections.OrderedDict": Example("acc = collections.OrderedDict(v=0.0)", "acc['v'] += v", "acc['v']"),
    "builtins.dict.fromkeys": Example(
        "acc = dict.fromkeys('ab', 0.0)", "for key_acc in acc: acc[key_acc] += v", "acc['a'], acc['b']"
    ),
    "collections.OrderedDict.fromkeys": Example(
        "acc = collections.OrderedDict.fromkeys(['a', 'b'], 0.0)", "acc['a'] += v; acc['b'] += k", "acc['a'], acc['b']"
    ),
    "types.SimpleNamespace": Example("acc = types.SimpleNamespace(v=0.0)", "acc.v += v", "acc.v"),
    "argparse.Namespace": Example("acc = argparse.Namespace(v=0.0)", "acc.v += v", "acc.v"),
    "collections.defaultdict": Example("acc = collections.defaultdict(float)", "acc['v'] += v", "acc['v']"),
    "collections.Counter": Example("acc = collections.Counter()", "acc.update(y.tolist())", "sorted(acc.items())"),
    "collections.deque": Example("acc = collections.deque()", "acc.append(v)", "list(acc)"),
    "functools.reduce": Example("acc = 0.0", "acc = functools.reduce(operator.add, [v, k], acc)"),
    "heapq.heappush": Example("acc = []", "heapq.heappush(acc, v)", "sorted(acc)"),
    "bisect.insort": Example("acc = []", "bisect.insort(acc, v)", "acc"),
    "bisect.insort_left": Example("acc = []", "bisect.insort_left(acc, v)", "acc"),
    "bisect.insort_right": Example("acc = []", "bisect.insort_right(acc, v)", "acc"),
    "functools.partial": Example("acc = []; add_acc = functools.partial(acc.append)", "add_acc(v)"),
    "dataclasses.replace": Example(
        "acc = Sums()", "acc = dataclasses.replace(acc, loss=acc.loss + v, seen=acc.seen + k)", "acc.loss, acc.seen"
    ),
    "dataclasses.asdict": Example("acc = Sums()", "acc.loss += v; acc.seen += k", "dataclasses.asdict(acc)"),
    "builtins.vars": Example("acc = Sums()", "acc.loss += v; acc.seen += k", "vars(acc)"),
    "builtins.object.__setattr__": Example("acc = Sums()", "object.__setattr__(acc, 'loss', acc.loss + v)", "acc.loss"),
    "builtins.setattr": Example("acc = Sums()", "setattr(acc, 'loss', acc.loss + v)", "acc.loss"),
    "builtins.getattr": Example("acc = Sums()", "acc.loss = getattr(acc, 'loss') + v", "acc.loss"),
    "builtins.isinstance": Example("acc = 0", "acc += isinstance(v, float)"),
    "builtins.hasattr": Example("acc = 0", "acc += hasattr(t, 'numpy')"),
    "builtins.type": Example("acc = 0", "acc += type(v) is float"),
    "numpy.add.at": Example("acc = np.zeros(3)", "np.add.at(acc, y.numpy(), 1)", "acc.tolist()"),
    "numpy.bincount": Example("acc = np.zeros(3)", "acc = acc + np.bincount(y.numpy(), minlength=3)", "acc.tolist()"),
    "numpy.histogram": Example(
        "acc = np.zeros(3)", "acc = acc + np.histogram(y.numpy(), 3, (0, 2))[0]", "acc.tolist()"
    ),
    "numpy.count_nonzero": Example("acc = 0", "acc += int(np.count_nonzero(y.numpy()))"),
    "torch.bincount": Example("acc = torch.zeros(3)", "acc = acc + torch.bincount(y, minlength=3)", "acc.tolist()"),
    "torch.histc": Example("acc = torch.zeros(3)", "acc = acc + torch.histc(y.float(), 3, 0, 2)", "acc.tolist()"),
    "torch.count_nonzero": Example("acc = 0", "acc += int(torch.count_nonzero(y))"),
    "sklearn.metrics.confusion_matrix": Example(
        "acc = np.zeros((3, 3))",
        "acc = acc + sklearn.metrics.confusion_matrix(y.numpy(), out.argmax(1).numpy(), labels=[0, 1, 2])",
        "acc.tolist()",
    ),
    ".count_nonzero": Example("acc = 0", "acc += y.count_nonzero().item()"),
    ".bincount": Example("acc = torch.zeros(3)", "acc = acc + y.bincount(minlength=3)", "acc.tolist()"),
    "pandas.concat": Example(
        "acc = pd.DataFrame({'v': []})", "acc = pd.concat([acc, pd.DataFrame({'v': [v]})])", "sorted(acc['v'])"
    ),
    "torch.autograd.Variable": Example("acc = 0.0", "acc = torch.autograd.Variable(acc + t)", "acc.tolist()"),
    ".copy": Example("acc = np.zeros(3)", "acc = (acc + a).copy()", "acc.tolist()"),
    ".item": Example("acc = 0.0", "acc = (acc + t[0]).item()"),
    ".detach": Example("acc = torch.zeros(3)", "acc = (acc + t).detach()", "acc.tolist()"),
    ".cpu": Example("acc = torch.zeros(3)", "acc = (acc + t).cpu()", "acc.tolist()"),
    ".cuda": Example(
        "acc = torch.zeros(3)", "acc = (acc + t).cuda() if torch.cuda.is_available() else acc + t", "acc.tolist()"
    ),
    ".numpy": Example("acc = np.zeros(3)", "acc = acc + t.numpy()", "acc.tolist()"),
    ".to": Example("acc = torch.zeros(3)", "acc = (acc + t).to('cpu')", "acc.tolist()"),
    ".float": Example("acc = torch.zeros(3)", "acc = (acc + t).float()", "acc.tolist()"),
    ".double": Example("acc = torch.zeros(3)", "acc = (acc + t).double()", "acc.tolist()"),
    ".half": Example("acc = torch.zeros(3)", "acc = acc + torch.full((3,), 2.0).half()", "acc.tolist()"),
    ".int": Example("acc = torch.zeros(3).int()", "acc = (acc + k).int()", "acc.tolist()"),
    ".long": Example("acc = torch.zeros(3).long()", "acc = (acc + k).long()", "acc.tolist()"),
    ".clone": Example("acc = torch.zeros(3)", "acc = (acc + t).clone()", "acc.tolist()"),
    ".tolist": Example("acc = []", "acc = acc + t.tolist()"),
    ".type": Example("acc = torch.zeros(3)", "acc = (acc + t).type(torch.float64)", "acc.tolist()"),
    ".astype": Example("acc = np.zeros(3)", "acc = (acc + a).astype(np.float64)", "acc.tolist()"),
    ".contiguous": Example("acc = torch.zeros(3)", "acc = (acc + t).contiguous()", "acc.tolist()"),
    ".squeeze": Example("acc = torch.zeros(3)", "acc = (acc + t).squeeze()", "acc.tolist()"),
    ".view": Example("acc = torch.zeros(3)", "acc = (acc + t).view(3)", "acc.tolist()"),
    ".reshape": Example("acc = torch.zeros(3)", "acc = (acc + t).reshape(3)", "acc.tolist()"),
    ".flatten": Example("acc = torch.zeros(3)", "acc = (acc + t).flatten()", "acc.tolist()"),
    ".requires_grad_": Example("acc = torch.zeros(3)", "acc = (acc + t).requires_grad_(False)", "acc.tolist()"),
    ".sum": Example("acc = 0.0", "acc += t.sum().item()"),
    ".mean": Example("acc = 0.0", "acc += t.mean().item()"),
    ".max": Example("acc = -9.0", "acc = max(acc, t.max().item())"),
    ".amax": Example("acc = -9.0", "acc = max(acc, t.amax().item())"),
    ".min": Example("acc = 9.0", "acc = min(acc, t.min().item())"),
    ".amin": Example("acc = 9.0", "acc = min(acc, t.amin().item())"),
    ".norm": Example("acc = 0.0", "acc += t.norm().item()"),
    ".std": Example("acc = 0.0", "acc += t.std().item()"),
    ".var": Example("acc = 0.0", "acc += t.var().item()"),
    ".median": Example("acc = 0.0", "acc += t.median().item()"),
    ".nanmedian": Example("acc = 0.0", "acc += t.nanmedian().item()"),
    ".argmax": Example("acc = 0.0", "acc += t.argmax().item()"),
    ".argmin": Example("acc = 0.0", "acc += t.argmin().item()"),
    "torch.mm": Example("acc = 0.0", "acc += torch.mm(t[None], t[:, None]).item()"),
    "numpy.transpose": Example("acc = np.zeros((3, 1))", "acc = acc + np.transpose(a[None])", "acc.tolist()"),
    "numpy.swapaxes": Example("acc = np.zeros((3, 1))", "acc = acc + np.swapaxes(a[None], 0, 1)", "acc.tolist()"),
    "torch.transpose": Example("acc = torch.zeros(3, 1)", "acc += torch.transpose(t[None], 0, 1)", "acc.tolist()"),
    "torch.swapaxes": Example("acc = torch.zeros(3, 1)", "acc += torch.swapaxes(t[None], 0, 1)", "acc.tolist()"),
    "torch.t": Example("acc = torch.zeros(3, 1)", "acc += torch.t(t[None])", "acc.tolist()"),
    ".transpose": Example("acc = torch.zeros(3, 1)", "acc += t[None].transpose(0, 1)", "acc.tolist()"),
    ".swapaxes": Example("acc = torch.zeros(3, 1)", "acc += t[None].swapaxes(0, 1)", "acc.tolist()"),
    ".t": Example("acc = torch.zeros(3, 1)", "acc += t[None].t()", "acc.tolist()"),
    ".matmul": Example("acc = 0.0", "acc += t.matmul(t).item()"),
    ".mm": Example("acc = 0.0", "acc += t[None].mm(t[:, None]).item()"),
    ".dot": Example("acc = 0.0", "acc += t.dot(t).item()"),
    ".quantile": Example("acc = 0.0", "acc += t.quantile(0.25).item()"),
    ".nanquantile": Example("acc = 0.0", "acc += t.nanquantile(0.25).item()"),
    ".logsumexp": Example("acc = 0.0", "acc += t.logsumexp(0).item()"),
    ".numel": Example("acc = 0", "acc += y.numel()"),
    ".nelement": Example("acc = 0", "acc += y.nelement()"),
    ".size": Example("acc = 0", "acc += y.size(0)"),
    ".dim": Example("acc = 0", "acc += y.dim()"),
    ".append": _list("acc.append(v)"),
    ".appendleft": Example("acc = collections.deque()", "acc.appendleft(v)", "sorted(acc)"),
    ".add": Example("acc = set()", "acc.add(round(v, 3))", "sorted(acc)"),
    ".insert": Example("acc = []", "acc.insert(0, v)", "sorted(acc)"),
    ".extend": _list("acc.extend(t.tolist())"),
    ".extendleft": Example("acc = collections.deque()", "acc.extendleft(t.tolist())", "sorted(acc)"),
    ".update": Example("acc = set()", "acc.update(y.tolist())", "sorted(acc)"),
    ".subtract": Example("acc = collections.Counter()", "acc.subtract(y.tolist())", "sorted(acc.items())"),
    ".setdefault": Example("acc = {}", "acc.setdefault('v', []).append(v)", "acc['v']"),
    ".get": Example("acc = {'v': 0.0}", "acc['v'] = acc.get('v') + v", "acc['v']"),
    ".values": Example("acc = {'v': 0.0, 'k': 0}", "acc['v'] += v; acc['k'] += k", "list(acc.values())"),
    ".items": Example("acc = {'v': 0.0}", "for key_acc, e in {'v': v}.items(): acc[key_acc] += e", "acc['v']"),
    ".keys": Example("acc = {'v': 0.0}", "for key_acc in acc.keys(): acc[key_acc] += v", "acc['v']"),
    ".elements": Example("acc = collections.Counter()", "acc.update(y.tolist())", "len(list(acc.elements()))"),
    ".most_common": Example("acc = collections.Counter()", "acc.update(y.tolist())", "acc.most_common()"),
    ".pop": Example("acc = 0.0", "acc += [k, v].pop()"),
    ".popleft": Example("acc = 0.0", "acc += collections.deque([v, k]).popleft()"),
    ".clear": Example("acc = [7.0]; acc.clear()", "acc.append(v)"),
    ".zero_": Example("acc = torch.ones(3).zero_()", "acc += t", "acc.tolist()"),
    ".add_": Example("acc = torch.zeros(3)", "acc.add_(t)", "acc.tolist()"),
    ".sub_": Example("acc = torch.zeros(3)", "acc.sub_(t)", "acc.tolist()"),
    ".copy_": Example("acc = torch.zeros(3)", "acc.copy_(acc + t)", "acc.tolist()"),
    ".fill_": Example("acc = torch.zeros(1)", "acc.fill_(acc.item() + v)", "acc.tolist()"),
    ".fill": Example("acc = np.zeros(1)", "acc.fill(acc.item() + v)", "acc.tolist()"),
    ".index_add_": Example("acc = torch.zeros(3)", "acc.index_add_(0, y, torch.ones(len(y)))", "acc.tolist()"),
    ".index_put_": Example(
        "acc = torch.zeros(3)", "acc.index_put_((y,), torch.ones(len(y)), accumulate=True)", "acc.tolist()"
    ),
    ".scatter_add_": Example("acc = torch.zeros(3)", "acc.scatter_add_(0, y, torch.ones(len(y)))", "acc.tolist()"),
    "._replace": Example("acc = Pair(0.0, 0)", "acc = acc._replace(loss=acc.loss + v)", "acc.loss"),
    "._asdict": Example("acc = Pair(0.0, 0)", "acc = Pair(acc.loss + v, acc.seen + k)", "acc._asdict()"),
}
# Of tensors: by what a row does, for a library with this alias, for these zeros and this vector of an iteration.
OF_TENSORS = {
    Row.REMAINDER: ("acc = {zeros}", "acc = acc + {f}({vector}, 2.0)", "[float(e) for e in acc]"),
    Row.DIVMOD: ("acc = {zeros}", "acc = acc + {f}({vector}, 2.0)[1]", "[float(e) for e in acc]"),
    Row.KEEPS: Example("acc = {zeros}", "acc = {f}(acc + {vector})", "[float(e) for e in acc]"),
    Row.SUM: Example("acc = 0.0", "acc += float({f}({vector}))"),
    Row.MEAN: Example("acc = 0.0", "acc += float({f}({vector}))"),
    Row.STATISTIC: Example("acc = 0.0", "acc += float({f}({vector}))"),
    Row.PLACE: Example("acc = 0.0", "acc += float({f}({vector}))"),
    Row.CONTRACTS: Example("acc = 0.0", "acc += float({f}({vector}, {vector}))"),
    Row.MAX: Example("acc = -9.0", "acc = max(acc, float({f}({vector})))"),
    Row.MIN: Example("acc = 9.0", "acc = min(acc, float({f}({vector})))"),
    Row.ZEROS: Example("acc = {f}(3)", "acc = acc + {vector}", "[float(e) for e in acc]"),
    Row.FILLED: Example("acc = {f}(3)", "acc = acc + {vector}", "[float(e) for e in acc]"),
    Row.JOIN: Example("acc = {zeros}", "acc = {f}([acc, {vector}])", "sorted(float(e) for e in acc)"),
    Row.LIST: Example("acc = []", "acc.append({vector})", "sorted(float(e) for e in {f}(acc)[:, 0])"),
}
VECTORS = {
    "numpy": ("np.zeros(3)", "a"),
    "torch": ("torch.zeros(3)", "t"),
    "numpy.linalg": ("np.zeros(3)", "a"),
    "torch.linalg": ("torch.zeros(3)", "t"),
}
LIKE = "like"  # zeros_like, full_like


def _of_tensors(name: str, row: Row) -> Example | None:
    """Return the example of a function of a library of arrays."""
    library, _, last = name.rpartition(".")
    if library not in VECTORS or row not in OF_TENSORS:
        return None
    zeros, vector = VECTORS[library]
    written = f"{ALIASES.get(library, library)}.{last}"
    before, body, shown = OF_TENSORS[row]
    if last in ("maximum", "minimum"):
        before, body, shown = f"acc = {zeros}", "acc = {f}(acc, {vector})", "[float(e) for e in acc]"
    elif last in ("empty", "empty_like"):
        begun = f"{{f}}({zeros})" if last.endswith(LIKE) else "{f}(3)"
        before = f"acc = {begun}" if library == "jax.numpy" else f"acc = {begun}; acc[:] = 0"
    elif last.endswith(LIKE):
        before = before.replace("{f}(3)", f"{{f}}({zeros}, 2.0)" if last == "full_like" else f"{{f}}({zeros})")
    elif last == "full":
        before = "acc = {f}((3,), 2.0)"
    elif last == "eye":
        before, body, shown = "acc = {f}(3)[0]", "acc = acc + {vector}", "[float(e) for e in acc]"
    elif last == "from_numpy":
        before, body, shown = "acc = np.zeros(3)", "acc = {f}(acc + a).numpy()", "acc.tolist()"
    elif last == "int64":
        before, body, shown = "acc = 0", "acc = {f}(acc + k)", "int(acc)"
    elif last in ("quantile", "nanquantile", "percentile", "logsumexp"):
        body = f"acc += float({{f}}({{vector}}, {0 if last == 'logsumexp' else 0.25}))"
    elif last == "tensordot":
        body = "acc += float({f}({vector}, {vector}, 1))"
    elif last == "einsum":
        body = "acc += float({f}('i,i->', {vector}, {vector}))"
    elif last in ("vstack", "row_stack"):
        before = f"acc = {zeros}[None]"
        shown = "sorted(float(e[0]) for e in acc)"
    elif last == "append":
        body = "acc = {f}(acc, {vector})"
    elif last == "cast":
        body = "acc = {f}(acc + {vector}, 'float32')"
    return Example(*(text.format(f=written, zeros=zeros, vector=vector) for text in (before, body, shown)))


def _exists(name: str) -> bool | None:
    """Tell whether there is what a row names; None where its library is not installed."""
    parts = name.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return None


ROWS = {**rules.functions(), **{f".{name}": row for name, row in rules.methods().items()}}
PROVED = {name: row for name, row in ROWS.items() if row not in WITHOUT_NUMBERS}
# The same rows under other names, in other sessions' tests, or of a machine with a GPU.
ELSEWHERE = {
    **dict.fromkeys(("cupy.", "jax."), "as numpy's, which they follow name by name"),
    "tensorflow.": "test_same_numbers_tensorflow.py",
    "keras.": "a loop of PyTorch's with it is refused: numbers_of_keras.py",
    "tqdm.": "it goes through what it is given, as builtins.iter",
    "progressbar.": "it goes through what it is given, as builtins.iter",
    "rich.": "it goes through what it is given, as builtins.iter",
    **dict.fromkeys(
        (".value", ".read_value", ".assign", ".assign_add", ".assign_sub"), "test_same_numbers_tensorflow.py"
    ),
    ".scatter_nd_add": "test_same_numbers_tensorflow.py",
    **dict.fromkeys((".train_on_batch", ".test_on_batch", ".train_step"), "numbers_of_keras.py"),
    ".scale": "a GradScaler's, of a loss: test_accumulation.py",
}


def _elsewhere(name: str) -> bool:
    return any(name.startswith(prefix) if prefix.endswith(".") else name == prefix for prefix in ELSEWHERE)


def _example(name: str) -> Example | None:
    return EXAMPLES.get(name) or _of_tensors(name, PROVED[name])


HERE = {name: _example(name) for name in PROVED if not _elsewhere(name)}


OLD = ("scipy.misc.",)  # of releases that old scripts were written for: SciPy below 1.3


@pytest.mark.parametrize("name", [n for n in ROWS if "." in n[1:] and not n.startswith(("cupy.", *OLD))])
def test_what_a_row_names_exists(name) -> None:
    if (found := _exists(name)) is None:
        pytest.skip(f"{name.partition('.')[0]} is not installed")
    assert found or _exists(name.replace("tensorflow.", "tensorflow.compat.v1."))


def test_each_row_about_numbers_has_an_example() -> None:
    assert [name for name, example in HERE.items() if example is None] == []
    assert [name for name in EXAMPLES if name not in PROVED] == []


def _program(names: list[str]) -> str:
    """Return a script with the examples of these rows in one loop that trains and in one that evaluates."""
    parts = [PRELUDE]
    for stage, template in (("train", TRAIN), ("eval", EVALUATE)):
        examples = [(f"{stage}_{at}", HERE[name], name) for at, name in enumerate(names)]
        named = [[re.sub(r"\bacc\b|(?<=_)acc\b", f"acc_{at}", text) for text in e] for at, e, _ in examples if e]
        before, body, shown = zip(*named, strict=True)
        parts.append(
            template.format(
                before="\n".join(before),
                body="\n    ".join(body).replace("\n    ", "\n        " if stage == "eval" else "\n    "),
            )
        )
        parts += [f"print({f'{stage} {name}:'!r}, {text})" for (_, _, name), text in zip(examples, shown, strict=True)]
    return "\n".join(parts)


_PYTHON = ("builtins", "copy", "math", "operator", "statistics", "itertools", "collections")
GROUPS = {
    "python": [n for n in HERE if n.startswith(_PYTHON)],
    "containers": [
        n for n in HERE if n.startswith(("types", "argparse", "functools", "heapq", "bisect", "dataclasses"))
    ],
    "methods": [n for n in HERE if n.startswith(".")],
    "numpy": [n for n in HERE if n.startswith(("numpy.", "pandas.", "sklearn."))],
    "torch": [n for n in HERE if n.startswith("torch.")],
}


def test_each_row_stands_in_one_script() -> None:
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(HERE)


def _lines(text: str) -> dict[str, str]:
    return dict(line.split(": ", 1) for line in text.splitlines() if line.startswith(("train ", "eval ")))


@pytest.fixture(scope="module", params=[g for g in GROUPS if GROUPS[g]])
def shown(request, tmp_path_factory):
    """What the script of each group shows alone, on 2 ranks and on 3, and the doubts of its port."""
    folder = tmp_path_factory.mktemp(request.param)
    text = _program(GROUPS[request.param])
    folder.joinpath("train.py").write_text(text)
    ported = port(text)
    folder.joinpath("dist.py").write_text(ported.text)
    serial = _lines(started(folder, ["train.py"]))
    ranks = {n: _lines(started(folder, ["dist.py"], n)) for n in (2, 3)}
    return GROUPS[request.param], ported, serial, ranks


def test_the_rows_of_a_group_leave_what_one_process_leaves(shown) -> None:
    names, ported, serial, ranks = shown
    assert [d for d in ported.doubts if d.name == "unknown-placement"] == []
    assert 'whole="batches"' in ported.text
    assert len(serial) == 2 * len(names)
    wrong = [
        f"{n} ranks: {at}: {mine[at]} for {serial[at]}"
        for n, mine in ranks.items()
        for at in serial
        if not alike(serial[at], mine[at])
    ]
    assert wrong == []


NUMBER = re.compile(r"-?\d+\.?\d*(?:e-?\d+)?")


def alike(one: str, other: str) -> bool:
    numbers = [[float(n) for n in NUMBER.findall(text)] for text in (one, other)]
    return NUMBER.sub("#", one) == NUMBER.sub("#", other) and all(
        math.isclose(a, b, rel_tol=1e-4, abs_tol=2e-5) for a, b in zip(*numbers, strict=True)
    )
