"""Each fault can still be planted: its source occurs once. Whether tests notice it is for `nox -s mutants` to see."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def _faults() -> tuple[Any, ...]:
    spec = importlib.util.spec_from_file_location("planted_faults", Path(__file__).with_name("faults.py"))
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["planted_faults"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    faults: tuple[Any, ...] = module.FAULTS
    return faults


@pytest.mark.parametrize("fault", _faults(), ids=lambda fault: fault.name)
def test_its_source_occurs_once(fault: Any) -> None:
    assert (ROOT / fault.file).read_text(encoding="utf-8").count(fault.found) == 1
    assert fault.planted != fault.found
