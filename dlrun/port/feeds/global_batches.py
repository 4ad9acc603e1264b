"""``--batch global``: each rank takes a part of every batch of a tape or a session, whose losses are means or sums."""

from __future__ import annotations

from dataclasses import replace

import libcst as cst

from dlrun.errors import DlrunError
from dlrun.port.facts import Feed
from dlrun.port.facts.models.kinds_tensorflow import plain
from dlrun.port.facts.updates.reductions import Reductions
from dlrun.port.feeds import Feeds
from dlrun.port.feeds.positions import cuts
from dlrun.port.feeds.tensorflow import SessionFeeds
from dlrun.port.program.script import argument, calls_method, dotted, names_in


def divided(feeds: Feeds, compiled: list[cst.CSTNode]) -> None:
    """Note how the losses gather the samples of the batches that are divided.

    Raises ``DlrunError`` where batches cannot be divided, or where no weights make the ranks' losses that of a batch.
    """
    if feeds.full_batch:
        return
    script = feeds.script
    cuts.divide(feeds)
    odd = [f.node for f in feeds.found.values() if f.how != "cut" and not _gives_batches(feeds, f)]
    if feeds.episodes or odd or compiled or feeds.loops.accumulating or not feeds.found:
        node = (odd or compiled or feeds.loops.accumulating or feeds.loops.ends)[0]
        why = "these are no data set's" if odd else "gradients are added up over several"
        why = why if odd or feeds.loops.accumulating else "here a step draws its own"
        why = "the loop goes through them in a graph" if compiled else why
        raise DlrunError(
            f"{script.place(node)}: --batch global divides the batches that a loop takes of a tf.data.Dataset; {why}. "
            "Nothing was written.",
            "Let a Python loop go through the data set and update once for a batch, or port with --batch local.",
        )
    gradients = feeds.loops.gradients
    losses = [c.args[0].value for c in getattr(gradients, "averages", ()) if c.args]
    loops = [loop for loop in feeds.innermost if isinstance(loop, cst.For)]
    taken = {loop: names_in(loop.target) for loop in loops}

    picks = {pick for feed in feeds.found.values() if feed.how == "cut" for pick in feed.picks}

    def data(node: cst.CSTNode) -> str | None:
        if not isinstance(node, cst.Name):
            return script.code(node) if node in picks else None
        return next(
            (node.value for loop, names in taken.items() if node.value in names and script.inside(node, loop)), None
        )

    how = Reductions(feeds.kinds, losses, data, lambda node: True)
    if how.sums and how.means:
        raise DlrunError(
            f"{script.place(how.sums[0])}: this loss is a sum over the samples, beside means over them: no weights of "
            "parts of a batch stand for both. Nothing was written.",
            "Let all be means, or port with --batch local.",
        )
    feeds.found = {key: replace(feed, gathered=how) for key, feed in feeds.found.items()}


def _gives_batches(feeds: Feeds, feed: Feed) -> bool:
    """Tell whether a loop goes through a data set, or through batches that a generator of the script's yields."""
    known = feeds.kinds.of(feed.node) == "loader" or cuts.generates_batches(feeds.flow, feed.node) is True
    return feed.how == "iterable" and known


def fed(feeds: SessionFeeds) -> None:
    """Let the runs that train be fed with parts of what they are fed with: of what rank 0 has drawn.

    Raises ``DlrunError`` where a graph gets its batches otherwise, or has their size in its shapes.
    """
    if feeds.full_batch:
        return
    script, gradients = feeds.script, feeds.gradients
    given: dict[cst.BaseExpression, cst.BaseExpression] = {}
    for run, _ in gradients.step_calls:
        pairs = [(k, v) for k, v in gradients.fed_pairs(run) if not _is_setting(feeds, v)]
        mine = {value: key for key, value in pairs if _is_by_sample(feeds, key)}
        if not mine or feeds.episodes:
            raise DlrunError(
                f"{script.place(run)}: --batch global divides what placeholders of shape [None, ...] are fed with; "
                "this run gets its batches otherwise. Nothing was written.",
                "Feed a batch to placeholders with None for its size, or port with --batch local.",
            )
        given |= mine
    _check_states(feeds)
    names = {name: script.code(value) for value, key in given.items() for name in gradients.called(key)}

    def data(node: cst.CSTNode) -> str | None:
        return names.get(dotted(node)) if isinstance(node, (cst.Name, cst.Attribute)) else None

    how = Reductions(feeds.kinds, gradients.losses(), data, lambda node: False)
    feeds.found = {v: Feed(v, "array", drawn=(script.code(v),), gathered=how) for v in given}


def _is_by_sample(feeds: SessionFeeds, placeholder: cst.BaseExpression) -> bool:
    """Tell whether a placeholder takes any number of samples; raises ``DlrunError`` where it takes a fixed one."""
    for made in [o.node for o in feeds.flow.origins(placeholder)]:
        if not isinstance(made, cst.Call) or not plain(feeds.script.name_of(made.func)).endswith("placeholder"):
            continue
        shape = argument(made, "shape", 1)
        if not isinstance(shape, (cst.List, cst.Tuple)) or not shape.elements:
            continue
        first = shape.elements[0].value
        if isinstance(first, cst.Name) and first.value == "None":
            return True
        raise DlrunError(
            f"{feeds.script.place(made)}: the graph has the size of a batch in a shape, {feeds.script.code(shape)}: "
            "parts of one do not fit. Nothing was written.",
            "Write None for the size of the batch, or port with --batch local.",
        )
    return False


def _is_setting(feeds: SessionFeeds, value: cst.BaseExpression) -> bool:
    """Tell whether ``value`` is what an object was made with, and so no batch: ``self.keep``, of what layers keep."""
    owner = feeds.script.class_of(value)
    if owner is None or not isinstance(value, cst.Attribute) or dotted(value.value) != "self":
        return False
    homes = [feeds.script.function_of(b.node) for b in feeds.script.attributes.get((owner, value.attr.value), ())]
    return bool(homes) and all(isinstance(home, cst.FunctionDef) and home.name.value == "__init__" for home in homes)


def _check_states(feeds: SessionFeeds) -> None:
    """Raise ``DlrunError`` where the graph makes states for as many samples as are written: ``zero_state(64)``."""
    for call in feeds.script.calls:
        size = argument(call, "batch_size", 0) if calls_method(call, "zero_state") else None
        made = [o.node for o in feeds.flow.origins(size)] if size is not None else []
        if made and all(isinstance(n, cst.Integer) for n in made):
            raise DlrunError(
                f"{feeds.script.place(call)}: the graph has the size of a batch in a state, "
                f"{feeds.script.code(call)}: parts of one do not fit. Nothing was written.",
                "Take the size of what is fed, tf.shape(x)[0], or port with --batch local.",
            )
