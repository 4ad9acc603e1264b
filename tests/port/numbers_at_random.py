"""Makes programs that add up, keep and show numbers of a loop's samples in ways put together at random."""

import random
from typing import NamedTuple

FLOATS = ("v", "v * len(y)", "k / len(y)", "out.max().item()", "float(out.mean())", "out.abs().sum().item() / 3")
WHOLE = ("k", "len(y)", "y.size(0)", "x.shape[0]", "1", "int((out > 0).sum())", "(y == 1).sum().item()")
ROWS = ("y.tolist()", "out.argmax(1).tolist()", "[v, k]", "[e.item() for e in out.sum(1)]")
TENSORS = ("out.argmax(1)", "out.sum(1)", "y")
STARTS = ("0", "0.0", "torch.zeros(())", "torch.tensor(0.0)", "np.float64(0)", "torch.zeros(1)")


class Snippet(NamedTuple):
    """Statements before a loop and in it, and expressions of what they leave; ``A`` and ``B`` are its variables.

    ``LOADER`` and ``DATA`` are what the loop goes over, and its samples.
    """

    before: str
    body: str
    shown: tuple[str, ...]


def _scalar(draw: random.Random) -> Snippet:
    e, other = draw.choice(FLOATS + WHOLE), draw.choice(FLOATS + WHOLE)
    body = draw.choice(
        (
            f"A += {e}",
            f"A = A + {e}",
            f"A = {e} + A",
            f"A -= {e}",
            f"A += {e}; A += {other}",
            f"A += {e} if k > 2 else {other}",
            f"A += ({e}) ** 2",
            f"\nif k > 3:\n    A += {e}\nelse:\n    A -= {other}",
            f"\nif k > 3:\n    A += {e}",
            f"\nfor _ in range(2):\n    A += {e}",
            "\nfor p, q in zip(out.argmax(1), y):\n    A += int(p == q)",
            "\nfor p, q in zip(out.argmax(1), y):\n    if p == q:\n        A += 1",
            f"step = {e}; A += step",
            f"A = sum([A, {e}])",
        )
    )
    shown = (
        *(
            "A",
            "A / len(LOADER)",
            "A / len(DATA)",
            "100.0 * A / len(LOADER.dataset)",
            "math.sqrt(abs(A))",
            "-A",
            "A > 10",
        ),
        *(
            "round(float(A), 3)",
            "(A, A * 2)",
            "f'{float(A):.4f}'",
            "'%.3f' % A",
            "'{:.3f}'.format(float(A))",
            "max(A, 0)",
        ),
        *("np.exp(-abs(float(A)) / 100)", "1 - A / len(DATA)", "float(A) // 2", "abs(A) ** 0.5", "str(float(A))"),
    )
    return Snippet(f"A = {draw.choice(STARTS)}", body, shown)


