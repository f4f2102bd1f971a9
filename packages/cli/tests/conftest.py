"""One run of the demo, shared by every test that looks at it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

Command = Callable[..., subprocess.CompletedProcess[str]]


@dataclass(frozen=True)
class DemoRun:
    """What `nnsight demo --json` did."""

    process: subprocess.CompletedProcess[str]
    image: Path

    @property
    def results(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.process.stdout)
        return found


@pytest.fixture(scope="session")
def command(tmp_path_factory: pytest.TempPathFactory) -> Command:
    """Run the installed console script, as a user does."""
    folder = tmp_path_factory.mktemp("commands")
    script = Path(sys.executable).with_name("nnsight")

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(script), *arguments],
            cwd=folder,
            env={**os.environ, "COLUMNS": "160", **environment},
            capture_output=True,
            text=True,
            timeout=570,
            check=False,
        )

    return run


@pytest.fixture(scope="session")
def demo(command: Command, tmp_path_factory: pytest.TempPathFactory) -> DemoRun:
    image = tmp_path_factory.mktemp("demo") / "lens.png"
    return DemoRun(command("demo", "--json", "--image", str(image)), image)
