"""What a face offers of reductions: the same for each, but for its tensors."""

from __future__ import annotations

from collections.abc import Sequence, ValuesView
from typing import Any

from dl_comm.ranks import get_nranks, is_worker, parts
from dl_comm.reduction.exchange import reduced
from dl_comm.reduction.folding import NAMES
from dl_comm.reduction.gathering import Gathering
from dl_comm.reduction.layout import is_shard, layout_of
from dl_comm.reduction.leaves import Tensors, check
from dl_comm.reduction.metrics import is_metric, put_state, state_of
from dl_comm.reduction.since import added, changed, grown, joined, merged, of_kind, put_back
from dl_comm.shares import tell_repeated


class Reductions:
    """The reductions of one face."""

    def __init__(self, tensors: Tensors) -> None:
        self.tensors = tensors

    def total(self, *values: Any, since: Any = None, over: Any = None) -> Any:
        """Return the sums of ``values`` over the ranks: of counts, of losses that are sums; one, or a tuple of several.

        ``right, seen = dl.total(right, seen)`` behind a loop over a shard makes what the loop added up that of all
        samples. All values take one exchange; a second one only where ranks bring other keys or kinds.

        Values are numbers, tensors, arrays, and lists, tuples and dicts of them, nested too. Their kinds stay: an int
        is an int and exact, a float a float, a tensor a tensor of the same dtype and device (detached; booleans count,
        as int64), an array an array. Lists are added up entry by entry; dicts by key, of which ranks may hold others:
        what a rank lacks counts as zero, a Counter or defaultdict stays one, and the keys are in one order on all
        ranks. ``None`` stays None, and counts for nothing where other ranks hold a number, as on a rank that had no
        batch; so does a plain 0 where others hold a tensor or a dict. Texts in a dict stay rank by rank. The arguments
        are not changed.

        ``over`` is the loader that the values were added up over: where it is no shard (see ``is_shard``), as a
        validation set that each rank reads whole, they come back themselves, without an exchange. So they do on one
        rank, and where all ranks repeat the serial run (``DL_COMM_REPLICATE``).

        A metric object of Keras is folded in place, its variables being sums over samples, and comes back itself.

        Rank 0 warns, once, where a global batch was shared in equal lengths with entries repeated: sums count these
        as often as they occur.

        ``since`` is what the values were before the loop, as ``snapshot(a, b)`` returned it: what all ranks held then
        counts once, and what each has added to it is summed up.

        Raises ``TypeError`` for other types, ``dl_comm.CommError`` that names the value when shapes or kinds differ
        between ranks, or when a sum does not fit its dtype.
        """
        if self.leaves_alone(over):
            return self._of(values, "sum", over) if not any(map(is_metric, values)) else _one_or_all(values)
        tell_repeated("total")
        if any(map(is_metric, values)):
            states = [state_of(value) if is_metric(value) else value for value in values]
            totals = self.total(states, since=list(_each(values, since)) if since is not None else None)
            return _one_or_all([put_state(v, t) if is_metric(v) else t for v, t in zip(values, totals, strict=True)])
        if since is None:
            return self._of(values, "sum", over)
        before = _each(values, since)
        found = self.reduced([added(v, b) for v, b in zip(values, before, strict=True)], "sum", over)
        result = [put_back(t, b) for t, b in zip(found, before, strict=True)]
        return result[0] if len(result) == 1 else tuple(result)

    def average(self, *values: Any, over: Any = None) -> Any:
        """Return the means of ``values`` over the ranks: of metrics, losses, rates; one, or a tuple of several.

        Values and ``over`` are as for ``total``. A float stays a float, a tensor a tensor (same dtype and device,
        detached), an array an array. Integers and booleans become floating point, as in a true division, on more than
        one rank; an int that is the mean stays one: a count that all ranks share. Of a tuple, list or dict each entry
        is averaged, in a dict those of one name, which all ranks must have; texts and ``None`` stay rank by rank, and a
        None counts for nothing where other ranks have a number.

        A metric object of Keras is folded in place, to what it is over all ranks' samples: its sums and counts are
        added up, but those of ``Sum``, which are means over the ranks.

        Raises ``TypeError`` for other types, ``dl_comm.CommError`` when shapes, kinds or keys differ between ranks.
        """
        if not any(map(is_metric, values)):
            return self._of(values, "mean", over)
        if not self.leaves_alone(over):
            self._fold([value for value in values if is_metric(value)])
        others = [value for value in values if not is_metric(value)]
        means = iter(self.reduced(others, "mean", over))
        return _one_or_all([value if is_metric(value) else next(means) for value in values])

    def _fold(self, metrics: list[Any]) -> None:
        added = [metric for metric in metrics if type(metric).__name__ == "Sum"]
        if counted := [metric for metric in metrics if metric not in added]:
            self.total(*counted)
        for metric, state in zip(
            added, self.reduced([state_of(metric) for metric in added], "mean", None), strict=True
        ):
            put_state(metric, state)

    def maximum(self, *values: Any, over: Any = None) -> Any:
        """Return the largest of ``values`` over the ranks, each by itself; one, or a tuple of several.

        Values and ``over`` are as for ``total``: numbers, tensors and arrays element by element, lists entry by entry,
        dicts by key (all keys of all ranks). A tuple of numbers and texts, as ``best = max(best, (score, name))``
        makes, is compared as a whole. Kinds and dtypes stay; ``None`` counts for nothing; NaN on any rank is NaN.
        """
        return self._of(values, "max", over)

    def minimum(self, *values: Any, over: Any = None) -> Any:
        """Return the smallest of ``values`` over the ranks, each by itself; see ``maximum``."""
        return self._of(values, "min", over)

    def gather(self, *values: Any, since: Any = None, over: Any = None, by_key: bool = False) -> Any:
        """Return ``values`` with the entries of all ranks, in the serial order; one, or a tuple of several.

        ``scores, labels = dl.gather(scores, labels, over=loader)`` behind a loop over a shard: lists, tuples, arrays
        and tensors (along axis 0), deques (``maxlen`` stays), data frames; sets become their union. Of a dict whose
        values are lists, sets or dicts these are gathered by key; another is the union of the ranks' (a dict by
        sample); arrays in a dict are gathered where all ranks have the same keys. Kinds, dtypes and devices stay.
        Entries may be whatever can be pickled; numbers travel packed. Ranks may bring different lengths; ``None`` is no
        entries.

        Entry j of rank r comes after entry j of rank r - 1, as ``shard`` orders samples and batches. With ``over``,
        the loader that the entries are of, what pads a share (all ranks take equally many samples) is left out, samples
        of batches that were sharded whole stay together, and a list of batches' tensors, arrays or lists of samples
        becomes that of the serial batches. Where ``over`` is no shard (see ``is_shard``), on one rank, and where all
        ranks repeat the serial run (``DL_COMM_REPLICATE``), the values come back themselves.

        ``since`` is what the values were before the loop, as ``snapshot`` returned it: all ranks hold those entries,
        and those behind them are gathered.

        ``by_key``: the values are dicts, and what each holds under a key is of that key alone, as
        ``rows[name] = [loss, label]`` keeps it: the union of the ranks' dicts, lists in it too. Of a key under which
        several ranks keep different things the last such rank's stays, and rank 0 warns: the serial script would keep
        what came last.

        Raises ``TypeError`` for other types, ``dl_comm.CommError`` on every rank when their kinds or shapes differ.
        """
        if not values:
            raise TypeError("gather() got no value")
        if self.leaves_alone(over):
            return values[0] if len(values) == 1 else values
        before = _each(values, since) if since is not None else ()
        more, put = (changed, merged) if by_key else (grown, joined)
        fresh = tuple(more(v, b) for v, b in zip(values, before, strict=True)) if before else values
        found = Gathering(self.tensors, layout_of(over), by_key).all_of(fresh)
        if before:
            found = tuple(put(b, entries) for b, entries in zip(before, found, strict=True))
        found = tuple(of_kind(value, entries) for value, entries in zip(values, found, strict=True))
        return found[0] if len(values) == 1 else found

    def _of(self, values: tuple[Any, ...], op: str, over: Any) -> Any:
        if not values:
            raise TypeError(f"{NAMES[op]}() got no value")
        found = self.reduced(values, op, over)
        return found[0] if len(found) == 1 else tuple(found)

    def reduced(self, values: Sequence[Any], op: str, over: Any) -> Sequence[Any]:
        """Return the values reduced; themselves where there is nothing to exchange. ``d.values()`` becomes a list."""
        values = [list(value) if isinstance(value, ValuesView) else value for value in values]
        for value in values:
            check(value, self.tensors, NAMES[op])
        return values if not values or self.leaves_alone(over, op != "mean") else self.exchanged(values, op)

    def exchanged(self, values: Sequence[Any], op: str) -> Sequence[Any]:
        """Return the values reduced over the ranks. Collective."""
        return reduced(values, op, self.tensors)

    def leaves_alone(self, over: Any, repeats: bool = True) -> bool:
        """Tell whether there is nothing to exchange: each rank has all of what ``over`` is, or there is one rank.

        A rank that ``repeats`` the serial run (``DL_COMM_REPLICATE``) is alone.
        """
        alone = is_worker() or (parts() if repeats else get_nranks()) == 1
        return alone or (over is not None and not is_shard(over))


def _one_or_all(values: Sequence[Any]) -> Any:
    return values[0] if len(values) == 1 else tuple(values)


def _each(values: tuple[Any, ...], since: Any) -> tuple[Any, ...]:
    """Return what each of ``values`` was before, from what ``snapshot`` returned of as many."""
    return (since,) if len(values) == 1 else tuple(since)