def _list(draw: random.Random) -> Snippet:
    e = draw.choice(FLOATS + WHOLE)
    body = draw.choice(
        (
            f"A.append({e})",
            f"A += [{e}]",
            f"A = A + [{e}]",
            f"A.extend({draw.choice(ROWS)})",
            f"A += {draw.choice(ROWS)}",
            f"\nfor e in {draw.choice(ROWS)}:\n    A.append(e)",
            f"\nif k > 2:\n    A.append({e})",
            f"A = [*A, {e}]",
            f"A.append(float({e}))",
            f"\nfor e in {draw.choice(ROWS)}:\n    if e > 0:\n        A.append(e)",
        )
    )
    shown = (
        *(
            "sum(A) / len(A)",
            "np.mean(A)",
            "max(A)",
            "min(A)",
            "len(A)",
            "A",
            "A[-1]",
            "A[0]",
            "A[:3]",
            "sorted(A)[:2]",
        ),
        *(
            "np.median(A)",
            "np.std(A)",
            "np.array(A).shape",
            "torch.tensor(A).float().mean().item()",
            "np.cumsum(A)[-1]",
        ),
        *(
            "np.argmax(A)",
            "sum(1 for e in A if e > 1)",
            "[e for e in A if e > 1][:2]",
            "statistics.mean(A)",
            "len(set(A))",
        ),
        *("np.percentile(A, 90)", "sum(A[-2:])", "A.index(max(A))", "np.array(A)[-3:].mean()", "any(e > 3 for e in A)"),
        *(
            "f'{sum(A) / max(len(A), 1):.3f}'",
            "list(enumerate(A))[-1]",
            "sum(a * a for a in A)",
            "max(enumerate(A))[0]",
        ),
        *("np.var(np.asarray(A, dtype=float))", "np.histogram(A, bins=3)[0].tolist()", "A[::2]", "A[len(A) // 2]"),
        *(
            "collections.Counter(A).most_common(1)",
            "np.quantile(A, 0.5)",
            "' '.join(str(e) for e in A)",
            "np.diff(A).max()",
        ),
    )
    return Snippet(f"A = {draw.choice(('[]', 'list()'))}", body, shown)


def _tuples(draw: random.Random) -> Snippet:
    e, other = draw.choice(FLOATS), draw.choice(WHOLE)
    body, shown = draw.choice(
        (
            (
                f"A.append(({e}, {other}))",
                ("sum(a for a, _ in A)", "np.array(A).sum(0)", "A[-1][0]", "list(zip(*A))[1]"),
            ),
            (f"A.append([{e}, {other}])", ("np.array(A).mean(0)", "sum(a[0] * a[1] for a in A)", "len(A)", "max(A)")),
            (
                f"A.append({{'a': {e}, 'n': {other}}})",
                ("sum(a['a'] for a in A)", "np.mean([a['n'] for a in A])", "A[-1]"),
            ),
            (f"A.append(Pair({e}, {other}))", ("sum(a.loss for a in A)", "sum(a.loss * a.seen for a in A)", "len(A)")),
        )
    )
    return Snippet("A = []", body, shown)


def _dict(draw: random.Random) -> Snippet:
    e, other = draw.choice(FLOATS + WHOLE), draw.choice(WHOLE)
    start, body, shown = draw.choice(
        (
            (
                "{'a': 0.0, 'n': 0}",
                f"A['a'] += {e}; A['n'] += {other}",
                ("A", "A['a'] / A['n']", "sum(A.values())", "A['n']"),
            ),
            ("{}", f"A['a'] = A.get('a', 0) + {e}", ("A", "A['a']", "list(A.items())", "A.get('a', 0) / len(LOADER)")),
            (
                "collections.defaultdict(float)",
                f"A['a'] += {e}; A['b'] += {other}",
                ("A['a']", "A['a'] / A['b']", "len(A)"),
            ),
            (
                "collections.defaultdict(list)",
                f"A['a'].append({e})",
                ("np.mean(A['a'])", "len(A['a'])", "A['a'][-1]", "A"),
            ),
            (
                "{'a': [], 'b': []}",
                f"A['a'].append({e}); A['b'].append({other})",
                ("sum(A['a']) / sum(A['b'])", "A['b'][:2]"),
            ),
            (
                "{}",
                f"A.setdefault('a', []).append({e})",
                ("np.mean(A['a'])", "max(A['a'])", "{k: np.mean(v) for k, v in A.items()}"),
            ),
            (
                "collections.Counter()",
                "A.update(y.tolist())",
                ("sorted(A.items())", "A[1]", "A.most_common(1)", "sum(A.values())"),
            ),
            (
                "{}",
                "\nfor c in y.tolist():\n    A[c] = A.get(c, 0) + 1",
                ("sorted(A.items())", "A[1] / len(DATA)", "max(A.values())"),
            ),
            (
                "{c: 0 for c in range(3)}",
                "\nfor c in y.tolist():\n    A[c] += 1",
                ("A", "max(A.values())", "max(A, key=A.get)"),
            ),
            (
                "{c: [0, 0] for c in range(3)}",
                "\nfor p, q in zip(out.argmax(1).tolist(), y.tolist()):\n    A[q][0] += p == q\n    A[q][1] += 1",
                ("A", "[A[c][0] / A[c][1] for c in A]", "sum(h for h, _ in A.values())"),
            ),
        )
    )
    return Snippet(f"A = {start}", body, shown)


