"""What was estimated, as text and as one value."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from dlrun.bench.cases import bytes_as_text
from dlrun.bench.table import aligned, seconds_as_text
from dlrun.estimate.measure import Measured
from dlrun.estimate.network import Network
from dlrun.estimate.predict import Row, computing

FORMAT = "dlrun estimate 1"


def text(measured: Measured, network: Network, per_node: int, rows: Sequence[Row]) -> str:
    """Return what is measured, what a rank and a node need, and what to expect."""
    last, nbytes = rows[-1], measured.nbytes
    on_node, nodes = min(last.ranks, per_node), last.nodes
    here = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    needs = f"{bytes_as_text(measured.memory)} a rank, {bytes_as_text(measured.memory * on_node)} a node of {on_node}"
    lines = [
        (
            "measured",
            f"a step takes {seconds_as_text(measured.step)} on {measured.ranks} ranks of this machine; "
            f"averaging alone {seconds_as_text(measured.averaging)}",
        ),
        ("memory", f"{needs} (this one has {bytes_as_text(here)})"),
    ]
    if measured.gpu_memory:
        lines.append(("", f"{bytes_as_text(measured.gpu_memory)} of its GPU's"))
    what = f"{bytes_as_text(nbytes)} of {measured.dtype} in {len(measured.counts)} "
    what += "buckets, while backward runs" if measured.overlap else "arrays"
    lines.append(("gradients", f"{what}: each step a rank gives and takes {_moved(nbytes, last.ranks)}"))
    if nodes > 1:
        lines.append(
            (
                "network",
                f"{_moved(nbytes, nodes)} a step in and out of each node, at {network.rate / 1e9:.3g} "
                f"GB/s ({network.source})",
            )
        )
    table = [_line(row, measured.overlap) for row in rows]
    head = ("ranks", "nodes", "step", "averaging", "efficiency")
    alone = seconds_as_text(computing(measured))
    notes = [f"expected: each rank computes for {alone} a step, as here, with a batch of its own"]
    if measured.overlap:
        notes.append("efficiency: from where nothing of the averaging is hidden to where backward hides what it can")
    parts = ["\n".join(f"{name:<11}{said}" for name, said in lines), "\n".join(notes), aligned(head, table, left=0)]
    return "\n\n".join(parts)


def _moved(nbytes: int, members: int) -> str:
    return bytes_as_text(2 * (members - 1) / members * nbytes)


def _line(row: Row, overlap: bool) -> tuple[str, ...]:
    share = f"{100 * row.efficiency:.0f} %"
    if overlap:
        share = f"{100 * row.efficiency:.0f} to {100 * row.hidden:.0f} %"
    return (str(row.ranks), str(row.nodes), seconds_as_text(row.step), seconds_as_text(row.averaging), share)


def to_json(measured: Measured, network: Network, per_node: int, rows: Sequence[Row]) -> dict[str, Any]:
    """Return all of it, in bytes and seconds."""
    return {
        "format": FORMAT,
        "per_node": per_node,
        "measured": {**asdict(measured), "gradient_bytes": measured.nbytes, "computing": computing(measured)},
        "network": asdict(network),
        "rows": [asdict(row) for row in rows],
    }
