"""A compiler whose code is the environment that it was started in."""

from __future__ import annotations

import base64
import json
import os
from typing import Any


def run(job: dict[str, Any]) -> dict[str, Any]:
    binary = base64.b64encode(json.dumps(dict(os.environ)).encode()).decode()
    return {"binary": binary, "symbol": "k", "num_warps": 4, "shared": 0, "registers": 0, "spills": 0}
