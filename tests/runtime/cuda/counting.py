"""A compiler that notes each of its runs in a file, and takes its time."""

from __future__ import annotations

import os
import time
from typing import Any

from tests.runtime.cuda import telling


def run(job: dict[str, Any]) -> dict[str, Any]:
    with open(job["log"], "a") as log:
        log.write(f"{os.getpid()}\n")
    time.sleep(job["seconds"])
    return telling.run(job)
