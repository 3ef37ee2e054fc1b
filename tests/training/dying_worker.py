"""Run by torchrun in test_distributed.py: trains what it is given, one after the other.

In the last one process 1 is killed in step 5, once; torchrun then starts both processes again, and
they go on with that.
"""

from __future__ import annotations

import os
import signal
import sys

from spgru.cli import main
from spgru.training import loop
from spgru.training.config import ScheduleConfig

real = loop.learning_rate
first_attempt = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
*others, last = sys.argv[1:]


def rate(peak: float, schedule: ScheduleConfig, step: int, steps: int) -> float:
    if step == 5 and os.environ["RANK"] == "1":
        print("process 1 dies", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    return real(peak, schedule, step, steps)


for config in others if first_attempt else []:
    try:
        main(["train", config, "--show", "none"])
    except SystemExit as end:
        if end.code:
            raise
if first_attempt:
    loop.learning_rate = rate
main(["train", last, "--show", "none"])
