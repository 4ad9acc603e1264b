"""Part of step "output": files that libraries out of sight write, read, and make on their first use."""

from __future__ import annotations

import re
import sys

import libcst as cst

from dlrun.port.facts import ScriptFacts
from dlrun.port.facts.numbers.texts import UNKNOWN, spelt
from dlrun.port.program.script import argument, calls_method, dotted, walk

# What methods and functions that write are called; a file's own write() goes where its file was opened.
_SAVES = re.compile(r"^(save|export|dump)(_\w+)?$|^to_\w*file$|^write_\w+$|^add_meta_graph(_and_variables)?$")
_IN_MEMORY = re.compile(
    r"^(torch|tensorflow|keras|numpy|builtins|os|sys|logging|argparse|io)(\.|$)|dumps$|_string$|state_dict|^save_for_(backward|forward)$"
)
_UNPACKS = ("extractall", "unpack_archive", "extract_archive", "download_and_extract_archive")
_FETCHES = re.compile(r"(^|_)download(_|$)|^fetch_\w+$|^load_dataset$|^download_and_\w+$", re.IGNORECASE)
_KEPT_IN = ("root", "data_home", "data_root", "raw_dir")  # where a data set is prepared, on its first use
_DATA = re.compile(
    r"^(?!torch\.|torchvision\.|tensorflow\.|keras\.)\w+\.([\w.]+\.)?(datasets?|data)\.([\w.]+\.)?[A-Z]\w+$|"
    r"^ogb\.\w+\.[A-Z]\w+$"
)
_HELD = re.compile(r"^torch_geometric\.(data|loader)\.")  # graphs, and loaders of them, in memory
_PREPARING = re.compile(r"^(torch_geometric|dgl|ogb|paddle\w*|spektral|deepchem)\.")
# What a library's data module makes of samples in memory: of none of them anything is kept on disk.
_IN_HAND = re.compile(r"\.(\w*(Loader|Sampler|Collater)|\w*Batch|(Hetero|Temporal)?Data|Graph)$")
_PATH = re.compile(r"^[\w./~$?{}:\\ -]*(/|\.\w{1,8}$)[\w./~$?{}:\\ -]*$")
_NO_FILES = re.compile(
    r"^(builtins|os|sys|logging|argparse|pathlib|shutil|time|json|re|random|math|warnings|subprocess)(\.|$)"
)
# Libraries of which it is known what they write, here or in the tables of ``writes``, ``downloads`` and ``opens``.
_KNOWN = re.compile(
    r"^(torch\w*|tensor\w+|tf_\w+|keras\w*|jax|flax|numpy|scipy|pandas|sklearn|skimage|PIL|cv2|imageio|matplotlib|seaborn|"
    r"plotly|h5py|zarr|xarray|netCDF4|yaml|tqdm|rich|loguru|wandb|mlflow|comet_ml|neptune|aim|swanlab|dvclive|visdom|"
    r"transformers|datasets|tokenizers|timm|gym|gymnasium|nltk|spacy|omegaconf|hydra|absl|fire|click|typer|dotenv|"
    r"joblib|dill|cloudpickle|lightning\w*|ignite|fastai|mpi4py|dl_comm|horovod)(\.|$)"
)
_READING = re.compile(r"(^|_)(from|load|read|open|restore|parse)(_|$)", re.IGNORECASE)


def is_path(facts: ScriptFacts, node: cst.BaseExpression) -> bool:
    """Tell whether ``node`` is the name of a file or a folder, as far as its literals tell."""
    text = spelt(facts.flow, node)
    return text != UNKNOWN and bool(_PATH.search(text)) and "\n" not in text


def _is_foreign(facts: ScriptFacts, call: cst.Call) -> bool:
    seen = facts.flow.targets(call) or facts.flow.definition(call.func) is not None
    return not seen and not _is_of_own_model(facts, call)


def _is_of_own_model(facts: ScriptFacts, call: cst.Call) -> bool:
    """Tell whether ``call`` runs a method of a model that may be one of the program's: ``classes[name]().save(path)``.

    What the method writes is found there, and what all ranks do in it all must come to.
    """
    if not isinstance(call.func, cst.Attribute) or facts.kinds.of(call.func.value) != "module":
        return False
    owners = (facts.script.scopes[m].node for m in facts.flow.methods.get(call.func.attr.value, []))
    return any(isinstance(c, cst.ClassDef) and facts.kinds.of_bases(facts.flow.bases(c)) == "module" for c in owners)


