"""Start the server, and open the page."""

from __future__ import annotations

import socket
import webbrowser
from collections.abc import Sequence

from spgru.serve.hosts import Hosts, is_everywhere, is_local
from spgru.serve.limits import Limits

__all__ = ["serve"]

_BACKLOG = 2048


def serve(
    host: str, port: int, limits: Limits, open_page: bool, allow_hosts: Sequence[str] = ()
) -> None:
    """Serve until Ctrl-C.

    Args:
        host: address to listen on
        port: 0 for any that is free
        open_page: in the browser of this machine
        allow_hosts: further names under which it may be asked
    """
    hosts = Hosts.of(host, allow_hosts)
    try:
        import uvicorn

        from spgru.serve.app import make_app
        from spgru.serve.connections import protocol_for
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"the page needs {error.name}; install it with pip install 'spgru[web]'"
        ) from error
    listener = _listen(host, port)
    port = listener.getsockname()[1]
    local, everywhere = is_local(host), is_everywhere(host)
    shown = ("::1" if ":" in host else "127.0.0.1") if everywhere else host
    address = f"http://{f'[{shown}]' if ':' in shown else shown}:{port}/"

    def ready() -> None:
        print(f"spgru serves {address} (Ctrl-C ends it)", flush=True)
        if not local:
            name = f"this machine ({socket.gethostname()}, port {port})" if everywhere else host
            print(
                f"whoever can reach {name} can use it: there is no password, no encryption",
                flush=True,
            )
        if open_page and local:
            webbrowser.open(address)

    config = uvicorn.Config(
        make_app(limits, hosts, ready),
        log_level="warning",
        http=protocol_for(limits),
        timeout_keep_alive=10,
        timeout_graceful_shutdown=3,
        server_header=False,
    )
    uvicorn.Server(config).run(sockets=[listener])


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(_BACKLOG)  # at once: a browser that is early waits
    except OSError as error:
        listener.close()
        raise ValueError(
            f"cannot listen on {host}, port {port} ({error.strerror or error}); choose another "
            "with --port, 0 for any that is free"
        ) from error
    return listener
