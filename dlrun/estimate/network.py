"""How fast the nodes of a site talk to each other, as this one's network cards say."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from dlrun.errors import DlrunError

_UNITS = {"": 1e9, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_ASSUMED = 1.25e9  # bytes per second: the 10 Gbit/s of ordinary Ethernet


@dataclass(frozen=True)
class Network:
    """Bytes per second in and out of a node, seconds that a message takes, and where the rate comes from."""

    rate: float
    latency: float
    source: str


def network(said: str = "", latency: float = 20e-6, devices: Path = Path("/sys/class")) -> Network:
    """Return the network: what was `said`, else the sum of InfiniBand's ports or the fastest card, else an assumption.

    Raises DlrunError for words that are no rate.
    """
    if said:
        return Network(rate_from_text(said), latency, "--network")
    ports = [_bits(file) for file in sorted(devices.glob("infiniband/*/ports/*/rate"))]
    if any(ports):
        return Network(sum(ports) / 8, latency, f"{sum(rate > 0 for rate in ports)} InfiniBand ports here")
    cards = {file.parent.name: _megabits(file) for file in sorted(devices.glob("net/*/speed"))}
    real = {name: rate for name, rate in cards.items() if (devices / "net" / name / "device").exists() and rate > 0}
    if real:
        best = max(real, key=lambda name: real[name])
        return Network(real[best] / 8, latency, f"{best} here")
    return Network(_ASSUMED, latency, "assumed: --network says another")


def rate_from_text(text: str) -> float:
    """'25GB/s' or '200Gbit/s' -> bytes per second; units are powers of 1000, as networks are sold."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(bit|b)(?:/s|ps)?\s*", text, re.IGNORECASE)
    if not match or not float(match[1]):
        raise DlrunError(f"--network {text} is no rate", "write 25GB/s or 200Gbit/s")
    value = float(match[1]) * _UNITS[match[2].lower()] if match[2] else float(match[1])
    bits = match[3].lower() == "bit" or match[3] == "b"  # 25 Gb/s are bits, 25 GB/s bytes
    return value / 8 if bits else value


def _bits(file: Path) -> float:
    """'100 Gb/sec (4X EDR)' -> bits per second; 0 where the file does not say."""
    try:
        match = re.match(r"(\d+(?:\.\d+)?) Gb/sec", file.read_text())
    except OSError:
        return 0.0
    return float(match[1]) * 1e9 if match else 0.0


def _megabits(file: Path) -> float:
    try:
        return float(file.read_text()) * 1e6
    except (OSError, ValueError):  # a card that is down
        return 0.0
