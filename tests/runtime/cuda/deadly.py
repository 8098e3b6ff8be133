"""A compiler that dies when it is asked to, and takes its time."""

from __future__ import annotations

import os
import time
from typing import Any


def run(job: dict[str, Any]) -> dict[str, Any]:
    if job["die"]:
        os._exit(3)
    time.sleep(job.get("seconds", 0))
    return {"fine": True}
