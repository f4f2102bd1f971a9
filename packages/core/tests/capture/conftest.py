"""What the tests of block capture have in common."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import nnsight._capture

if TYPE_CHECKING:
    from collections.abc import Callable

_HERE = Path(__file__).parent
# Test modules are imported by path, which leaves their folder out.
sys.path.append(str(_HERE))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("error"))


@pytest.fixture
def run_python(tmp_path: Path) -> Callable[..., str]:
    """Run Python with arguments in a process of its own, and return what it printed."""
    # Only the package under test is imported there, not all of nnsight.
    package = tmp_path / "stub" / "nnsight"
    package.mkdir(parents=True)
    root = Path(nnsight._capture.__file__).parent.parent
    (package / "__init__.py").write_text(f"__path__ = [{str(root)!r}]\n")

    def run(*arguments: str, **options: object) -> str:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(package.parent), str(_HERE)])}
        environment.pop("COVERAGE_PROCESS_START", None)
        done = subprocess.run(
            [sys.executable, *arguments],
            capture_output=True,
            text=True,
            timeout=120,
            env=environment,
            cwd=tmp_path,
            check=False,
            input=options.get("input"),  # type: ignore[arg-type]
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    return run
