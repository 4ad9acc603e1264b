"""How a rank calls ``dlrun launch``: from address to address, and again where its call was cut off."""

from __future__ import annotations

import json
import selectors
import socket
import struct
import threading
from contextlib import ExitStack

import pytest

from dlrun.launch import rank_server
from dlrun.rank import wire
from dlrun.rank.__main__ import connect, meet
from dlrun.rank.identity import Identity

PLACE = {"size": 2, "local_rank": 1, "local_size": 2, "node": 0, "nnodes": 1, "cpus": None, "master": None, "shm": None}


def test_a_rank_whose_call_is_reset_before_it_was_answered_calls_again():
    server = socket.create_server(("127.0.0.1", 0))
    spec = {"server": [server.getsockname()], "token": "t" * 32, "silence": 20, "torchrun": False, "place": {}}
    heard = []

    def answer() -> None:
        for cut in (True, True, False):  # SYN cookies that overflow cut off so: connected, then reset
            call, _ = server.accept()
            with call:
                heard.append(call.recv(1 << 16)[:32])
                if cut:
                    call.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                else:
                    call.sendall(wire.pack(wire.WELCOME, PLACE))

    thread = threading.Thread(target=answer)
    thread.start()
    link, place = meet(Identity(1, 2), spec)
    link.close()
    thread.join()
    server.close()
    assert place == Identity(1, 2, 1, 2, 0) and heard == [b"t" * 32] * 3


def test_an_address_that_does_not_answer_is_not_waited_for():
    with ExitStack() as opened:
        silent, other = (opened.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0)) for _ in range(2))
        for _ in range(4):  # more than wait: the next one gets no answer
            call = opened.enter_context(socket.socket())
            call.setblocking(False)
            call.connect_ex(silent.getsockname())
        link = opened.enter_context(connect([silent.getsockname(), other.getsockname()], 20))
        assert link.getpeername() == other.getsockname()


@pytest.mark.parametrize("address", ["::1", "127.0.0.1"])
def test_ranks_reach_a_launch_by_ipv6_and_by_ipv4(monkeypatch, address):
    monkeypatch.setattr(rank_server, "own_addresses", lambda: ["127.0.0.1", "::1"])
    with selectors.DefaultSelector() as selector:
        heard = []
        server = rank_server.RankServer(1, False, 20, selector)
        server.heard, server.lost = lambda call, kind, body: heard.append(kind), heard.append
        try:
            port = dict(server.addresses)[address]
            with connect([(address, port)], 20) as link:
                hello = {"rank": 0, "size": 1, "host": "elsewhere", "pid": 1, "cpus": [], "shm": 0}
                link.sendall(server.token.encode() + wire.pack(wire.HELLO, hello))
                while not heard:
                    for key, _ in selector.select(10):
                        key.data()
                server.welcome()
                kind, body = wire.Reader().feed(link.recv(1 << 16))[0]
        finally:
            server.close()
    assert (kind, json.loads(body)["master"][0]) == (wire.WELCOME, address)


def test_an_address_of_one_link_alone_is_none_for_others_to_call(tmp_path):
    (tmp_path / "if_inet6").write_text(
        "00000000000000000000000000000001 01 80 10 80       lo\n"
        "fd000000000000000000000000000002 04 40 00 82     eth0\n"
        "fe8000000000000000fc00fffe000001 04 40 20 80     eth0\n"
    )
    assert rank_server._ipv6(tmp_path / "if_inet6") == (["fd00::2"] if socket.has_dualstack_ipv6() else [])


def test_a_rank_that_nobody_answers_says_whom_it_called():
    with socket.create_server(("127.0.0.1", 0)) as gone:
        host, port = gone.getsockname()
    with pytest.raises(SystemExit, match=rf"cannot reach dlrun launch \(tried {host}:{port}\): is it still running"):
        connect([(host, port)], 20)


@pytest.mark.parametrize("silence", [1, 20, 98301, 98302, 10**12])
def test_the_kernel_takes_any_silence(silence):
    with socket.socket() as connection:
        wire.keep_alive(connection, silence)
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == min(max(silence // 3, 1), 32767)
