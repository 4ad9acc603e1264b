"""What stands in the way of porting a script that trains: there are no samples that ranks could share."""

from __future__ import annotations

import re

import libcst as cst

from dlrun.errors import DlrunError
from dlrun.port.feeds import Feeds
from dlrun.port.feeds.positions.beside import cuts_batches, cuts_order
from dlrun.port.feeds.positions.cuts import generates_batches
from dlrun.port.inputs import meta_learning, trained_input
from dlrun.port.program.script import Script, argument, walk
from dlrun.port.rebuilt import rebuilt
from dlrun.port.untrained import missing, no_weights

_EXACT = re.compile(r"^gpytorch\..*(ExactMarginalLogLikelihood|LeaveOneOutPseudoLikelihood)$")
_LISTS = re.compile(
    r"^((numpy|random)\.\w|torch\.(?!load$|utils\.data\.(\w+\.)?\w*DataLoader$)|"
    r"builtins\.(zip|list|tuple|range|sorted|map|filter)$)"
)
_DRAW_ALL = ("builtins.list", "builtins.tuple", "builtins.sorted", "builtins.reversed")


def whole_graph(script: Script, node: cst.CSTNode) -> DlrunError:
    """Return the error for a script that trains on one graph, which ``node`` belongs to."""
    return DlrunError(
        f"{script.place(node)}: trains on one whole graph ({script.code(node)}): its nodes "
        "hang together and are no samples to share. Nothing was written.",
        "Split the graph (mini-batches of neighbourhoods) before going to many ranks.",
    )


def nothing_to_share(feeds: Feeds) -> DlrunError | None:
    """Return the error for a script whose samples cannot be sharded over the ranks, or None."""
    script = feeds.script
    if (cls := _in_threads(feeds)) is not None:
        return DlrunError(
            f"{script.place(cls)}: {cls.name.value} trains in threads or processes of its own, each at its own pace: "
            "on many ranks their exchanges would meet in another order on each. Nothing was written.",
            "Train in one thread: the ranks take the place of the others.",
        )
    if (node := trained_input(feeds.loops)) is not None:
        return DlrunError(
            f"{script.place(node)}: trains {script.code(node)}, which goes into a network that stays as it is: an "
            "image or a code, and no weights. There are no samples to share among the ranks. Nothing was written.",
            "Run one image on each rank: dlrun launch -n 4 SCRIPT, with the image chosen by the rank.",
        )
    exact = (n for n in script.of(cst.Call) if _EXACT.search(script.name_of(n.func)))
    if (node := next(exact, None)) is not None:
        return DlrunError(
            f"{script.place(node)}: an exact Gaussian process ({script.code(node.func)}): its likelihood is one of all "
            "samples together, which no mean over the ranks' samples is. Nothing was written.",
            "A variational one, with batches of a data set and VariationalELBO, can be shared by ranks.",
        )
    if (node := meta_learning(feeds.loops)) is not None:
        return DlrunError(
            f"{script.place(node)}: meta-learning ({script.code(node).strip()}): each task has updates of its own, "
            "which the ranks' mean would mix. Nothing was written.",
            "Give each rank tasks of its own, and average what the outer loop learns from them by hand: dl.average().",
        )
    if (cls := _of_one_sample(feeds)) is not None:
        return DlrunError(
            f"{script.place(cls)}: {cls.name.value} has one sample, which holds all: there is none for a second rank. "
            "Nothing was written.",
            "Take the sample out before the loop, `x, y = data[0]`, and let each step take x and y whole: then their "
            "rows are shared.",
        )
    if (reason := _uncut(feeds) or rebuilt(feeds.loops.gradients)) is not None:
        return reason
    if not feeds.found and not feeds.counted and not feeds.episodes:
        return no_weights(feeds.loops.gradients) or DlrunError(
            f"{script.place(feeds.loops.ends[0])}: found no samples to share among the ranks: the loop around this "
            "update runs over no data set, takes no slices of arrays and draws nothing at random. Nothing was written.",
            missing(script)
            or "Every rank would compute the same update. Feed the loop from a data set (DataLoader, "
            "tf.data.Dataset), or from slices, x[i:i + size], and port again.",
        )
    return None


def _of_one_sample(feeds: Feeds) -> cst.ClassDef | None:
    """Return the class of a data set that trains and whose length is 1: all pixels of a picture, say."""
    flow = feeds.flow
    given = [argument(n, "dataset", 0) for f in feeds.found.values() for n in walk(f.node) if isinstance(n, cst.Call)]
    sets = [f.node for f in feeds.found.values()] + [value for value in given if value is not None]
    sets += [
        value
        for f in feeds.found.values()
        for o in flow.origins(f.node)
        if isinstance(o.node, cst.Call)
        if (value := argument(o.node, "dataset", 0)) is not None
    ]
    for cls in dict.fromkeys(c for node in sets for c in flow.classes(node)):
        length = flow.method(cls, "__len__")
        returned = flow.returns(length) if length is not None else []
        if returned and all(isinstance(r, cst.Integer) and r.value == "1" for r in returned):
            return cls
    return None


