"""The calls that write files, by their names."""

from __future__ import annotations

import re

import libcst as cst

from dlrun.port.facts import ScriptFacts
from dlrun.port.program.script import Script, argument, calls_method, dotted, walk
from dlrun.port.steps.output import commands, downloads, opens

# Calls that write, and nothing else: rank 0 makes them, the arguments are evaluated on every rank.
WRITES = re.compile(
    r"^(matplotlib\.pyplot\.(savefig|show|pause|imsave)|numpy\.(save|savez|savez_compressed|savetxt)|(scipy\.misc|skimage\.io)\.imsave|"
    r"torchvision\.utils\.save_image|json\.dump|pickle\.dump|yaml\.dump|imageio(\.v[23])?\.(imwrite|mimwrite|volwrite|imsave|mimsave|volsave)|cv2\.imwrite|"
    r"shutil\.(copy|copyfile|copy2|copytree|move|make_archive|rmtree)|os\.(remove|unlink|rename|rmdir|replace|symlink|link)|scipy\.io\.savemat|"
    r"scipy\.sparse\.save_npz|(joblib|dill|toml|yaml\.safe)[._]dump|torch\.(onnx\.export|jit\.save)|plotly\.io\.write_image|"
    r"nibabel(\.loadsave)?\.save|SimpleITK\.WriteImage|tifffile\.im(write|save)|soundfile\.write|torchaudio\.save|"
    r"scipy\.io\.wavfile\.write|ase\.io\.write|Bio\.\w+\.write|pandas\.ExcelWriter|omegaconf\.OmegaConf\.save|"
    r"torch\.utils\.tensorboard(\.writer)?\.SummaryWriter|tensorboardX\.SummaryWriter|"
    r"tensorflow\.(summary\.(FileWriter(Cache\.get)?|create_file_writer)|train\.SummaryWriter)|safetensors\.torch\.save_file|"
    r"tensorboard_logger\.(configure|log_value|Logger)|neptune\.\w+|mlflow\.(\w+|\w+\.(log|save)_\w+)|"
    r"loguru\.logger\.(add|trace|debug|info|success)|cv2\.VideoWriter|imageio(\.v[23])?\.get_writer|"
    r"comet_ml\.\w+|aim\.Run|swanlab\.\w+|dvclive\.Live|csv\.writer|sys\.stdout\.write|pprint\.(pprint|pp)|rich\.print|click\.s?echo|logging\.(handlers\.\w*)?FileHandler|matplotlib\.pyplot\.imsave|visdom\.Visdom)$"
)
METHODS = (
    "savefig",
    "write_image",
    "write_html",
    "to_csv",
    "to_pickle",
    "to_excel",
    "to_json",
    "write_text",
    "write_bytes",
    "save_pretrained",
    "push_to_hub",
    "to_parquet",
    "to_feather",
    "to_hdf",
    "to_netcdf",
    "to_zarr",
    "writeto",
    "tofile",
    "to_sql",
    "symlink_to",
    "hardlink_to",
)
_CHECKPOINTS = re.compile(r"^tensorflow\.(compat\.v1\.)?train\.Checkpoint$")
_OF_PATHS_ALONE = ("unlink", "rmdir")
_PATHS_OF_PATHS = ("with_name", "with_stem", "with_suffix", "joinpath")  # which nothing but a path has
_OF_PATHS = ("unlink", "rename", "replace", "rmdir", "touch")
MODELS = ("save", "save_weights", "save_model", "to_disk")  # of Keras
_TEXTS = re.compile(r"^yaml\.(safe_)?dump$")  # which return the text where no stream is given
_OWN = (
    "io.BytesIO",
    "io.StringIO",
    "tempfile.TemporaryFile",
    "tempfile.NamedTemporaryFile",
    "tempfile.SpooledTemporaryFile",
)
_SHOWS = re.compile(r"(^|\.)(print|format|write|str|repr|debug|info|warning|log)$")
ANSWERS = re.compile(r"^shutil\.(copy|copyfile|copy2|copytree|move|make_archive)$")  # where they have written
# Functions of modules that are out of sight, which say by their name that they write.
SAVES = re.compile(
    r"^(?!torch\.|tensorflow\.|keras\.|\.)[\w.]+\.save_(checkpoint|ckpt|model|network|weights|state|images?)$"
)
# What makes pictures, films and compiled models, which save themselves.
PICTURES = re.compile(
    r"^(PIL\.Image\.\w+|torch\.jit\.(script|trace)|matplotlib\.animation\.\w+Animation|"
    r"torchvision\.transforms\.(functional\.)?\w*pil\w*|(tensorflow\.)?keras\.(utils|preprocessing\.image)\.\w+_img)$",
    re.I,
)


