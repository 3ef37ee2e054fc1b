"""Run by torchrun in test_distributed.py: trains, but process 1 is killed in step 5, once."""

from __future__ import annotations

import os
import signal
import sys

from spgru.cli import main
from spgru.training import loop
from spgru.training.config import ScheduleConfig

real = loop.learning_rate


def rate(peak: float, schedule: ScheduleConfig, step: int, steps: int) -> float:
    first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    if step == 5 and first and os.environ["RANK"] == "1":
        print("process 1 dies", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    return real(peak, schedule, step, steps)


loop.learning_rate = rate
main()