def _uncut(feeds: Feeds) -> DlrunError | None:
    """Return the error for samples that the script has, and that cannot be cut into shares."""
    script = feeds.script
    if feeds.carried.uncut is not None:
        state, why = feeds.carried.uncut
        return DlrunError(
            f"{script.place(state)}: a hidden state is carried from batch to batch, so the batches form one stream: "
            f"each rank needs a stretch of it, and it cannot be cut: {script.place(why.node)}: {why}. Nothing was "
            "written.",
            "Go through arrays, `for i in range(0, len(x), size): x[i:i + size]`, or reset the state in each batch.",
        )
    if feeds.graph is not None:
        return whole_graph(script, feeds.graph)
    if feeds.uncut is not None:
        name = script.code(feeds.uncut)
        if isinstance(feeds.uncut, cst.Attribute):
            return DlrunError(
                f"{script.place(feeds.uncut)}: the loss takes {name} whole, and no one line of a method sets it: each "
                "rank would compute with all of it. Nothing was written.",
                f"Set it in one line, or set all that the loss takes in one method. By hand: {name} = dl.shard({name}, "
                'batch="global") where it is set, dl.gradients(optimizer) before the step.',
            )
        return DlrunError(
            f"{script.place(feeds.uncut)}: the loss takes {name} whole (a global, an object that keeps it, or an "
            "argument that comes out of sight), so each rank would compute with all of it. Nothing was written.",
            f"Hand {name} to the function as an argument, or feed the loop from a DataLoader.",
        )
    if feeds.sequence is not None:
        return DlrunError(
            f"{script.place(feeds.sequence)}: a hidden state is carried from entry to entry of what each step takes "
            "whole: they are one sequence, and no samples to share. Nothing was written.",
            "Let a sequence be a sample: feed the loop from a DataLoader of sequences.",
        )
    if feeds.part is not None:
        part, whole = script.code(feeds.part), script.code(feeds.part.value)
        return DlrunError(
            f"{script.place(feeds.part)}: each step takes a part, {part}, out of {whole}: in a rank's share of {whole} "
            "that would be other samples. Nothing was written.",
            f"Take the part before the loop, {whole}_train = {part}, and use that in the loop.",
        )
    if feeds.taken is not None:
        return DlrunError(
            f"{script.place(feeds.taken)}: {script.code(feeds.taken)} moves on in a queue of samples, or of where they "
            "lie, which is the same on all ranks: it cannot be cut before the loop. Nothing was written.",
            "Run over what the queue holds, `for batch in batches`, or feed the loop from a DataLoader.",
        )
    if isinstance(feeds.moved, cst.BaseExpression):
        return moves_over(script, feeds.moved)
    if feeds.moved is not None:
        return DlrunError(
            f"{script.place(feeds.moved)}: takes slices of its data at positions that it moves on, and the data come "
            "from out of sight: they cannot be cut before the loop. Nothing was written.",
            "Run over the positions, `for i in range(0, len(x), batch_size)`, or feed the loop from a DataLoader.",
        )
    if feeds.numbered is not None:
        what = script.code(feeds.numbered)
        return DlrunError(
            f"{script.place(feeds.numbered)}: {what} is picked by the number of the batch, which each rank counts in "
            "its own share: it would belong to another batch. Nothing was written.",
            "Go through both together: for x, y in zip(xs, ys); beside a DataLoader, put both into its data set.",
        )
    if feeds.unfed is not None:
        return DlrunError(
            f"{script.place(feeds.unfed)}: this loop takes the same samples whole in every step, beside one fed "
            "with batches: with its rate scaled each rank would compute the same update. Nothing was written.",
            "Train in two scripts, or feed this loop from a DataLoader, too.",
        )
    return None


def moves_over(script: Script, length: cst.BaseExpression) -> DlrunError:
    """Return the error for positions that move on within a rank's share, up to the length of other data."""
    return DlrunError(
        f"{script.place(length)}: a position moves on up to {script.code(length)}, which is not the length of what is "
        "sliced there: each rank would run over the end of its share. Nothing was written.",
        "Compare with the length of what is sliced itself: len(order) for order[at:at + size].",
    )


