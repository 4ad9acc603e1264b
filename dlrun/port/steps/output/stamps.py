"""Part of step "output": names of files and folders that hold the time, or a number that no other run has."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from dlrun.port.edits import Doubt, Edit
from dlrun.port.facts import Facts, ScriptFacts
from dlrun.port.facts.taint import Taint
from dlrun.port.insert import expression, statements
from dlrun.port.program.script import calls_method, dotted, walk
from dlrun.port.steps.counts.counters import runs_inside
from dlrun.port.steps.output import writes

_STAMPS = re.compile(
    r"^(time\.(time|time_ns|strftime|ctime|asctime|localtime|gmtime)|datetime\.(datetime|date)\.(now|today|utcnow)|"
    r"uuid\.uuid[14]|tempfile\.mkdtemp|secrets\.token_\w+)$"
)
_LOOKS = re.compile(r"(^|\.)(exists|is_dir|is_file|isdir|isfile|listdir|glob|Exists)$")
_TEXTS = ("strftime", "isoformat", "format", "replace", "timestamp", "ctime", "split", "hex", "lower", "strip")
_NAMING = {"join", "str", "format", "exists", "isdir", "isfile", "is_dir", "makedirs", "mkdir", "print", "Path", "int"}
_PATHS = re.compile(
    r"^(os\.(makedirs|mkdir|path\.(join|exists|isdir|isfile))|pathlib\.Path|builtins\.open|io\.open)$|"
    r"(^|\.)(SummaryWriter|FileWriter|FileHandler|create_file_writer|TensorBoard|ModelCheckpoint|CSVLogger|mkdir|makedirs|"
    r"MakeDirs|CheckpointManager|RunConfig)$"
)

OF_WORKERS = ("__getitem__", "__getitems__", "__iter__", "__next__")  # the methods that a worker process may run


def names(facts: ScriptFacts) -> Iterator[Edit | Doubt]:
    """Let rank 0 name what holds the time: each rank would make a folder of its own, and look for its files there.

    Before:
        import os, time, torch
        run = "runs/" + time.strftime("%H%M%S")
        os.makedirs(run, exist_ok=True)

    After:
        import os, time, torch
        run = "runs/" + dl.broadcast(time.strftime("%H%M%S"))
        os.makedirs(run, exist_ok=True)
    """
    script, done = facts.script, set()
    for call in script.calls:
        early = isinstance(script.function_of(call), cst.Module) and not any(
            isinstance(up, (cst.For, cst.While, cst.Lambda)) for up in script.above(call)
        )
        counts = script.name_of(call.func) == "builtins.len" and any(_lists(facts, a.value) for a in call.args)
        if not (counts or _STAMPS.search(script.name_of(call.func))) or not (early or once(facts, call)):
            continue
        whole = _whole(facts, call)
        if whole not in done and _names_path(facts, Taint(script, facts.kinds, [whole])):
            done.add(whole)
            if not once(facts, call):
                yield Doubt(
                    whole,
                    "the clock of each rank names this, before the ranks meet: they may look for other "
                    "files than rank 0 writes",
                    "medium",
                    f"{facts.alias}.broadcast() it under the main guard",
                    name="name-differs",
                )
                continue
            why = "a folder that is new is there for the next rank" if counts else "clocks differ"
            yield Edit(
                whole,
                f"one name for all ranks, rank 0's: {why}",
                lambda node: expression("torch/same", {"value": node}, dl=facts.alias),
            )
    for call in (c for c in script.calls if script.name_of(c.func) == "tempfile.mkstemp" and once(facts, c)):
        match script.statement_of(call):
            case cst.Assign(targets=[cst.AssignTarget(target=cst.Tuple(elements=[_, last]))], value=made) as line if (
                made is call
            ):
                same = statements("torch/same_file", dl=facts.alias, name=script.code(last.value))
                yield Edit(script.line_of(line), "one file for all ranks, rank 0's", after=same)
    for loop in script.of(cst.While):
        if (free := _tries(facts, loop)) and once(facts, loop):
            lines = [s for name in free for s in statements("torch/same_folder", dl=facts.alias, name=name)]
            yield Edit(
                loop, "the first name that is free: rank 0's, which the next rank may find taken", after=tuple(lines)
            )


def _lists(facts: ScriptFacts, node: cst.CSTNode) -> bool:
    """Tell whether ``node`` lists the files of a folder."""
    found = isinstance(node, cst.Call) and (facts.script.name_of(node.func) or dotted(node.func))
    return bool(found) and str(found).endswith(("os.listdir", "glob.glob"))


def _tries(facts: ScriptFacts, loop: cst.While) -> list[str]:
    """Return the names that ``loop`` changes until there is no file of that name: ``while os.path.exists(f"{n}")``."""
    calls = [dotted(n.func).rsplit(".", 1)[-1] for n in walk(loop.body) if isinstance(n, cst.Call)]
    if not set(calls) <= _NAMING:
        return []
    ends = [n.test for n in walk(loop.body) if isinstance(n, cst.If) and any(isinstance(b, cst.Break) for b in walk(n))]
    looked = [
        c
        for test in (loop.test, *ends)
        for c in walk(test)
        if isinstance(c, cst.Call) and _LOOKS.search(facts.script.name_of(c.func) or dotted(c.func))
    ]
    changed = [
        t
        for n in walk(loop.body)
        if isinstance(n, (cst.Assign, cst.AugAssign))
        for t in ([n.target] if isinstance(n, cst.AugAssign) else [t.target for t in n.targets])
    ]
    names = list(dict.fromkeys(t.value for t in changed if isinstance(t, cst.Name)))
    asked = {m.value for c in looked for m in walk(c) if isinstance(m, cst.Name)}
    return names if not asked.isdisjoint(names) else []


def _is_temporary(facts: ScriptFacts, file: cst.BaseExpression) -> bool:
    """Tell whether ``file`` is a temporary one that stays, which rank 0 alone makes."""
    made = [o.node for o in facts.flow.origins(file)]
    return any(isinstance(call, cst.Call) and writes.stays(facts, call) for call in made)


def of_writers(facts: ScriptFacts) -> Iterator[Edit]:
    """Let rank 0 tell the others where its writer writes: they have none.

    Before:
        import os, torch
        from torch.utils.tensorboard import SummaryWriter
        writer = SummaryWriter()
        torch.save(model.state_dict(), os.path.join(writer.log_dir, "model.pt"))

    After:
        import os, torch
        from torch.utils.tensorboard import SummaryWriter
        writer = dl.rank0(SummaryWriter)()
        dl.save(model.state_dict(), os.path.join(dl.broadcast(writer.log_dir), "model.pt"))
    """
    for node in facts.script.of(cst.Attribute):
        if node.attr.value == "name" and _is_temporary(facts, node.value):
            yield Edit(
                node, "rank 0's file, the only one", lambda n: expression("torch/same", {"value": n}, dl=facts.alias)
            )
        inner = isinstance(node.value, cst.Attribute) and node.value.attr.value in ("file_writer", "_file_writer")
        writer = node.value.value if inner else node.value  # type: ignore[attr-defined]
        if node.attr.value not in ("log_dir", "logdir", "get_logdir") or facts.kinds.of(writer) != "writer":
            continue
        up = facts.script.parents[node]
        asked = up if isinstance(up, cst.Call) and up.func is node else node
        around = [n for n in facts.script.above(node) if isinstance(n, (cst.Lambda, cst.Call))]
        alone = any(isinstance(n, cst.Lambda) or facts.script.name_of(n.func) == "logging.basicConfig" for n in around)
        if not alone and not isinstance(up, cst.AssignTarget):
            yield Edit(
                asked,
                "where rank 0's writer writes, the only one",
                lambda n: expression("torch/same", {"value": n}, dl=facts.alias),
            )


def folders(facts: ScriptFacts) -> Iterator[Edit | Doubt]:
    """Let all ranks use the temporary folder that rank 0 makes, until none of them needs it any more.

    Before:
        import tempfile, torch
        with tempfile.TemporaryDirectory() as scratch:
            torch.save(model.state_dict(), scratch + "/best.pt")
            model.load_state_dict(torch.load(scratch + "/best.pt"))

    After:
        import tempfile, torch
        with tempfile.TemporaryDirectory() as scratch:
            scratch = dl.broadcast(scratch)  # rank 0's folder, for all ranks
            torch.save(model.state_dict(), scratch + "/best.pt")
            model.load_state_dict(torch.load(scratch + "/best.pt"))
            dl.barrier()  # no rank needs the folder any more
    """
    for call in facts.script.calls:
        if facts.script.name_of(call.func) != "tempfile.TemporaryDirectory":
            continue
        item = facts.script.parents[call]
        around = facts.script.parents[item] if isinstance(item, cst.WithItem) else None
        held = item.asname.name if isinstance(item, cst.WithItem) and item.asname is not None else None
        if isinstance(around, cst.With) and isinstance(held, cst.Name) and isinstance(around.body, cst.IndentedBlock):
            if once(facts, call) or runs_inside(facts, around.body) or _comes_again(facts, call):
                first = around.body.body[0]
                names = statements("torch/same_folder", dl=facts.alias, name=held.value)
                yield Edit(first, "one folder for all ranks: each would make one of its own", before=names)
                yield _kept(facts, around.body.body[-1])
        elif once(facts, call):
            yield Doubt(
                call,
                "each rank makes a folder of its own here, and does not find in it what rank 0 writes",
                "medium",
                f"a folder of one name, or {facts.alias}.broadcast() of this one's",
                name="name-differs",
            )


def _comes_again(facts: ScriptFacts, call: cst.CSTNode, deep: int = 4) -> bool:
    """Tell whether all ranks come to ``call``, whenever one does: in a loop over epochs, but in none over batches."""
    if not isinstance(facts, Facts) or not deep:
        return False
    above = list(facts.script.above(call))
    home = facts.script.function_of(call)
    methods = {u.name.value for u in above if isinstance(u, cst.FunctionDef)}
    if any(u in facts.innermost for u in above) or not methods.isdisjoint(OF_WORKERS):
        return False
    callers = facts.flow.callers(home) if isinstance(home, cst.FunctionDef) else ()
    return home is facts.script.module or (bool(callers) and all(_comes_again(facts, c, deep - 1) for c in callers))


def _kept(facts: ScriptFacts, last: cst.CSTNode) -> Edit:
    """Return what lets rank 0 leave the block that ends with the line ``last`` when all have read what is in it."""
    why = "rank 0 removes the folder when no rank needs it any more"
    waits = statements("torch/barrier", dl=facts.alias, why="no rank needs the folder any more")
    leaves = last.body[-1] if isinstance(last, cst.SimpleStatementLine) else None
    if not isinstance(leaves, cst.Return):
        return Edit(last, why, after=waits)
    if leaves.value is None or not any(isinstance(n, cst.Call) for n in walk(leaves.value)):
        return Edit(last, why, before=waits)
    found = cst.Name("found")

    def keep(line: cst.SimpleStatementLine) -> cst.SimpleStatementLine:
        (*others, end) = line.body
        assert isinstance(end, cst.Return) and end.value is not None
        return line.with_changes(body=[*others, cst.Assign([cst.AssignTarget(found)], end.value)])

    return Edit(last, why, keep, after=(*waits, cst.SimpleStatementLine([cst.Return(found)])))


def _whole(facts: ScriptFacts, call: cst.Call) -> cst.BaseExpression:
    """Return the text or number that ``call`` is made into: ``datetime.now().strftime("%H")``, ``str(time.time())``."""
    node: cst.BaseExpression = call
    while True:
        up = facts.script.parents[node]
        method = facts.script.parents.get(up) if isinstance(up, cst.Attribute) and up.attr.value in _TEXTS else None
        user = facts.script.parents.get(up) if isinstance(up, cst.Arg) else None
        makes = isinstance(user, cst.Call) and facts.script.name_of(user.func) in (
            "builtins.str",
            "builtins.int",
            "time.strftime",
            "builtins.round",
        )
        if isinstance(method, cst.Call) and method.func is up:
            node = method
        elif makes and isinstance(user, cst.Call):
            node = user
        else:
            return node


def once(facts: ScriptFacts, call: cst.CSTNode) -> bool:
    """Tell whether all ranks come to ``call``, once and after they have met: in no loop, for no file that is there."""
    script, node = facts.script, call
    for _ in range(6):
        for up in script.above(node):
            if isinstance(up, cst.FunctionDef):
                break
            asks = [n for n in walk(up.test) if isinstance(n, cst.Call)] if isinstance(up, cst.If) else []
            looks = any(_LOOKS.search(script.name_of(n.func) or dotted(n.func)) for n in asks)
            if looks or isinstance(up, (cst.For, cst.While, cst.Lambda, cst.ListComp, cst.ExceptHandler)):
                return False
        function = script.function_of(node)
        if isinstance(function, cst.Module):
            met = facts.meeting is None or script.inside(node, facts.meeting)
            return met and function is script.module
        callers = facts.flow.callers(function)
        if len(callers) != 1:
            return not callers
        node = callers[0]
    return False


def _names_path(facts: ScriptFacts, stamped: Taint) -> bool:
    """Tell whether something that ``stamped`` marks becomes the name of a file or folder."""
    for call in facts.script.calls:
        name = facts.script.name_of(call.func) or dotted(call.func)
        values = [a.value for a in call.args]
        if calls_method(call, "mkdir"):
            values.append(call.func.value)
        if _PATHS.search(name) and any(map(stamped, values)):
            return True
    return False
