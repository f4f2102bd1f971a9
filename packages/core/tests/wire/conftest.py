"""Lets the tests import `wire_helpers`, whose classes travel by name."""

from __future__ import annotations

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
