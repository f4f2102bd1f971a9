"""One model for all tests, found as a user finds it: through the entry point."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from nnsight.plugins import load_backend

SEED = 3


@pytest.fixture(scope="session")
def model() -> Iterator[Any]:
    model = load_backend("example")(SEED)
    yield model
    model.shutdown()