def _running(draw: random.Random) -> Snippet:
    e = draw.choice(FLOATS)
    start, body = draw.choice(
        (
            ("A, B = 0.0, 0", f"B += 1; A += ({e} - A) / B"),
            ("A, B = 0.0, 0", f"A = (A * B + {e}) / (B + 1); B += 1"),
            ("A, B = 0.0, 0", "A = (A * B + v * len(y)) / (B + len(y)); B += len(y)"),
            ("A, B = 0.0, 0", f"A += {e}; B += 1"),
            ("A = B = 0", "A += k; B += len(y)"),
            ("A, B = 0.0, 0", f"A, B = A + {e}, B + 1"),
            ("A = 0.0", f"A = 0.9 * A + 0.1 * {e}; B = A"),
        )
    )
    return Snippet(start, body, ("A", "A / max(B, 1)", "f'{A:.4f}'", "(A, B)"))


def _extreme(draw: random.Random) -> Snippet:
    e = draw.choice(FLOATS)
    start, body = draw.choice(
        (
            ("A = -1e9", f"A = max(A, {e})"),
            ("A = float('inf')", f"A = min({e}, A)"),
            ("A = -1e9", f"\nif {e} > A:\n    A = {e}"),
            ("A = float('inf')", f"A = {e} if {e} < A else A"),
            ("A = None", f"A = {e} if A is None else max(A, {e})"),
            ("A = -math.inf", f"\nif not {e} <= A:\n    A = {e}"),
            ("A = torch.tensor(-1e9)", "A = torch.maximum(A, out.max().detach())"),
            ("A = np.full(3, -1e9)", "A = np.maximum(A, out.detach().numpy().max(0))"),
        )
    )
    return Snippet(start, body, ("A", "A * 2", "-A"))


def _flag(draw: random.Random) -> Snippet:
    start, body = draw.choice(
        (
            ("A = False", "A = A or k > 5"),
            ("A = True", "A = A and k > 2"),
            ("A = False", "\nif k > 5:\n    A = True"),
            ("A = True", "A &= k > 1"),
            ("A = False", "A |= k > 6"),
            ("A = 0", "A = 1 if k > 6 else A"),
        )
    )
    return Snippet(start, body, ("A", "not A", "int(A)", "'yes' if A else 'no'"))


def _edge(draw: random.Random) -> Snippet:
    e = draw.choice(FLOATS + WHOLE)
    start, body = draw.choice(
        (
            ("A = None", f"\nif A is None:\n    A = {e}"),
            ("A = ''", f"A += '%.2f ' % ({e})"),
            ("A = 0", "A ^= k"),
            ("A = 1.0", f"A *= 1 + {e} / 1000"),
            ("A = 0.0", f"A = {e} - A"),
            ("A = set()", "A |= set(y.tolist())"),
            ("A = set()", "A.update(out.argmax(1).tolist())"),
            ("A = 0", "A = len(y) + A * 1"),
            ("A, B = 0, []", f"B.append({e}); A = len(B)"),
            ("A, B = 0.0, []", f"B.append({e}); A = sum(B) / len(B)"),
            ("A, B = 0.0, 0.0", f"B += {e}; A = B / 2"),
        )
    )
    return Snippet(start, body, ("A", "str(A)", "[A]", "repr(A)"))


