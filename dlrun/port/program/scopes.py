"""The names of a module: which scope binds a name, and to what."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import libcst as cst

# How a value gets from the right-hand side of a binding to the name: an int picks from a tuple, "each" takes an
# element of an iterable, "part" is anything this module does not follow.
Path = tuple["int | str", ...]

# What `from module import *` brings, as far as a porter needs to know.
STARS = {
    "torch": ("nn", "optim", "utils", "save", "load", "device", "no_grad", "cuda", "manual_seed"),
    "torch.nn": ("Module", "DataParallel", "Sequential", "Linear", "Conv2d", "CrossEntropyLoss", "MSELoss", "NLLLoss"),
    "torch.optim": (
        "SGD",
        "Adam",
        "AdamW",
        "Adadelta",
        "Adagrad",
        "Adamax",
        "RMSprop",
        "LBFGS",
        "ASGD",
        "NAdam",
        "RAdam",
    ),
    "torch.optim.lr_scheduler": (
        "StepLR",
        "MultiStepLR",
        "ReduceLROnPlateau",
        "CosineAnnealingLR",
        "LambdaLR",
        "OneCycleLR",
    ),
    "torch.utils.data": ("DataLoader", "Dataset", "TensorDataset", "random_split", "IterableDataset", "Subset"),
    **{
        f"{keras}.optimizers": ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "Adamax", "Nadam")
        for keras in ("keras", "tensorflow.keras")
    },
    **{
        f"{keras}.callbacks": ("LearningRateScheduler", "ReduceLROnPlateau", "ModelCheckpoint", "EarlyStopping")
        for keras in ("keras", "tensorflow.keras")
    },
    "tqdm": ("tqdm", "trange"),
    "matplotlib.pyplot": ("savefig", "show"),
    "os": ("makedirs", "mkdir"),
}


@dataclass(frozen=True, eq=False)
class Binding:
    """One place that gives a name its value: ``how`` is import, assign, param, def, class, or other."""

    name: str
    how: str
    node: cst.CSTNode
    value: cst.BaseExpression | None = None
    path: Path = ()
    target: str = ""  # for an import: the dotted name it stands for

    @property
    def written(self) -> cst.BaseExpression | None:
        """What the name is bound to, also in ``n, size = len(x), 32``; None where that is not written out."""
        if not self.path:
            return self.value
        at = self.path[0]
        if isinstance(self.value, cst.Tuple) and len(self.path) == 1 and isinstance(at, int):
            return self.value.elements[at].value if at < len(self.value.elements) else None
        return None


@dataclass(eq=False)
class Scope:
    """The module, a class, a function or a comprehension, and the names that it binds.

    ``locals`` are the local modules that the program imports, by dotted name; ``package`` is where this module's
    relative imports begin.
    """

    node: cst.CSTNode
    parent: Scope | None
    names: dict[str, list[Binding]] = field(default_factory=dict)
    outer: dict[str, Scope] = field(default_factory=dict)  # declared global or nonlocal: which scope binds it
    stars: list[str] = field(default_factory=list)  # modules of which this one imports everything
    locals: Mapping[str, Scope] = field(default_factory=dict)
    package: str = ""

    def __post_init__(self) -> None:
        self.root: Scope = self if self.parent is None else self.parent.root  # the scope of the module
        self._found: dict[str, tuple[list[Binding], Scope | None]] = {}

    @property
    def function_around(self) -> Scope | None:
        """The scope of the function around this one, if there is any."""
        scope = self.parent
        while scope is not None and not isinstance(scope.node, cst.FunctionDef):
            scope = scope.parent
        return scope

    def lookup(self, name: str) -> tuple[list[Binding], Scope | None]:
        """Return the bindings of ``name`` that an expression in this scope sees, and the scope that holds them.

        A name that a local module binds and this one imports has the bindings of that module. To be asked when all
        modules are read.
        """
        if name not in self._found:
            self._found[name] = self._looked_up(name)
        return self._found[name]

    def _looked_up(self, name: str) -> tuple[list[Binding], Scope | None]:
        scope: Scope | None = self
        while scope is not None:
            skip = isinstance(scope.node, cst.ClassDef) and scope is not self
            if name in scope.names and not skip and name not in scope.outer:
                return scope.root.followed(scope.names[name]) or (scope.names[name], scope)
            scope = scope.parent
        starred = self.root.starred(name) if self.root.locals else None
        return starred or ([], None)

    def module(self, target: str) -> Scope | None:
        """Return the scope of the local module that ``target`` names as it stands in an import of this module."""
        return self.locals.get(absolute(target, self.package))

    def imported(self, target: str, depth: int = 0) -> tuple[list[Binding], Scope] | None:
        """Return what a local module binds to the last name of ``target``, or None."""
        module, _, name = absolute(target, self.package).rpartition(".")
        there = self.locals.get(module)
        return there.member(name, depth) if there is not None else None

    def member(self, name: str, depth: int = 0) -> tuple[list[Binding], Scope] | None:
        """Return what this module binds to ``name``, be it imported from another local module, or None."""
        if depth > 8:
            return None
        if name not in self.names:
            return self.starred(name, depth + 1)
        return self.followed(self.names[name], depth + 1) or (self.names[name], self)

    def followed(self, bindings: list[Binding], depth: int = 0) -> tuple[list[Binding], Scope] | None:
        """Return what the imports among ``bindings`` bring from local modules, another one in each branch; or None.

        The scope is that of the first of them.
        """
        targets = [b.target for b in bindings if b.how == "import"] if self.locals else []
        found = [there for target in targets if (there := self.imported(target, depth)) is not None]
        return (list(dict.fromkeys(b for there, _ in found for b in there)), found[0][1]) if found else None

    def starred(self, name: str, depth: int = 0) -> tuple[list[Binding], Scope] | None:
        """Return what ``name`` is in the local modules of which this one imports everything, or None."""
        for star in reversed(self.stars):  # the last one wins
            there = self.module(star)
            if there is not None and there is not self and (found := there.member(name, depth + 1)) is not None:
                return found
        return None

    def all_stars(self, depth: int = 0) -> Iterator[str]:
        """Yield the modules of which this one imports everything, also through local modules."""
        for star in self.stars:
            there = self.module(star)
            if there is None:
                yield star
            elif there is not self and depth < 8:
                yield from there.all_stars(depth + 1)


def absolute(target: str, package: str) -> str:
    """Return the dotted name without leading dots: ``..data.load`` in the package ``lab.net`` is ``lab.data.load``."""
    name = target.lstrip(".")
    above = len(target) - len(name) - 1
    if above < 0:
        return name
    parts = package.split(".") if package else []
    return ".".join([*parts[: len(parts) - above], *([name] if name else [])]) if above <= len(parts) else ""
