"""What this machine has, and what is wrong with it: each finding with what to do."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path

from dlrun.errors import DlrunError
from dlrun.launch.site import Site, family_of, look

_SHM_LEAST = 64 << 20  # bytes
_PROBE = "import dl_comm; dl_comm.init_mpi(); print(dl_comm.get_nranks())"
_ASK_TORCH = """
import json, warnings
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    import torch
    kinds = [kind for kind in (torch.cuda, getattr(torch, "xpu", None)) if kind and kind.is_available()]
    seen = sum(kind.device_count() for kind in kinds)
built = torch.version.cuda or torch.version.hip or getattr(torch.version, "xpu", None)
why = str(said[-1].message).partition(". ")[0] if said and built else "" if built else "it is built for the CPU"
print(json.dumps([torch.__version__, seen, why]))
"""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. ``state`` is "ok", "note" or "bad"; ``todo`` says what helps."""

    name: str
    state: str
    what: str
    todo: str = ""


def examine() -> Iterator[Finding]:
    """Yield what is found, cheap things first; the last one starts 2 ranks for real."""
    site = look(os.environ)
    yield Finding("python", "ok", f"{sys.version.split()[0]} at {sys.executable}")
    yield Finding("cores", "ok", f"{site.cores} cores ({site.cpus} CPUs) for this process on {site.host}")
    yield _gpus(site)
    yield _shared_memory()
    if site.allocation.system:
        job = site.allocation
        yield Finding("batch job", "ok", f"{job.system} job {job.job}: {job.nodes} nodes, {job.ranks or '?'} ranks")
    else:
        yield Finding("batch job", "note", "none; dlrun launch runs on this machine, or on --hosts")
    yield from _frameworks()
    if site.gpus and importlib.util.find_spec("torch"):
        yield _torch_on_gpus(site.gpus)
    yield from _launchers(site)
    yield _two_ranks()


def _gpus(site: Site) -> Finding:
    known = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
    masks = [name for name in known if name in site.env]
    if "ROCR_VISIBLE_DEVICES" in masks and len(masks) > 1:
        return Finding(
            "GPUs",
            "bad",
            f"{' and '.join(masks)} are set: one masks inside the other",
            "unset all but ROCR_VISIBLE_DEVICES",
        )
    if not site.gpus:
        return Finding("GPUs", "note", "none here; ranks train on the CPU")
    seen = f" (masked by {masks[0]}={site.env[masks[0]]})" if masks else ""
    return Finding("GPUs", "ok", f"{site.gpus}{seen}")


def _shared_memory() -> Finding:
    try:
        stat = os.statvfs("/dev/shm")
    except OSError as error:
        return Finding("/dev/shm", "bad", f"cannot be used: {error.strerror}", "mount a tmpfs there")
    free = stat.f_bavail * stat.f_frsize
    if free < _SHM_LEAST:
        return Finding(
            "/dev/shm",
            "bad",
            f"{free >> 20} MB free; gradients are exchanged through it",
            "give the container more: docker run --shm-size=1g",
        )
    return Finding("/dev/shm", "ok", f"{free >> 20} MB free")


def _frameworks() -> Iterator[Finding]:
    found = [name for name in ("torch", "tensorflow", "keras") if importlib.util.find_spec(name)]
    if found:
        yield Finding("frameworks", "ok", ", ".join(found))
    else:
        yield Finding("frameworks", "note", "neither torch nor tensorflow", 'pip install "dlrun[torch]"')
    yield _dl_comm(importlib.util.find_spec("dl_comm"))