def called(facts: ScriptFacts, call: cst.Call) -> str:
    """Return what is called; the data set, where one of several is taken from a table: ``datasets.__dict__[name]``."""
    name = facts.script.name_of(call.func)
    if not name and calls_method(call, "SummaryWriter"):
        return "tensorboardX.SummaryWriter"  # importlib.import_module(name).SummaryWriter
    if calls_method(call, "check_connection"):
        made = [o.node for o in facts.flow.origins(call.func.value)]
        shows = any(isinstance(m, cst.Call) and facts.script.name_of(m.func) == "visdom.Visdom" for m in made)
        return "visdom.Visdom.check_connection" if shows else name
    cls = facts.flow.definition(call.func)
    if isinstance(cls, cst.ClassDef):  # a writer of the script's own, which derives from one
        return next((base for base in facts.flow.bases(cls) if base.endswith("SummaryWriter")), name)
    if (name and name[0] != ".") or argument(call, "download") is None:
        return name
    chosen = [n for n in facts.kinds.names(call.func) if n.startswith("torchvision.datasets.")]
    return chosen[0] if chosen else name


def writes(facts: ScriptFacts, call: cst.Call, name: str) -> bool:
    """Tell whether ``call``, of what is called ``name``, writes or removes a file."""
    if _TEXTS.search(name) and argument(call, "stream", 1) is None:
        return False
    made = WRITES.search(name) or SAVES.search(name) or opens.to_write(facts, call, name)
    found = bool(made) or _method_writes(facts, call, name) or commands.acts(facts, call, name)
    found = found or (
        name == "sqlite3.connect"
        and not any("select" in str(text.evaluated_value).lower() for text in facts.script.of(cst.SimpleString))
    )
    found = found or (downloads.makes_array(call, name) and _only_filled(facts, call)) or stays(facts, call)
    return found and not in_memory(facts, call)


def in_memory(facts: ScriptFacts, call: cst.Call) -> bool:
    """Tell whether ``call`` is given a file that is local, which it reads again: ``fig.savefig(buffer)``."""
    named = (
        v.value if isinstance(v, cst.Attribute) and v.attr.value == "name" else v for v in (a.value for a in call.args)
    )
    made = (o.node for value in named for o in facts.flow.origins(value))
    calls = [node for node in made if isinstance(node, cst.Call)]
    return any(facts.script.name_of(node.func) in _OWN and not stays(facts, node) for node in calls)


def stays(facts: ScriptFacts, made: cst.Call) -> bool:
    """Tell whether ``made`` makes a temporary file that is there once it is closed, under ``file.name``."""
    deleted = argument(made, "delete", 8)
    named = facts.script.name_of(made.func) == "tempfile.NamedTemporaryFile"
    return named and deleted is not None and facts.script.code(deleted) == "False"


def saves_model(facts: ScriptFacts, call: cst.Call, name: str) -> bool:
    """Tell whether ``call`` is ``model.save_weights(path)`` or the like, of a model of Keras."""
    method = call.func.attr.value if isinstance(call.func, cst.Attribute) else ""
    return method in MODELS and name[:1] in ("", ".") and not facts.flow.targets(call)


def _method_writes(facts: ScriptFacts, call: cst.Call, name: str) -> bool:
    if not isinstance(call.func, cst.Attribute) or (name and not name.startswith(".")):
        return False
    texts = call.func.attr.value == "to_json" and not call.args  # the text itself
    if call.func.attr.value in _OF_PATHS and is_path(facts, call.func.value):
        return True
    if call.func.attr.value in _OF_PATHS_ALONE and not _is_made_elsewhere(facts, call.func.value):
        return True  # self.saved.pop(0).unlink()
    if call.func.attr.value == "write" and is_checkpoint(facts, call.func.value):
        return True
    picture = call.func.attr.value == "save" and _is_picture(facts, call.func.value)
    return picture or (call.func.attr.value in METHODS and not texts)


