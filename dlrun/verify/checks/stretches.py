"""Streams: does each rank go through a stretch of its own?"""

from __future__ import annotations

from dlrun.verify.trace import Run
from dlrun.verify.verdict import Check, failed, passed

NAME = "shards"


def stretches(run: Run) -> Check | None:
    """Judge the calls of dl.stretch(): local, as long as the others', of the same data; None without any."""
    calls = [[call for call in trace.returns("stretch") if "length" in call.facts] for trace in run.traces]
    if not all(calls):
        return None
    n = len(calls)
    for together in zip(*calls, strict=False):
        first, at = together[0], {"where": together[0].at}
        if len({call["whole"] for call in together}) > 1:
            finding = "the ranks cut their stretches out of different data"
            return failed(
                NAME, finding, "load the same data, in the same order, on every rank", "overlapping-shards", **at
            )
        if n > 1 and len({call["mine"] for call in together}) == 1:
            finding = f"all {n} ranks go through the same {first['part']} of {first['length']} entries"
            return failed(NAME, finding, "cut the data once, with dl.stretch()", "unsharded-loader", **at)
        if first["length"] >= 2 * n * first["part"]:  # more than one batch a rank is left over
            finding = f"{first['length'] - n * first['part']} of {first['length']} entries are in no rank's stretch"
            return failed(NAME, finding, "cut the data once, with dl.stretch()", "lost-samples", **at)
    first = calls[0][0]
    parts = f"{first['part']} of {first['length']} entries"
    return passed(NAME, f"{n} contiguous stretches of {parts}, one a rank, in order")
