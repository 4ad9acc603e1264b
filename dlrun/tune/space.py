"""What may be set, and to which values."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from dlrun.errors import DlrunError

# (name, value) pairs in the order of the axes; a value that is None leaves the default alone.
Settings = tuple[tuple[str, str | None], ...]


@dataclass(frozen=True)
class Axis:
    """One thing that may be set: an environment variable ('env') or an option of the script ('option')."""

    name: str
    values: tuple[str, ...]
    kind: str = "env"


@dataclass(frozen=True)
class Space:
    """Axes, every combination of which may be tried beside the default, which sets nothing."""

    axes: tuple[Axis, ...]

    @property
    def default(self) -> Settings:
        """Nothing set."""
        return tuple((axis.name, None) for axis in self.axes)

    def grid(self, most: int) -> list[Settings]:
        """The default, then every combination; one axis at a time where the combinations were more than `most`."""
        choices: list[tuple[str | None, ...]] = [(None, *axis.values) for axis in self.axes]
        names = [axis.name for axis in self.axes]
        count = 1
        for choice in choices:
            count *= len(choice)
        if count <= most:
            return [tuple(zip(names, values, strict=True)) for values in itertools.product(*choices)]
        found = [self.default]
        for index, axis in enumerate(self.axes):
            for value in axis.values:
                one = list(self.default)
                one[index] = (axis.name, value)
                found.append(tuple(one))
        return found

    def environment(self, settings: Settings) -> dict[str, str]:
        """The environment variables among the settings."""
        kinds = {axis.name: axis.kind for axis in self.axes}
        return {name: value for name, value in settings if value is not None and kinds[name] == "env"}

    def options(self, settings: Settings) -> list[str]:
        """The script options among the settings, as words for its command line."""
        kinds = {axis.name: axis.kind for axis in self.axes}
        pairs = [(name, value) for name, value in settings if value is not None and kinds[name] == "option"]
        return [word for name, value in pairs for word in (f"--{name}", value)]


def as_text(settings: Settings) -> str:
    """'DL_COMM_STAGE_KB=64 lr=0.1', or 'default'."""
    return " ".join(f"{name}={value}" for name, value in settings if value is not None) or "default"


def axis_from_text(text: str, kind: str) -> Axis:
    """'lr=0.1,0.2' -> the axis lr with two values."""
    name, equals, values = text.partition("=")
    parts = tuple(value.strip() for value in values.split(",") if value.strip())
    if not equals or not name.strip() or not parts:
        raise DlrunError(f"'{text}' is no axis", "an axis looks like lr=0.1,0.2,0.4")
    return Axis(name.strip().lstrip("-"), parts, kind)


# What dl_comm reads and what can change its speed; comm/src/settings.h says what each means. The default of each is
# tried anyway, so it does not stand here.
VARIABLES = {
    "DL_COMM_DEFAULT_NTHREADS": ("1", "2", "8"),
    "DL_COMM_STAGE_KB": ("32", "64", "128", "512", "1024"),
    "DL_COMM_PIPELINE_CHUNK_KB": ("64", "1024", "2048", "8192"),
    "DL_COMM_WIRE": ("*:doubling", "*:halving", "*:ring", "*:pairwise", "*:mpi"),
    "DL_COMM_BUCKET_MB": ("4", "64"),
    "DL_COMM_NUM_CUDA_STREAMS": ("2", "4"),
    "DL_COMM_GPU_PATH": ("staged", "nccl", "ipc", "mpi"),
}


def plugin_axes(nodes: int, overlaps: bool, chosen: Sequence[str] = (), gpu: bool = False) -> tuple[Axis, ...]:
    """The settings of dl_comm that can matter: on so many nodes, where backward and averaging overlap, on a GPU.

    `chosen` overrules: names of variables, or NAME=V1,V2 with values of its own.
    """
    if chosen:
        axes = []
        for text in chosen:
            name = text.partition("=")[0]
            if name not in VARIABLES:
                raise DlrunError(f"dl_comm has no setting {name} to tune", f"there are {', '.join(VARIABLES)}")
            axes.append(axis_from_text(text, "env") if "=" in text else Axis(name, VARIABLES[name]))
        return tuple(axes)
    names = ["DL_COMM_GPU_PATH"] if gpu else []
    names += ["DL_COMM_DEFAULT_NTHREADS", "DL_COMM_STAGE_KB"]
    names += ["DL_COMM_PIPELINE_CHUNK_KB"] if nodes > 1 or gpu else []
    names += ["DL_COMM_WIRE"] if nodes > 1 else []
    names += ["DL_COMM_BUCKET_MB"] if overlaps else []
    names += ["DL_COMM_NUM_CUDA_STREAMS"] if gpu else []
    one_node = {"mpi"} if nodes == 1 else set()  # a way between nodes
    return tuple(Axis(name, tuple(v for v in VARIABLES[name] if v not in one_node)) for name in names)
