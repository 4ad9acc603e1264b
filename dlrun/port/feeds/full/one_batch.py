"""Loaders that give all samples of their data set in one batch: the global batch cannot grow with the ranks."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from dlrun.port.feeds import Feeds
from dlrun.port.program.script import argument


def in_one_batch(feeds: Feeds) -> bool:
    """Tell whether every training loop takes all samples at once, from a loader with ``batch_size=len(data)``."""
    found = [feed.node for feed in feeds.found.values()]
    return bool(found) and all(isinstance(node, cst.Call) and _gives_all(feeds, node) for node in found)


def _gives_all(feeds: Feeds, loader: cst.Call) -> bool:
    """Tell whether ``loader`` makes batches as long as its data set, or as an array in it."""
    size, data = argument(loader, "batch_size", 1), argument(loader, "dataset", 0)
    if size is None or data is None or feeds.kinds.of_call(loader) != "loader":
        return False
    held = [data, *(a.value for n in _made(feeds, data) if isinstance(n, cst.Call) for a in n.args)]
    named = {feeds.script.code(node) for node in held}
    return any(feeds.script.code(of) in named for node in _made(feeds, size) for of in _measured(feeds, node))


def _made(feeds: Feeds, node: cst.BaseExpression) -> list[cst.CSTNode]:
    return [node, *(origin.node for origin in feeds.flow.origins(node))]


def _measured(feeds: Feeds, node: cst.CSTNode) -> Iterator[cst.BaseExpression]:
    """Yield that of which ``node`` is the length: ``x`` in ``len(x)``, ``x.__len__()``, ``x.size(0)``."""
    match node:
        case cst.Call(args=[cst.Arg(value=of)]) if feeds.script.name_of(node.func) == "builtins.len":
            yield of
        case cst.Call(func=cst.Attribute(value=of, attr=cst.Name("__len__"))):
            yield of
        case cst.Call(func=cst.Attribute(value=of, attr=cst.Name("size")), args=[cst.Arg(value=cst.Integer("0"))]):
            yield of
        case cst.Subscript(
            value=cst.Attribute(value=of, attr=cst.Name("shape")),
            slice=[cst.SubscriptElement(slice=cst.Index(value=cst.Integer("0")))],
        ):
            yield of
