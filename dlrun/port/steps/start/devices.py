"""Part of step "start": each rank works on its own GPU, the one that init() has made the current one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

import libcst as cst

from dlrun.port.edits import Doubt, Edit
from dlrun.port.facts import Facts, ScriptFacts
from dlrun.port.facts.models.kinds_tensorflow import plain
from dlrun.port.insert import expression, statements
from dlrun.port.program.script import argument, calls_method, walk

_NUMBERED = re.compile(r"^cuda:\d+$")
_SECOND = re.compile(r"(gpu:)[1-9]\d*", re.IGNORECASE)
_PARALLEL = ("torch.nn.DataParallel", "torch.nn.parallel.DataParallel", "torch.nn.parallel.data_parallel.DataParallel")
_CHOSEN, _WHY = "init() has chosen this rank's GPU", "this rank's GPU, not one for all"
_MAPS = ("auto", "balanced", "balanced_low_0", "sequential")  # of models over all GPUs that a process sees
_FILES = re.compile(r"^(yaml\.(safe_|full_|unsafe_)?load|json\.loads?|toml(lib|i)?\.loads?|omegaconf\.OmegaConf\.\w+)$")
_MAKERS = ("torch.device", "torch.cuda.current_device")


def torch(facts: Facts) -> Iterator[Edit | Doubt]:
    """Turn fixed GPU numbers into "the current GPU", which is another one on each rank.

    Before:
        device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")

    After:
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    """
    script, whole = facts.script, set[cst.CSTNode]()  # what is replaced with all that is in it
    yield from masks(facts)
    for call in script.calls:
        name = script.name_of(call.func)
        chosen = argument(call, "device", 0)
        if name in _PARALLEL:
            yield Edit(call, "one GPU a rank: the ranks are the parallelism", _on_one_gpu)
        elif name == "torch.cuda.device" and chosen is not None:
            whole.add(chosen)
            yield Edit(chosen, _WHY, lambda _: expression("torch/own_gpu"))
        elif name == "torch.cuda.set_device" and chosen is not None:
            whole.add(chosen)
            fixed = isinstance(chosen, (cst.Integer, cst.SimpleString, cst.FormattedString)) or _chosen(chosen)
            yield Edit(chosen, _CHOSEN, partial(_instead, "torch/current_gpu" if fixed else "torch/own_gpu"))
        elif name == "torch.device":
            yield from _made(facts, call)
            yield from _of_file(facts, call)
        elif calls_method(call, "cuda") and not facts.flow.targets(call):
            if call.args and not call.args[0].star and _is_number(facts, call.args[0]):
                yield Edit(call, _WHY, lambda c: c.with_changes(args=c.args[1:]))
        else:
            yield from _handed(facts, call, name)
    for node in script.nodes:
        match script.parents.get(node):
            case cst.DictElement(key=key) if key is node:
                continue  # torch.load(f, map_location={"cuda:1": "cuda:0"}) names what is in the file
        if whole and (node in whole or any(up in whole for up in script.above(node))):
            continue
        if isinstance(node, cst.SimpleString) and _NUMBERED.search(str(node.evaluated_value)):
            yield Edit(node, _WHY, _unnumbered)
        elif _chosen(node):
            yield Edit(node, _WHY, _cuda)


def tensorflow(facts: ScriptFacts) -> Iterator[Edit]:
    """Turn fixed GPU numbers into that of this rank's GPU, which init() has made the only visible one.

    Before:
        tf.config.set_visible_devices(gpus[1], "GPU")

    After:
        tf.config.set_visible_devices(gpus[dl.get_gpu()], "GPU")
    """
    yield from masks(facts)
    own = partial(expression, "from/gpu", dl=facts.alias)
    for call in facts.script.calls:
        name, first = plain(facts.script.name_of(call.func)), argument(call, "devices", 0)
        if name == "tensorflow.device" and call.args:
            place = call.args[0].value
            if isinstance(place, cst.SimpleString) and _SECOND.search(str(place.evaluated_value)):
                yield Edit(place, _WHY, lambda p: p.with_changes(value=_SECOND.sub(r"\g<1>0", p.value)))
        elif name in ("tensorflow.config.set_visible_devices", "tensorflow.config.experimental.set_visible_devices"):
            one = isinstance(first, (cst.List, cst.Tuple)) and len(first.elements) == 1
            match first.elements[0].value if one and isinstance(first, (cst.List, cst.Tuple)) else first:
                case cst.Subscript(slice=[cst.SubscriptElement(slice=cst.Index(value=number))]):
                    yield Edit(number, _CHOSEN, lambda _: own())


def _instead(template: str, _: cst.CSTNode) -> cst.BaseExpression:
    return expression(template)


def _cuda(_: cst.CSTNode) -> cst.SimpleString:
    return cst.SimpleString('"cuda"')


def _is_number(facts: ScriptFacts, arg: cst.Arg) -> bool:
    """Tell whether the ``arg`` of ``x.cuda()`` may be the number of a GPU, and is no device that is made elsewhere."""
    if arg.keyword is not None and arg.keyword.value != "device":
        return False
    made = [o.node for o in facts.flow.origins(arg.value)]
    texts = (cst.SimpleString, cst.FormattedString)
    known = any(isinstance(m, cst.Call) and facts.script.name_of(m.func) in _MAKERS for m in made)
    return not known and not any(isinstance(m, texts) or _chosen(m) for m in made)


def _made(facts: ScriptFacts, call: cst.Call) -> Iterator[Edit]:
    """Yield the change of ``torch.device("cuda", 0)``, and of ``torch.device(0)``."""
    kind, number = argument(call, "type", 0), argument(call, "index", 1)
    cpu = isinstance(kind, cst.SimpleString) and kind.evaluated_value != "cuda"
    if number is not None and not cpu:
        kept = [a for a in call.args if a.value is not number]
        kept[-1] = kept[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
        yield Edit(call, _WHY, lambda c: c.with_changes(args=kept))
    elif number is None and kind is not None and _counted(facts, kind):
        yield Edit(kind, _WHY, _cuda)


def _of_file(facts: Facts, call: cst.Call) -> Iterator[Doubt]:
    """Doubt a device whose name is read from a file of options, where it may have a number."""
    place = argument(call, "type", 0)
    for node in walk(place) if place is not None else ():
        if not isinstance(node, (cst.Subscript, cst.Attribute)):
            continue
        head: cst.BaseExpression = node
        while isinstance(head, (cst.Subscript, cst.Attribute)):
            head = head.value
        made = [o.node for o in facts.flow.origins(head)]
        if any(isinstance(m, cst.Call) and _FILES.search(facts.script.name_of(m.func)) for m in made):
            yield Doubt(
                node,
                "the device's name comes from a file: with a number, all ranks of a node would take that GPU",
                "medium",
                '"cuda" in the file, without a number',
                name="fixed-gpu",
            )
            return


def _counted(facts: ScriptFacts, node: cst.BaseExpression) -> bool:
    """Tell whether ``node`` is a whole number of the script's: ``0``, also by a name."""
    made = [o.node for o in facts.flow.origins(node)]
    return bool(made) and all(isinstance(m, cst.Integer) for m in made)


