"""Step "output": files, figures and progress bars come from rank 0 alone; downloads and folders do not race."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

import libcst as cst

from dlrun.port.edits import Doubt, Edit
from dlrun.port.facts import Facts, ScriptFacts
from dlrun.port.facts.models.kinds_tensorflow import plain
from dlrun.port.insert import expression, inside, statements, with_argument
from dlrun.port.program.script import argument, calls_method, dotted, walk
from dlrun.port.steps.output import (
    caches,
    commands,
    databases,
    downloads,
    drawn_names,
    handed_on,
    opens,
    reads,
    stamps,
    stopping,
    unseen_files,
)
from dlrun.port.steps.output.writes import ANSWERS, called, goes_on, in_memory, writes

_BARS = (
    "tqdm.tqdm",
    "tqdm.trange",
    "tqdm.auto.tqdm",
    "tqdm.auto.trange",
    "tqdm.notebook.tqdm",
    "tqdm.std.tqdm",
    "tqdm.notebook.trange",
    "tqdm.tqdm_notebook",
)
_FILMS = re.compile(r"^(gym|gymnasium)\.(\w+\.)*(RecordVideo(V0)?|Monitor)$")
# What fails where the folder is there already, and what does not.
_WHERE = "rank 0 alone has written: it tells the others where"
_NEW = {"tensorflow.io.gfile.mkdir": "makedirs", "tensorflow.gfile.MkDir": "MakeDirs"}
_HUBS = re.compile(
    r"^(torchvision\.datasets\.[\w?]+|torchaudio\.datasets\.\w+|torchtext\.datasets\.\w+|torch\.hub\.load(_state_dict_from_url)?|"
    r"(six\.moves\.)?urllib\.(request\.)?urlretrieve|gdown\.download|kagglehub\.\w+|wget\.download|datasets\.load_dataset|"
    r"sklearn\.datasets\.fetch_\w+)$"
)


def torch(facts: Facts) -> Iterator[Edit | Doubt]:
    """Replace call targets and keep the arguments; save() writes on rank 0, load() waits for it.

    Before:
        torch.save(model.state_dict(), "model.pt")

    After:
        dl.save(model.state_dict(), "model.pt")
    """
    yield from stopping.torch(facts)
    yield from stamps.names(facts)
    yield from drawn_names.names(facts)
    yield from stamps.folders(facts)
    yield from stamps.of_writers(facts)
    yield from caches.torch(facts)
    yield from downloads.both(facts)
    yield from reads.back(facts)
    yield from handed_on.writers(facts)
    dl = facts.alias
    for call in downloads.others(facts):
        name = facts.script.name_of(call.func)
        if name in ("torch.save", "torch.load") and in_memory(facts, call):
            continue
        if name == "torch.save":
            why = "rank 0 writes the file, whole or not at all"
            yield Edit(call.func, why, lambda _: expression("torch/save", dl=dl))
        elif name == "torch.load":
            why = "every rank reads, after rank 0 has finished writing"
            yield Edit(call.func, why, lambda _: expression("torch/load", dl=dl))
        else:
            yield from one(facts, call)


def one(facts: ScriptFacts, call: cst.Call) -> Iterator[Edit | Doubt]:
    """Yield the change of one call that any framework's script may make."""
    dl, name = facts.alias, called(facts, call)
    on_rank0 = partial(expression, "torch/rank0_value", dl=dl)
    if writes(facts, call, name):
        runs = commands.acts(facts, call, name) and not commands.removes(facts, call, name)
        why = "rank 0 runs this command, and no other" if runs else "rank 0 writes"
        yield Edit(call.func, why, lambda f: expression("torch/rank0", {"call": f}, dl=dl))
        if ANSWERS.search(name) and goes_on(facts.script, call) and not downloads.is_apart(facts, call, ()):
            yield Edit(call, _WHERE, lambda c: expression("torch/same", {"value": c}, dl=dl))
        if downloads.before_listing(facts, call, name) or commands.waited_for(facts, call, name):
            left = "what it leaves is there for all" if runs else "what was removed no rank lists any more"
            lines = statements("torch/barrier", dl=dl, why=left)
            line = facts.script.line_of(facts.script.statement_of(call))
            yield Edit(line, "the others wait until it is done", after=lines)
    elif downloads.makes_array(call, name):
        yield Doubt(
            call,
            "each rank makes this file anew, while the others write it and read it",
            "high",
            f"make and fill it under `if {dl}.get_rank() == 0:`, then {dl}.barrier(), and open it with "
            'mode="r" on all ranks; or give each rank a file of its own',
            name="several-writers",
        )
    elif databases.is_shared(facts, call, name):
        yield databases.doubt(facts, call)
    elif opens.may_write(facts, call, name):
        handed = opens.written_by(facts, call)
        yield from [opens.doubt(facts, call)] if handed is None else []
        for written in handed or ():
            yield Edit(written.func, "rank 0 writes", lambda f: expression("torch/rank0", {"call": f}, dl=dl))
    elif name == "logging.basicConfig" or _sets_level(facts, call):
        level = argument(call, "level") if name == "logging.basicConfig" else call.args[0].value
        if name == "logging.basicConfig" and (file := argument(call, "filename")) is not None:
            yield Edit(file, "rank 0 writes the log", lambda f: on_rank0({"value": f}, other="None"))
        quiet = level is not None and dotted(level).endswith((".WARNING", ".WARN", ".ERROR", ".CRITICAL", ".FATAL"))
        if level is not None and not quiet and not isinstance(level, cst.IfExp):
            logging = facts.script.code(call.func).rpartition(".")[0] if name == "logging.basicConfig" else "logging"
            yield Edit(level, "one log: other ranks only warn", partial(_quieter, dl, logging))
    elif name == "wandb.init":
        why, mode = "one run in the log, rank 0's", argument(call, "mode")
        options = next((a.value for a in call.args if a.star == "**"), None)
        if isinstance(mode, cst.SimpleString) and mode.evaluated_value == "disabled":
            return
        if mode is not None:
            yield Edit(mode, why, lambda m: expression("torch/quiet_given", {"mode": _in_brackets(m)}, dl=dl))
        elif options is not None:
            yield Edit(options, why, lambda o: expression("torch/quiet_options", {"options": _in_brackets(o)}, dl=dl))
        else:
            yield Edit(call, why, lambda c: with_argument(c, "mode", expression("torch/quiet_mode", dl=dl)))
    elif name in _BARS:
        if argument(call, "disable") is None and not any(a.star == "**" for a in call.args):
            hide = partial(with_argument, keyword="disable", value=expression("torch/not_rank0", dl=dl))
            yield Edit(call, "one progress bar", partial(inside, func=call.func, change=hide))
    elif _FILMS.search(name) and call.args and isinstance(call.args[0].value, cst.Name):
        filmed = call.args[0].value
        yield Edit(call, "rank 0 films what it plays", lambda c: on_rank0({"value": c, "other": filmed}))
    elif name == "visdom.Visdom.check_connection":
        plain = partial(cst.Call, cst.Name("bool"))
        yield Edit(
            call,
            "rank 0 alone has a connection",
            lambda c: expression("torch/same", {"value": plain([cst.Arg(c)])}, dl=dl),
        )
    elif facts.framework != "torch" and (file := _cache(facts, call)) is not None:
        yield Edit(
            file,
            "each rank keeps a cache of its own: TensorFlow locks the file",
            lambda f: expression("tensorflow/cache", {"path": _in_brackets(f)}, dl=dl),
        )
    elif unseen_files.saves(facts, call, name):
        alone = isinstance(facts.script.parents[call], cst.Expr) or downloads.is_apart(facts, call)
        how = "torch/rank0" if alone else "torch/rank0_first"
        yield Edit(
            call.func,
            "rank 0 writes" if alone else "rank 0 writes, then the others",
            lambda f: expression(how, {"call": f}, dl=dl),
        )
        if alone and goes_on(facts.script, call) and not downloads.is_apart(facts, call, ()):
            yield Edit(call, _WHERE, lambda c: expression("torch/same", {"value": c}, dl=dl))
    elif _fetches(facts, call, name):
        why = "rank 0 downloads, the others wait and read"
        yield Edit(call.func, why, lambda f: expression("torch/rank0_first", {"call": f}, dl=dl))
    elif unseen_files.may_make(facts, call, name) and not downloads.is_apart(facts, call):
        why = "rank 0 first: it may make what the others find"
        yield Edit(call.func, why, lambda f: expression("torch/rank0_first", {"call": f}, dl=dl))
    else:
        yield from _folders(facts, call, name)


