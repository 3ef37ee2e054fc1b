"""What worker processes are forked from: all is imported, and Ctrl-C, the server's, is not heard.

Only that process imports this file, see `pool`.
"""

from __future__ import annotations

import signal

import spgru.serve.worker  # noqa: F401

signal.signal(signal.SIGINT, signal.SIG_IGN)