def _tensor(draw: random.Random) -> Snippet:
    e = draw.choice(TENSORS)
    start, body, shown = draw.choice(
        (
            (
                "[]",
                f"A.append({e}.detach())",
                ("torch.cat(A).float().mean().item()", "torch.cat(A)[:4]", "torch.cat(A).shape", "len(A)"),
            ),
            (
                "torch.empty(0)",
                f"A = torch.cat([A, {e}.detach().float()])",
                ("A.mean().item()", "A.shape", "A[-2:]", "len(A)"),
            ),
            (
                "[]",
                f"A.append({e}.detach().numpy())",
                ("np.concatenate(A).mean()", "np.hstack(A)[:3]", "np.unique(np.concatenate(A)).size"),
            ),
            (
                "np.array([])",
                f"A = np.append(A, {e}.detach().numpy())",
                ("A.mean()", "A[:3]", "A.size", "np.bincount(A.astype(int) % 3)"),
            ),
            (
                "torch.zeros(3, 3)",
                "A += torch.bincount(3 * y + out.argmax(1), minlength=9).reshape(3, 3)",
                ("A", "A.diag().sum() / A.sum()", "A.diag() / A.sum(1)"),
            ),
            (
                "np.zeros((3, 3))",
                "\nfor p, q in zip(out.argmax(1), y):\n    A[q, p] += 1",
                ("A", "A.trace() / A.sum()", "A.diagonal() / A.sum(1)"),
            ),
            (
                "np.zeros((3, 3), int)",
                "np.add.at(A, (y.numpy(), out.argmax(1).numpy()), 1)",
                ("A", "A.trace()", "A.sum(0)"),
            ),
            ("torch.zeros(3)", "A = A + t", ("A", "A / len(LOADER)", "A.norm().item()", "A.argmax().item()")),
            ("np.zeros(3)", "A += a", ("A", "A / len(LOADER)", "A.tolist()", "np.linalg.norm(A)")),
            (
                "[0.0] * 3",
                "\nfor c in range(3):\n    A[c] += float((y == c).sum())",
                ("A", "sum(A)", "[e / len(DATA) for e in A]"),
            ),
        )
    )
    return Snippet(f"A = {start}", body, shown)


def _object(draw: random.Random) -> Snippet:
    e, n = draw.choice(FLOATS), draw.choice(("len(y)", "1", "y.size(0)"))
    start, body, shown = draw.choice(
        (
            ("Meter()", f"A.update({e}, {n})", ("A.avg", "A.sum", "A.count", "f'{A.avg:.3f}'", "A.mean()")),
            ("Meter()", f"A.update({e})", ("A.avg", "A.mean()", "A.sum / A.count", "A")),
            ("Sums()", f"A.loss += {e}; A.seen += {n}", ("A.loss / A.seen", "A.loss", "vars(A)", "A")),
            (
                "{'m': Meter(), 'n': Meter()}",
                f"A['m'].update({e}, {n}); A['n'].update(k)",
                ("A['m'].avg", "{i: m.avg for i, m in A.items()}"),
            ),
            (
                "[Meter(), Meter()]",
                f"A[0].update({e}); A[1].update(k, {n})",
                ("[m.avg for m in A]", "A[1].sum", "A[0].avg"),
            ),
            ("collections.deque(maxlen=100)", f"A.append({e})", ("sum(A) / len(A)", "max(A)", "len(A)", "A[-1]")),
            ("collections.deque(maxlen=3)", f"A.append({e})", ("sum(A) / len(A)", "list(A)")),
        )
    )
    return Snippet(f"A = {start}", body, shown)


KINDS = (
    _scalar,
    _scalar,
    _list,
    _list,
    _list,
    _tuples,
    _dict,
    _dict,
    _running,
    _extreme,
    _flag,
    _edge,
    _tensor,
    _tensor,
    _object,
    _object,
)


def snippet(draw: random.Random) -> Snippet:
    """Return one of the ways above."""
    return draw.choice(KINDS)(draw)