def _fetches(facts: ScriptFacts, call: cst.Call, name: str) -> bool:
    """Tell whether ``call`` fetches data, or makes files of them, unless they are there."""
    if _HUBS.search(name):
        return _downloads(call, name)
    first = unseen_files.unpacks(facts, call, name) or unseen_files.prepares(facts, call, name)
    return first and not downloads.is_apart(facts, call)


def _cache(facts: ScriptFacts, call: cst.Call) -> cst.BaseExpression | None:
    """Return the file in which a ``tf.data.Dataset`` is cached: ``data.cache("file")``."""
    file = argument(call, "filename", 0)
    caches = calls_method(call, "cache") and not facts.flow.targets(call)
    return None if not caches or (isinstance(file, cst.SimpleString) and not file.evaluated_value) else file


def _in_brackets(node: cst.BaseExpression) -> cst.BaseExpression:
    plain = isinstance(node, (cst.Name, cst.Attribute, cst.Subscript, cst.Call, cst.SimpleString)) or node.lpar
    return node if plain else node.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])


def _sets_level(facts: ScriptFacts, call: cst.Call) -> bool:
    """Tell whether ``call`` sets the level of a logger."""
    if not isinstance(call.func, cst.Attribute) or call.func.attr.value != "setLevel" or len(call.args) != 1:
        return False
    logs = any(b.how == "import" and b.target == "logging" for b in facts.script.scopes[call].lookup("logging")[0])
    made = [o.node for o in facts.flow.origins(call.func.value)]
    return logs and any(isinstance(m, cst.Call) and facts.script.name_of(m.func) == "logging.getLogger" for m in made)


