"""Models start, like behaviours, with nothing compiled; a kernel that is rejected is an error."""

from __future__ import annotations

from tests.behaviour.conftest import nothing_compiled as nothing_compiled