def _in_threads(feeds: Feeds) -> cst.ClassDef | None:
    """Return a class of threads, or processes, whose methods run the training loops."""
    script, flow = feeds.script, feeds.flow
    functions = (script.function_of(n) for end in feeds.loops.ends for way in feeds.loops.ways(end) for n in way)
    for cls in dict.fromkeys(script.class_of(f) for f in functions if isinstance(f, cst.FunctionDef)):
        if cls is not None and not {"threading.Thread", "multiprocessing.Process"}.isdisjoint(flow.bases(cls)):
            return cls
    return None


def not_globally(feeds: Feeds) -> DlrunError | None:
    """Return the error for a script whose batches cannot be divided among the ranks, or None."""
    script = feeds.script
    drawn = [
        loop
        for loop in feeds.counted
        if loop not in feeds.found
        and not any(feeds.iterated.advanced(c) is not None for c in feeds.draws.reached(loop.body))
    ]
    indexed = [f.node for f in feeds.found.values() if f.how in ("indices", "positions")]
    streams = [f.node for f in feeds.found.values() if f.how in ("stretch", "stretches")]
    single = [f.node for f in feeds.found.values() if f.how == "iterable" and _one_by_one(feeds, f.node)]
    yielded = [
        f.node for f in feeds.found.values() if f.how == "iterable" and generates_batches(feeds.flow, f.node) is False
    ]
    ahead = [loop.iter for loop in feeds.innermost if isinstance(loop, cst.For) and _drawn_before(feeds, loop.iter)]
    if ahead:
        return DlrunError(
            f"{script.place(ahead[0])}: --batch global weighs each batch's parts as the loop draws them, and "
            f"{script.code(ahead[0])} has drawn all before the first iteration. Nothing was written.",
            "Let the loop go through the DataLoader itself, or port with --batch local.",
        )
    if feeds.episodes or drawn or indexed or streams or single or yielded:
        node = (indexed or streams or single or drawn or yielded or feeds.loops.ends)[0]
        how = "picked by number" if indexed else "slices of a stream" if streams else "drawn by the script itself"
        how = "the entries of a list" if single and not indexed and not streams else how
        return DlrunError(
            f"{script.place(node)}: --batch global divides the batches of a DataLoader; here they are {how}. "
            "Nothing was written.",
            "Feed the loop from a DataLoader, or from slices, x[i:i + size], in a loop over range(0, len(x), size); or "
            "port with --batch local and divide the batch size yourself.",
        )
    return None


def _one_by_one(feeds: Feeds, node: cst.CSTNode) -> bool:
    """Tell whether ``node`` is the script's own, or a library's list: it holds samples or batches, and is no loader."""
    if isinstance(node, cst.Subscript) and isinstance(node.slice[0].slice, cst.Slice):  # batches[:6]
        return _one_by_one(feeds, node.value)
    made = [o.node for o in feeds.flow.origins(node)]
    if cuts_order(feeds.script, feeds.flow, node) or cuts_batches(feeds.script, feeds.flow, node):
        return False
    return any(isinstance(n, (cst.List, cst.ListComp)) or _lists(feeds, n) for n in made)


def _drawn_before(feeds: Feeds, iterated: cst.BaseExpression) -> bool:
    """Tell whether all batches of a loader are drawn before the first iteration, and none weighed: ``list(loader)``."""
    named = [n for n in walk(iterated) if isinstance(n, (cst.Name, cst.Attribute))]
    kept = [b.value for n in named for b in feeds.script.bindings_of(n) if b.value is not None]
    calls = [n for part in (iterated, *kept) for n in walk(part) if isinstance(n, cst.Call) and n.args]
    listed = [n for n in calls if feeds.script.name_of(n.func) in _DRAW_ALL]
    return any(feeds.kinds.of(feeds.iterated.source(n.args[0].value)) == "loader" for n in listed)


def _lists(feeds: Feeds, made: cst.CSTNode, seen: frozenset[cst.CSTNode] = frozenset()) -> bool:
    """Tell whether the call ``made`` returns a list, an array or a data set; a method's call, of one of these."""
    if not isinstance(made, cst.Call) or made in seen or feeds.kinds.of_call(made) == "loader":
        return False
    if isinstance(own := feeds.flow.definition(made.func), cst.ClassDef):
        loads = any(name.endswith("DataLoader") for name in feeds.flow.bases(own))
        return not loads and not any(feeds.kinds.of(a.value) == "loader" for a in made.args)
    if _LISTS.search(feeds.script.name_of(made.func)):
        return True
    of = feeds.flow.origins(made.func.value) if isinstance(made.func, cst.Attribute) else []
    return any(_lists(feeds, o.node, seen | {made}) for o in of)
