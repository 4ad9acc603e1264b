"""Hosts as people write them: on the command line and in host files."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Sequence
from pathlib import Path

from dlrun import textfile
from dlrun.errors import DlrunError
from dlrun.launch.plan import Host

_SLOTS = r"(?:\s*:\s*(?P<colon>\d+)|\s+slots\s*=\s*(?P<slots>\d+))?(\s+max_slots\s*=\s*\d+)?"
_NAME = r"(?P<name>\[[0-9a-fA-F:.%\w]+\]|[0-9a-fA-F.]*:[0-9a-fA-F:.]*:[0-9a-fA-F.]*(?:%\w+)?|[^\s:=\[\]]+)"
_ENTRY = re.compile(_NAME + _SLOTS)


def hosts(text: str) -> tuple[Host, ...]:
    """Return the hosts of ``n1,n2`` or ``n1:4,n2:2`` (ranks on each); of an IPv6 address, ``[::1]:4`` or ``::1``."""
    return _merged([_host(entry.strip(), f"--hosts {text}") for entry in text.split(",")] if text else [])


def hostfile(path: str) -> tuple[Host, ...]:
    """Return the hosts of a file with one on each line: ``n1``, ``n1:4`` or ``n1 slots=4``; ``#`` begins a comment."""
    try:
        lines = textfile.read(Path(path)).splitlines()
    except OSError as error:
        raise DlrunError(f"--hostfile {path}: {error.strerror}", "nothing falls back to this machine alone") from error
    entries = [(line.partition("#")[0].strip(), f"{path}, line {number}") for number, line in enumerate(lines, 1)]
    found = _merged([_host(entry, place) for entry, place in entries if entry])
    if not found:
        raise DlrunError(f"--hostfile {path} names no host", "write one on each line: n1, n1:4 or n1 slots=4")
    return found


def _merged(named: Sequence[Host]) -> tuple[Host, ...]:
    """Return each host once: one that is named several times takes as many ranks, as in PBS' node files."""
    found: dict[str, Host] = {}
    for host in named:
        before = found.get(host.name)
        slots = (before.slots or 1) + (host.slots or 1) if before else host.slots
        found[host.name] = Host(host.name, slots)
    return tuple(found.values())


def _host(entry: str, place: str) -> Host:
    match = _ENTRY.fullmatch(entry)
    if not match:
        raise DlrunError(f"{place}: {entry!r} is no host", "write n1,n2 or n1:4,n2:2")
    slots = match["colon"] or match["slots"]
    if slots and not int(slots):
        raise DlrunError(f"{place}: {match['name']} takes no rank", "leave it out")
    return Host(_address(match["name"], place), int(slots) if slots else None)


def _address(name: str, place: str) -> str:
    """Return the name of the host with an IPv6 address, maybe in brackets: launchers split hosts at colons."""
    bare = name.strip("[]")
    if ":" not in bare and bare == name:
        return name
    try:
        if ipaddress.IPv6Address(bare).is_loopback:
            return "localhost"
    except ValueError:
        raise DlrunError(f"{place}: {bare!r} is no IPv6 address", "write [fe80::1]:4, or n1:4") from None
    try:
        return socket.gethostbyaddr(bare)[0]
    except OSError:
        raise DlrunError(
            f"{place}: nothing here knows the name of {bare}, and launchers take no IPv6 addresses",
            "give the host's name (/etc/hosts may hold it)",
        ) from None
