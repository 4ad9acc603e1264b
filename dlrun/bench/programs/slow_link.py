"""A slow network between network namespaces, in user space: delay and rate, where the kernel can do neither.

Each namespace gets a tun device, eth0; this process reads its packets and hands each to the namespace of its
destination when the link has had the time to carry it. A link may have several rails of the same rate, as bonded
network cards have: packets of one connection stay on one rail as long as any of them is under way, so no connection is
faster than a rail.

Run as ``python slow_link.py DELAY RATE RAILS NAMESPACE=LAST_OCTET[:free] ...``: seconds, bytes per second. What comes
from or goes to a ``free`` namespace is passed on at once. Prints "ready" when the devices are there; runs until killed.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import os
import select
import signal
import struct
import sys
import time
from dataclasses import dataclass, field

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
CLONE_NEWNET = 0x40000000


def enter(path: str) -> None:
    """Make this process's network the one of the namespace at ``path``."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(path, os.O_RDONLY)
    if libc.setns(descriptor, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), f"setns {path}")
    os.close(descriptor)


def device_in(namespace: str) -> int:
    """Return the descriptor of a new tun device eth0 in this namespace."""
    enter(f"/run/netns/{namespace}")
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", b"eth0", IFF_TUN | IFF_NO_PI))
    return device


@dataclass
class Host:
    """One end of the network: its device, when each rail of its link is free again, and where its connections go."""

    device: int
    free: bool
    rails: list[float]
    under_way: dict[bytes, tuple[int, int]] = field(default_factory=dict)  # connection: its rail, its packets on it

    def rail_of(self, connection: bytes) -> int:
        """Return the rail for the connection's next packet: the one its packets are on, else the one free first."""
        rail, packets = self.under_way.get(connection, (-1, 0))
        if packets == 0:
            rail = min(range(len(self.rails)), key=self.rails.__getitem__)
        self.under_way[connection] = rail, packets + 1
        return rail

    def arrived(self, connection: bytes) -> None:
        """Note that a packet of this connection is there."""
        rail, packets = self.under_way[connection]
        self.under_way[connection] = rail, packets - 1


def pump(hosts: dict[int, Host], delay: float, rate: float) -> None:
    """Carry packets for ever."""
    waiting: list[tuple[float, int, Host, Host, bytes, bytes]] = []  # when, number, from, to, connection, packet
    number = 0
    devices = {host.device: host for host in hosts.values()}
    while True:
        patience = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        for device in select.select(list(devices), [], [], patience)[0]:
            packet = os.read(device, 65536)
            source, to = devices[device], hosts.get(packet[19])
            if packet[0] >> 4 != 4 or to is None:
                continue
            when, connection = time.monotonic(), b""
            if not (source.free or to.free):
                connection = packet[9:10] + packet[12:24]  # protocol, addresses, ports
                rail = source.rail_of(connection)
                when = source.rails[rail] = max(when, source.rails[rail]) + len(packet) / rate
                when += delay
            number += 1
            heapq.heappush(waiting, (when, number, source, to, connection, packet))
        while waiting and waiting[0][0] <= time.monotonic():
            _, _, source, to, connection, packet = heapq.heappop(waiting)
            if connection:
                source.arrived(connection)
            try:
                os.write(to.device, packet)
            except OSError:  # its device is down
                continue


def main(delay: str, rate: str, rails: str, *namespaces: str) -> None:
    """Make the devices, say so, and pump, as long as the parent lives."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    hosts = {}
    for one in namespaces:
        name, _, octet = one.partition("=")
        octet, _, free = octet.partition(":")
        hosts[int(octet)] = Host(device_in(name), bool(free), [0.0] * int(rails))
    print("ready", flush=True)
    pump(hosts, float(delay), float(rate))


if __name__ == "__main__":
    main(*sys.argv[1:])