def _torch_on_gpus(gpus: int) -> Finding:
    """Whether torch can use the GPUs: a driver too old for it, or a build for the CPU, lets it train without them."""
    asked = subprocess.run([sys.executable, "-c", _ASK_TORCH], capture_output=True, text=True, timeout=120, check=False)
    if asked.returncode:
        last = (asked.stderr.strip().splitlines() or ["no word"])[-1]
        return Finding("torch on GPUs", "bad", f"torch cannot be imported: {last}", "install it anew")
    version, seen, why = json.loads(asked.stdout.splitlines()[-1])
    if not seen:
        todo = "install a PyTorch built for them; nvidia-smi shows the newest CUDA that a driver takes"
        because = f": {why}" if why else ""
        return Finding("torch on GPUs", "bad", f"torch {version} can use none of the {gpus}{because}", todo)
    return Finding("torch on GPUs", "ok", f"torch {version} can use {seen}")


def _dl_comm(package: ModuleSpec | None) -> Finding:
    folders = [Path(folder) for folder in (package.submodule_search_locations or [] if package else [])]
    other = [name for name in ("DLcomm", "dl-comm") if _version_of(name)]  # a benchmark on PyPI, with this import name
    if other:
        return Finding(
            "dl_comm",
            "bad",
            f"{other[0]} {_version_of(other[0])} is installed and brings its own dl_comm",
            f"pip uninstall {other[0]}, then pip install --force-reinstall --no-deps dlrun",
        )
    if package is None:
        return Finding("dl_comm", "bad", "is not installed", "pip install dlrun")
    if not any((folder / "rank_exit.py").exists() for folder in folders):
        return Finding(
            "dl_comm",
            "bad",
            f"the one that Python finds, {package.origin or folders[0]}, is not dlrun's",
            "rename or remove it, or take its folder out of PYTHONPATH",
        )
    if not any(list(folder.glob("_core*.so")) for folder in folders):
        return Finding("dl_comm", "bad", "is here without its compiled core", "install dlrun where a C++17 compiler is")
    return Finding("dl_comm", "ok", str(folders[0]))


def _version_of(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _launchers(site: Site) -> Iterator[Finding]:
    chosen = True
    seen = set()
    for launcher in site.launchers():
        program = Path(launcher.path).resolve()
        if program in seen:
            continue
        seen.add(program)
        library = f", loads {launcher.library}" if launcher.library else ""
        use = "  <- dlrun launch uses this" if chosen else ""
        yield Finding("launcher", "ok", f"{launcher.backend} {launcher.version} at {launcher.path}{library}{use}")
        chosen = False
    if not seen:
        yield Finding("launcher", "bad", "no MPI is here", 'pip install "dlrun[mpi]", or load the site\'s MPI module')
    named = site.env.get("DL_COMM_MPI_LIBRARY")
    if named:
        family = family_of(named)
        if family:
            yield Finding("DL_COMM_MPI_LIBRARY", "ok", f"{named}: {family}")
        else:
            yield Finding("DL_COMM_MPI_LIBRARY", "bad", f"{named} is no MPI library", "unset it")


def _two_ranks() -> Finding:
    """Start 2 ranks on this machine, have them meet, and say how long it took."""
    from dlrun.launch import LaunchPlan, launch

    folder = tempfile.mkdtemp(prefix="dlrun-doctor-")
    lines: list[str] = []
    try:
        Path(folder, "probe.py").write_text(_PROBE)
        start = time.perf_counter()
        plan = LaunchPlan(("probe.py",), ranks=2, cwd=folder, start_timeout=30, tuned=False)
        result = launch(plan, on_line=lambda rank, stream, line: lines.append(line))
        seconds = time.perf_counter() - start
    except (DlrunError, subprocess.SubprocessError, OSError) as error:
        return Finding("2 ranks", "bad", str(error), getattr(error, "hint", ""))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if result.failure:
        return Finding("2 ranks", "bad", str(result.failure), "dlrun launch --explain shows the line that was run")
    if result.returncode or "2" not in lines:
        return Finding(
            "2 ranks",
            "bad",
            f"each saw {lines[-1:] or 'nothing'}: exit code {result.returncode}",
            "the launcher and the MPI library are of two kinds: see the launchers above",
        )
    return Finding("2 ranks", "ok", f"started, met and ended in {seconds:.1f} s")
