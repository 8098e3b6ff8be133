"""Measurements to put into stores."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from polytile.problem import Measurement
from tests.store.helpers import make


@pytest.fixture
def measurement() -> Callable[..., Measurement]:
    return make