def _quieter(dl: str, logging: str, level: cst.BaseExpression) -> cst.BaseExpression:
    return expression("torch/level", {"level": level}, dl=dl, logging=logging)


def _downloads(call: cst.Call, name: str) -> bool:
    if name.startswith("torchvision.datasets."):
        value = argument(call, "download")
        return value is not None and dotted(value) != "False"
    return True


def _is_of_module(facts: ScriptFacts, owner: cst.BaseExpression) -> bool:
    """Tell whether ``owner`` is a module: its ``mkdir()`` is no path's, and may know no ``exist_ok``."""
    bound = facts.script.bindings_of(owner) if isinstance(owner, cst.Name) else []
    return any(b.how == "import" for b in bound)


def _folders(facts: ScriptFacts, call: cst.Call, name: str) -> Iterator[Edit | Doubt]:
    """Yield what keeps ranks from tripping over a folder that another rank has just made."""
    exist = argument(call, "exist_ok")
    if exist is not None and dotted(exist) != "True":
        first = partial(expression, "torch/rank0_first", dl=facts.alias)
        yield Edit(call.func, "rank 0 makes the folder, which must be new", lambda f: first({"call": f}))
        others, new = expression("torch/not_rank0", dl=facts.alias), dotted(exist) == "False"
        yield Edit(exist, "the others find it", lambda e: others if new else cst.BooleanOperation(e, cst.Or(), others))
    elif name in ("os.makedirs", "os.mkdir") and exist is None:
        why = "another rank may have made the folder a moment ago"
        imported = list(_imported(facts, call.func)) if name == "os.mkdir" else []
        for alias in imported:
            yield Edit(alias, why, partial(_as, call.func))
        yield Edit(call, why, partial(_made, named=bool(imported)))
    elif plain(name) in _NEW and isinstance(call.func, cst.Attribute):
        yield Edit(
            call.func,
            "another rank may have made the folder a moment ago",
            lambda f: f.with_changes(attr=cst.Name(_NEW[plain(name)])),
        )
    elif (
        calls_method(call, "mkdir")
        and not name.startswith("os")
        and not _is_of_module(facts, call.func.value)
        and exist is None
    ):
        yield Edit(
            call,
            "another rank may have made the folder a moment ago",
            lambda c: with_argument(c, "exist_ok", cst.Name("True")),
        )


def _imported(facts: ScriptFacts, func: cst.BaseExpression) -> Iterator[cst.ImportAlias]:
    """Yield where ``func``, which is ``os.mkdir``, is imported as a name of its own."""
    for binding in facts.script.bindings_of(func) if isinstance(func, cst.Name) else ():
        names = (n for n in walk(binding.node) if isinstance(n, cst.ImportAlias))
        yield from (n for n in names if isinstance(n.name, cst.Name) and n.name.value == "mkdir")


def _as(func: cst.BaseExpression, alias: cst.ImportAlias) -> cst.ImportAlias:
    """Return the import of ``os.makedirs`` by the name that ``func``, ``os.mkdir``, had."""
    return alias.with_changes(name=cst.Name("makedirs"), asname=cst.AsName(cst.Name(dotted(func))))


def _made(call: cst.Call, named: bool) -> cst.Call:
    """Return the call that makes a folder which may be there; of a name that is ``named`` so where it is imported."""
    func: cst.BaseExpression = cst.Name("makedirs")
    if isinstance(call.func, cst.Attribute):
        func = call.func.with_changes(attr=func)
    return with_argument(call.with_changes(func=call.func if named else func), "exist_ok", cst.Name("True"))
