"""Tuned settings of dl_comm, and what they were tuned for: `dlrun tune` writes them, `dlrun launch` applies them.

A profile is a JSON file in $XDG_CONFIG_HOME/dlrun/profiles (~/.config/dlrun/profiles)::

    {"format": "dlrun profile 1", "name": "resnet50", "when": "2026-01-31", "gain": 0.18,
     "key": {"ranks": 4, ...}, "settings": {"DL_COMM_STAGE_KB": "64"}}

It is applied where every field of its key agrees; where one differs, that field is named and nothing is applied. A
variable that the user has set stays as it is.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import dlrun

if TYPE_CHECKING:
    from datetime import date

    from dlrun.launch.plan import LaunchPlan

FORMAT = "dlrun profile 1"


class Key(NamedTuple):
    """What settings hold for: each field changes which settings are the best."""

    ranks: int
    ranks_per_node: int
    mpi: str
    module: str
    cpu: str
    gpu: str
    network: str


class Profile(NamedTuple):
    """Environment variables that made the job named `name` faster by the share `gain`, measured on the day `when`."""

    name: str
    when: str
    gain: float
    key: Key
    settings: tuple[tuple[str, str], ...]


def processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The name of this machine's CPU; ARM's have numbers: 'aarch64 0x41 0xd4f', the implementer and the part."""
    try:
        lines = [line.partition(":") for line in cpuinfo.read_text().splitlines()]
    except OSError:
        lines = []
    said = {name.strip().lower(): value.strip() for name, _, value in reversed(lines)}
    numbers = [said[name] for name in ("cpu implementer", "cpu part") if name in said]
    return said.get("model name") or said.get("cpu model") or " ".join([os.uname().machine, *numbers])


def graphics(drivers: Path = Path("/proc/driver/nvidia/gpus")) -> str:
    """'4 x NVIDIA A100', by the driver's own files; '' without GPUs."""
    models: list[str] = []
    for file in sorted(drivers.glob("*/information")):
        models += [x.partition(":")[2].strip() for x in file.read_text().splitlines() if x.startswith("Model")]
    return ", ".join(f"{models.count(model)} x {model}" for model in dict.fromkeys(models))


def wires(nodes: int, devices: Path = Path("/sys/class")) -> str:
    """What connects the nodes: 'none' for one node, else the InfiniBand devices, else the network cards."""
    if nodes == 1:
        return "none"
    found = sorted(path.name for path in (devices / "infiniband").glob("*"))
    found = found or sorted(path.parent.name for path in (devices / "net").glob("*/device"))
    return " ".join(found) or "unknown"


def key_of(plan: LaunchPlan) -> Key:
    """The key of a settled plan on this machine."""
    assert plan.launcher
    assert plan.ranks
    mpi = f"{plan.launcher.backend} {plan.launcher.version}".strip()
    per_node = plan.per_node or -(-plan.ranks // plan.nodes)
    return Key(plan.ranks, per_node, mpi, dlrun.__version__, processor(), graphics(), wires(plan.nodes))


def folder(env: Mapping[str, str]) -> Path:
    """Where profiles lie."""
    config = env.get("XDG_CONFIG_HOME") or str(Path(env.get("HOME", "~")).expanduser() / ".config")
    return Path(config) / "dlrun" / "profiles"


def read(where: Path) -> list[Profile]:
    """The profiles in the folder, newest first; files that are none are passed over."""
    found = []
    try:
        files = [path for path in where.iterdir() if path.suffix == ".json"]
    except OSError:  # there are none, or they are another user's, as HOME may be (sudo -u)
        return []
    for path in files:
        try:
            value = json.loads(path.read_text())
            if value["format"] == FORMAT:
                settings = tuple(value["settings"].items())
                found.append(Profile(value["name"], value["when"], value["gain"], Key(**value["key"]), settings))
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return sorted(found, key=lambda profile: (profile.when, profile.name), reverse=True)


def write(profile: Profile, where: Path) -> Path:
    """Write the profile into the folder, over an earlier one of the same name and key; the file's path."""
    import hashlib

    value: dict[str, Any] = {
        "format": FORMAT,
        **profile._asdict(),
        "key": profile.key._asdict(),
        "settings": dict(profile.settings),
    }
    print_of_key = hashlib.sha256(json.dumps(profile.key._asdict(), sort_keys=True).encode()).hexdigest()[:8]
    safe = "".join(c if c.isalnum() or c in "-_." else "-" for c in profile.name)
    where.mkdir(parents=True, exist_ok=True)
    path = where / f"{safe}-{print_of_key}.json"
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(value, indent=1) + "\n")
    partial.replace(path)
    return path


def choose(
    profiles: Sequence[Profile], key: Key, chosen: Mapping[str, str], name: str = "", today: date | None = None
) -> tuple[dict[str, str], str]:
    """(variables to set, the line that says so) for a job with this key.

    `chosen` holds what the user has set already, which stays. `name` is the script's: a profile of that name is
    preferred. Without a fit the line names the field in which the nearest profile differs; without profiles it is ''.
    """
    if not profiles:
        return {}, ""
    from datetime import date

    ours = key._asdict()
    differing = {p: [f for f, value in p.key._asdict().items() if value != ours[f]] for p in profiles}
    best = min(profiles, key=lambda p: (len(differing[p]), p.name != name))
    if differing[best]:
        field = differing[best][0]
        theirs = best.key._asdict()[field]
        return {}, f"tuned profile {best.name} not applied: its {field} is {theirs!r}, this job's is {ours[field]!r}"
    settings = {variable: value for variable, value in best.settings if variable not in chosen}
    days = ((today or date.today()) - date.fromisoformat(best.when)).days
    age = "today" if days <= 0 else "yesterday" if days == 1 else f"{days} days ago"
    words = [f"{variable}={value}" for variable, value in settings.items()]
    kept = [f"{v}={chosen[v]} stays, as you set it" for v, _ in best.settings if v in chosen]
    line = f"tuned profile {best.name} (+{100 * best.gain:.0f} %, {age}): {', '.join(words + kept)}"
    return settings, line


def with_profile(plan: LaunchPlan, env: Mapping[str, str]) -> LaunchPlan:
    """The settled plan with the settings of the profile that fits it, and with the note that says so."""
    profiles = read(folder(env))
    if not profiles:
        return plan
    chosen = {name: value for name, value in env.items() if name.startswith("DL_COMM_")} | dict(plan.env)
    settings, line = choose(profiles, key_of(plan), chosen, plan.name)
    origins = tuple((variable, "the tuned profile") for variable in settings)
    return plan._replace(
        env=plan.env + tuple(settings.items()), origins=plan.origins + origins, notes=(*plan.notes, line)
    )
