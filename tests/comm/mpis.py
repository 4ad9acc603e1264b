"""The MPIs that this machine has, for the tests of dl_comm under each of them."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

FAMILIES = ["mpich 5", "mpich 4", "openmpi 5", "openmpi 4"]


@dataclass(frozen=True)
class Mpi:
    """An installed MPI: its family and major version, and how its mpiexec is called."""

    name: str
    mpiexec: str

    def command(self, n: int) -> list[str]:
        more = ["--oversubscribe", "--bind-to", "none"] if self.name.startswith("openmpi") else []
        return [self.mpiexec, *more, "-n", str(n)]

    def for_mpi4py(self) -> dict[str, str]:
        """Where mpi4py finds the library of this MPI; dl_comm finds it by itself."""
        names = ["libmpi.so.40"] if self.name.startswith("openmpi") else ["libmpi.so.12", "libmpich.so.12"]
        prefix = Path(self.mpiexec).resolve().parent.parent
        folders = [prefix / "lib", *prefix.glob("lib/*-linux-gnu")]  # Debian's lie in the second
        libraries = [folder / name for folder in folders for name in names if (folder / name).exists()]
        return {"MPI4PY_LIBMPI": str(libraries[0])} if libraries else {}


def _version(mpiexec: str) -> str:
    """Return "mpich 5", "openmpi 4", ... or "" for what is neither."""
    said = subprocess.run([mpiexec, "--version"], capture_output=True, text=True, timeout=30, check=False).stdout
    for sign in ("(Open MPI)", "(OpenRTE)"):
        if sign in said:
            return "openmpi " + said.split(sign)[1].split(".")[0].strip()
    if "HYDRA" in said and "Version:" in said:
        return "mpich " + said.split("Version:")[1].split(".")[0].strip()
    return ""


def _installed() -> dict[str, Mpi]:
    """Find one mpiexec of each family: named by DLRUN_TEST_MPIEXEC (separated by ":"), of this environment, of PATH."""
    named = [Path(one) for one in os.environ.get("DLRUN_TEST_MPIEXEC", "").split(":") if one]
    folders = [Path(sys.prefix) / "bin", *(Path(one) for one in os.environ.get("PATH", "").split(":") if one)]
    places = [*named, *(folder / f"mpiexec{end}" for folder in folders for end in ("", ".mpich", ".openmpi"))]
    found: dict[str, Mpi] = {}
    seen: set[Path] = set()
    for place in places:
        if not place.exists() or place.resolve() in seen:
            continue
        seen.add(place.resolve())
        name = _version(str(place))
        found.setdefault(name, Mpi(name, str(place)))
    return found


_found: dict[str, Mpi] = {}


def find_mpi(name: str) -> Mpi:
    """Return the MPI of this name, or skip the test and say that it is missing."""
    if not _found:
        _found.update(_installed())
    if name not in _found:
        pytest.skip(f"no mpiexec of {name} on PATH or in DLRUN_TEST_MPIEXEC")
    return _found[name]


def first_mpi() -> Mpi:
    """Return the first MPI that is installed, or skip the test."""
    _found.update(_found or _installed())
    for name in FAMILIES:
        if name in _found:
            return _found[name]
    pytest.skip("no mpiexec of MPICH or Open MPI on PATH")
