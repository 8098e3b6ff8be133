"""A compiler that dies when it is asked to."""

from __future__ import annotations

import os
from typing import Any


def run(job: dict[str, Any]) -> dict[str, Any]:
    if job["die"]:
        os._exit(3)
    return {"fine": True}