def _handed(facts: ScriptFacts, call: cst.Call, name: str) -> Iterator[Edit]:
    """Yield the change of ``x.to(0)``, ``pipeline(task, device=0)``, ``from_pretrained(path, device_map="auto")``."""
    spread = argument(call, "device_map")
    one = isinstance(spread, cst.Dict) and [type(e) for e in spread.elements] == [cst.DictElement]
    given = spread.elements[0].value if one and isinstance(spread, cst.Dict) else spread
    fixed = isinstance(given, cst.SimpleString) and given.evaluated_value in _MAPS
    if given is not None and (fixed or isinstance(given, cst.Integer)):
        yield Edit(
            given,
            "the model is on this rank's GPU, whole",
            partial(_instead, "torch/own_map" if fixed else "torch/own_device"),
        )
    place = argument(call, "device", 0) if calls_method(call, "to") and not facts.flow.targets(call) else None
    if place is None and name == "torch.set_default_device":
        place = argument(call, "device", 0)
    if place is None and (name.startswith(("torch.", "transformers.")) or not name):
        place = argument(call, "device")
    if place is not None and _counted(facts, place):
        by_number = partial(_instead, "torch/own_gpu") if name.startswith("transformers.") else _cuda
        yield Edit(place, _WHY, by_number)


def _chosen(node: cst.CSTNode) -> bool:
    """Tell whether ``node`` names a GPU by a computed number: ``f"cuda:{gpu}"``, ``"cuda:" + str(gpu)``."""
    match node:
        case cst.FormattedString(parts=[cst.FormattedStringText(value="cuda:"), cst.FormattedStringExpression()]):
            return True
        case cst.BinaryOperation(left=cst.SimpleString() as text, operator=cst.Add()):
            return text.evaluated_value == "cuda:"
        case cst.BinaryOperation(left=cst.SimpleString() as text, operator=cst.Modulo()):
            return text.evaluated_value in ("cuda:%d", "cuda:%s", "cuda:%i")
        case cst.Call(func=cst.Attribute(value=cst.SimpleString() as text, attr=cst.Name("format"))):
            return text.evaluated_value in ("cuda:{}", "cuda:{:d}", "cuda:{0}")
    return False


