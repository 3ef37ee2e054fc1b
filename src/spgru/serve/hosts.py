"""Names under which the server may be asked: a foreign page may have pointed its own name here."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

__all__ = ["LOCAL", "Hosts", "host_name", "is_everywhere", "is_local"]

LOCAL = ("localhost", "127.0.0.1", "::1")
"""Names of this machine for itself."""


@dataclass(frozen=True)
class Hosts:
    """What the header Host may say."""

    names: frozenset[str]
    """in small letters"""
    own_address: bool = False
    """also the address of this machine at which a connection has arrived"""

    @staticmethod
    def of(host: str, allowed: Sequence[str] = ()) -> Hosts:
        """Of a server that listens on `host`, and may be asked under `allowed` besides."""
        for name in allowed:
            if not _is_plain(name):
                raise ValueError(
                    f"--allow-host must be the name or address of a machine alone, got {name!r}; "
                    "leave out http:// and the port"
                )
        names = {*LOCAL, *(name.lower() for name in allowed)}
        if not is_everywhere(host):
            return Hosts(frozenset({*names, host.lower()}))
        own = socket.gethostname().lower()
        short = own.partition(".")[0]
        return Hosts(frozenset({*names, own, short, f"{short}.local"}), own_address=True)

    def know(self, header: str, server: Any) -> bool:
        """Whether a request is for this server.

        Args:
            header: Host, with its port
            server: (address, port) of the connection at this end, or None
        """
        name = host_name(header)
        if name in self.names:
            return True
        asked = _address(name)
        return self.own_address and asked is not None and asked == _address((server or [""])[0])


def is_local(host: str) -> bool:
    """Whether only this machine can reach a server that listens there."""
    found = _address(host)
    return host.lower() in LOCAL or (found is not None and found.is_loopback)


def is_everywhere(host: str) -> bool:
    """Whether it stands for all addresses of the machine."""
    found = _address(host)
    return found is not None and found.is_unspecified


def host_name(header: str) -> str:
    """The name of a header Host, in small letters, without its port; "" if there is none."""
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""


def _is_plain(name: str) -> bool:
    return _address(name) is not None or (name != "" and host_name(name) == name.lower())


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        found = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = getattr(found, "ipv4_mapped", None)  # of a socket for both kinds
    return mapped or found