def saves(facts: ScriptFacts, call: cst.Call, name: str) -> bool:
    """Tell whether ``call``, of what is called ``name``, writes: a method, or a function of a library out of sight."""
    what = call.func.attr.value if isinstance(call.func, cst.Attribute) else name.rpartition(".")[2]
    if not _SAVES.search(what) or not _is_foreign(facts, call):
        return False
    if name and not name.startswith("."):
        return not _IN_MEMORY.search(name) and any(is_path(facts, a.value) for a in call.args)
    made = [o.node for o in facts.flow.origins(call.func.value)] if isinstance(call.func, cst.Attribute) else []
    silent = any(isinstance(m, cst.Call) and calls_method(m, "SummaryWriter") for m in made)
    return bool(call.args) and not silent and not _IN_MEMORY.search(what) and not _keeps(facts, call)


def _keeps(facts: ScriptFacts, call: cst.Call) -> bool:
    """Tell whether ``call`` is given values alone: ``memory.save(state, reward)`` keeps them, and writes nothing."""
    given = [a.value for a in call.args]
    named = any(a.keyword is not None and re.search("path|file|dir|folder|prefix", a.keyword.value) for a in call.args)
    return not named and len(given) > 1 and not any(is_path(facts, value) for value in given)


def unpacks(facts: ScriptFacts, call: cst.Call, name: str) -> bool:
    """Tell whether ``call`` unpacks an archive, or fetches something, in a library out of sight."""
    what = call.func.attr.value if isinstance(call.func, cst.Attribute) else name.rpartition(".")[2]
    return (what in _UNPACKS or bool(_FETCHES.search(what))) and _is_foreign(facts, call)


def prepares(facts: ScriptFacts, call: cst.Call, name: str) -> bool:
    """Tell whether ``call`` makes a data set that fetches, or processes, its files on its first use."""
    cls = facts.flow.definition(call.func)
    if isinstance(cls, cst.ClassDef):
        own = {s.name.value: s for s in cls.body.body if isinstance(s, cst.FunctionDef)}
        bases = list(facts.flow.bases(cls))
        if any(base.startswith("torchvision.datasets.") for base in bases):
            asked = (
                [argument(c, "download") for c in walk(own["__init__"]) if isinstance(c, cst.Call)]
                if "__init__" in own
                else []
            )
            return any(value is not None and dotted(value) != "False" for value in (argument(call, "download"), *asked))
        return not own.keys().isdisjoint({"process", "download"}) and any(map(_PREPARING.search, bases))
    if cls is not None or not name or name.startswith((".", "builtins.")):
        return False
    if not name.rpartition(".")[2][:1].isupper() or _IN_HAND.search(name):
        return False
    fetched = argument(call, "download")
    if fetched is not None:
        return dotted(fetched) != "False"
    kept = any(argument(call, word) is not None for word in _KEPT_IN)
    return bool(_DATA.search(name)) and (kept or bool(_PREPARING.search(name) and not _HELD.search(name)))


def may_make(facts: ScriptFacts, call: cst.Call, name: str) -> bool:
    """Tell whether ``call``, of a library out of sight that is given a path, may make what is missing there."""
    top, what = name.partition(".")[0], name.rpartition(".")[2]
    if _complains(facts, call):
        return False
    if not top or top in sys.stdlib_module_names or _KNOWN.search(name) or _READING.search(what):
        return False
    return not _NO_FILES.search(name) and _is_foreign(facts, call) and any(is_path(facts, a.value) for a in call.args)


def may_read(facts: ScriptFacts, call: cst.Call, name: str) -> bool:
    """Tell whether ``call``, which is given a path, may read what lies there, in a library out of sight."""
    if not call.args or not _is_foreign(facts, call):
        return False
    what = call.func.attr.value if isinstance(call.func, cst.Attribute) else name.rpartition(".")[2]
    if what.startswith("load_state"):
        return False  # of what was read
    if name and not name.startswith("."):
        reads = _READING.search(what) or (what[:1].isupper() and not what.endswith("Writer"))
        return not _NO_FILES.search(name) and bool(reads)
    return bool(_READING.search(what))


def builds(facts: ScriptFacts, call: cst.Call, path: str) -> bool:
    """Tell whether ``call``, where the file ``path`` is missing, may make it: it is given the path, or does as it says.

    A call that only tells, ends the run, or makes a folder does not.
    """
    if _complains(facts, call):
        return False
    name = facts.script.name_of(call.func)
    method = call.func.attr.value if isinstance(call.func, cst.Attribute) else ""
    if _NO_FILES.search(name) or method in ("mkdir", "error", "info", "warning", "warn", "debug", "critical", "append"):
        return False
    if any(facts.script.code(arg.value) == path for arg in call.args):
        return not may_read(facts, call, name)
    return bool(name) and not name.startswith(".") and isinstance(facts.script.parents[call], cst.Expr)


def _complains(facts: ScriptFacts, call: cst.Call) -> bool:
    """Tell whether ``call`` makes what is raised: ``raise NoPicture("no a.png")``."""
    return isinstance(facts.script.statement_of(call), cst.Raise)