def _unnumbered(node: cst.SimpleString) -> cst.SimpleString:
    return node.with_changes(value=re.sub(r"cuda:\d+", "cuda", node.value))


def _on_one_gpu(call: cst.Call) -> cst.Call:
    """Return DataParallel(...) with ``device_ids`` naming the current GPU only."""
    only = expression("torch/one_gpu")
    kept: list[cst.Arg] = []
    for i, arg in enumerate(call.args):
        given = (arg.keyword is not None and arg.keyword.value == "device_ids") or (arg.keyword is None and i == 1)
        if given:
            return call.with_changes(args=[*kept, arg.with_changes(value=only), *call.args[i + 1 :]])
        kept.append(arg)
    tight = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    added = cst.Arg(only, keyword=cst.Name("device_ids"), equal=tight)
    if not kept:
        return call
    comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    return call.with_changes(args=[*kept[:-1], kept[-1].with_changes(comma=comma), added])


def masks(facts: ScriptFacts) -> Iterator[Edit]:
    """Yield the changes of ``os.environ["CUDA_VISIBLE_DEVICES"] = "0"``, which would undo the launcher's choice."""
    code = facts.script.code
    for node in facts.script.nodes:
        target = node.targets[0].target if isinstance(node, cst.Assign) else None
        if not (isinstance(target, cst.Subscript) and facts.script.name_of(target.value) == "os.environ"):
            continue
        index = target.slice[0].slice
        key = index.value if isinstance(index, cst.Index) else None
        if not isinstance(key, cst.SimpleString) or key.evaluated_value != "CUDA_VISIBLE_DEVICES":
            continue
        assert isinstance(node, cst.Assign)
        lines = statements("torch/keep_mask", environ=code(target.value), key=code(key), value=code(node.value))
        line = facts.script.line_of(node)
        if isinstance(line, cst.SimpleStatementLine):
            yield Edit(line, "the launcher gives each rank its GPU", partial(_in_place, lines[0]))


def _in_place(new: cst.CSTNode, old: cst.CSTNode) -> cst.CSTNode:
    assert isinstance(old, cst.SimpleStatementLine)
    return new.with_changes(leading_lines=old.leading_lines)