def goes_on(script: Script, save: cst.CSTNode, known: frozenset[cst.CSTNode] = frozenset()) -> bool:
    """Tell whether where ``save`` wrote is used otherwise than in what is shown: ``os.path.basename(path)``.

    ``known`` are the assignments that lead here.
    """
    for up in script.above(save):
        if isinstance(up, (cst.Assign, cst.NamedExpr)):
            name = up.target if isinstance(up, cst.NamedExpr) else up.targets[0].target
            reads = [n for n in walk(script.function_of(up)) if n is not name and n.deep_equals(name)]
            # Not again for path = saver.save(session, path).
            return up not in known and any(goes_on(script, n, known | {up}) for n in reads)
        if isinstance(up, (cst.Attribute, cst.Subscript)) or (isinstance(up, cst.BinaryOperation) and _adds(up)):
            return True
        if isinstance(up, cst.Call) and up is not save and up.func is not save:
            return not _SHOWS.search(script.name_of(up.func) or dotted(up.func))
        if isinstance(up, cst.BaseSmallStatement):
            return isinstance(up, cst.Return)
    return False


def _adds(node: cst.BinaryOperation) -> bool:
    return isinstance(node.operator, (cst.Add, cst.Divide))


def is_checkpoint(facts: ScriptFacts, node: cst.BaseExpression) -> bool:
    """Tell whether ``node`` is a checkpoint of TensorFlow, which has write() and read(), too."""
    made = [o.node for o in facts.flow.origins(node)]
    return any(isinstance(n, cst.Call) and _CHECKPOINTS.search(facts.script.name_of(n.func)) for n in made)


def _only_filled(facts: ScriptFacts, call: cst.Call) -> bool:
    """Tell whether the script does nothing but fill the array that ``call`` makes in a file."""
    line = facts.script.statement_of(call)
    target = line.targets[0].target if isinstance(line, cst.Assign) and line.value is call else None
    uses = [n for n in facts.script.named(target.value) if n is not target] if isinstance(target, cst.Name) else []
    ups = [facts.script.parents[n] for n in uses]
    return bool(ups) and all(
        isinstance(facts.script.parents[up], cst.AssignTarget)
        if isinstance(up, cst.Subscript)
        else isinstance(up, cst.Attribute) and up.attr.value in ("flush", "close")
        for up in ups
    )


def is_path(facts: ScriptFacts, node: cst.BaseExpression) -> bool:
    """Tell whether ``node`` is a path of pathlib: ``Path("runs") / "last"``, also by a name."""
    listed = [b.value for b in facts.script.bindings_of(node) if b.how == "assign" and b.path == ("each",)]
    if listed and all(_lists_paths(n) for n in listed):
        return True
    made = [o.node for o in facts.flow.origins(node)]
    return bool(made) and all(
        (isinstance(n, cst.Call) and facts.script.name_of(n.func).startswith("pathlib."))
        or calls_method(n, *_PATHS_OF_PATHS)
        or (isinstance(n, cst.BinaryOperation) and isinstance(n.operator, cst.Divide) and is_path(facts, n.left))
        for n in made
    )


def _is_made_elsewhere(facts: ScriptFacts, node: cst.BaseExpression) -> bool:
    """Tell whether ``node`` is an object of the script's own, or of a library other than pathlib."""
    made = [o.node for o in facts.flow.origins(node)]
    named = [facts.script.name_of(n.func) for n in made if isinstance(n, cst.Call)]
    return bool(facts.flow.classes(node)) or any(name[:1].isalpha() and "pathlib" not in name for name in named)


def _lists_paths(node: cst.CSTNode | None) -> bool:
    """Tell whether ``node`` goes through the files of a folder as paths: ``sorted(folder.glob("*.pt"))[:-2]``."""
    calls = [n for n in walk(node) if isinstance(n, cst.Call)] if node is not None else []
    return any(
        calls_method(c, "glob", "rglob", "iterdir") and dotted(c.func) not in ("glob.glob", "glob.iglob") for c in calls
    )


def _is_picture(facts: ScriptFacts, node: cst.BaseExpression) -> bool:
    """Tell whether ``node`` is a picture or a film: ``Image.fromarray(x)``, also where it is changed on the way."""
    for origin in facts.flow.origins(node):
        made = origin.node
        while isinstance(made, cst.Call):
            if PICTURES.search(facts.script.name_of(made.func)):
                return True
            made = made.func.value if isinstance(made.func, cst.Attribute) else made.func
    return False
