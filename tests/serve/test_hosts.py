"""Names under which the server may be asked."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from spgru.serve.hosts import Hosts, is_local

MINE = ("192.0.2.7", 8765)
"""This end of a connection."""


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST", "127.0.0.1", "127.0.0.2", "::1"])
def test_what_only_this_machine_reaches(host: str) -> None:
    assert is_local(host)
    assert Hosts.of(host).know(f"[{host}]:8765" if ":" in host else host, None)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "printer", "localhost.evil"])
def test_what_others_reach(host: str) -> None:
    assert not is_local(host)


@pytest.mark.parametrize(
    ("header", "known"),
    [
        ("192.0.2.7:8765", True),
        ("localhost:8765", True),
        (socket.gethostname(), True),
        (f"{socket.gethostname().upper()}:8765", True),
        ("Lab.Example:8765", True),
        ("192.0.2.8:8765", False),
        ("evil.example", False),
        ("192.0.2.7.evil.example", False),
        ("0.0.0.0:8765", False),
        ("", False),
    ],
)
def test_a_server_on_all_addresses(header: str, known: bool) -> None:
    """It knows the address at which it was reached, the machine's name, and what was allowed."""
    for host, server in (("0.0.0.0", MINE), ("::", ("::ffff:192.0.2.7", 8765, 0, 0))):
        assert Hosts.of(host, ["lab.example", "LAB2"]).know(header, server) == known


def test_a_server_on_one_address() -> None:
    hosts = Hosts.of("192.0.2.9")
    assert hosts.know("192.0.2.9:1", MINE)
    assert not hosts.know("192.0.2.7:8765", MINE)
    assert not hosts.know("192.0.2.7:8765", None)


@pytest.mark.parametrize("name", ["http://lab.example", "lab.example:80", "", "a/b", "a b:"])
def test_what_is_no_name(name: Any) -> None:
    with pytest.raises(ValueError, match="--allow-host must be the name"):
        Hosts.of("0.0.0.0", [name])
