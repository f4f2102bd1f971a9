"""A backend of another project, written against the public surface alone, keeps every promise.

Here its folder is put on the path with the metadata of an installation; `test_wheels.py` installs it from its wheel.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "tests" / "plugin_example"
PROJECT: dict[str, Any] = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
SOURCES = sorted((EXAMPLE / "src").rglob("*.py"))
PUBLIC = {"nnsight.backends", "nnsight.errors", "nnsight.events", "nnsight.hookspecs"}
PUBLIC_FOR_TESTS = PUBLIC | {"nnsight.plugins", "nnsight.testing"}
LONGEST = 200


def imported_by(file: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
    return found


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return the project as its author has it, with the metadata that an installation would write."""
    folder = tmp_path / "checkout"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("__pycache__", ".*_cache"))
    metadata = folder / "src" / f"{PROJECT['name'].replace('-', '_')}-{PROJECT['version']}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {PROJECT['name']}\nVersion: {PROJECT['version']}\n"
    )
    groups = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in entries.items())
        for group, entries in PROJECT["entry-points"].items()
    ]
    (metadata / "entry_points.txt").write_text("\n".join(groups))
    return folder


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: file.name)
def test_it_imports_the_public_surface_alone(file: Path) -> None:
    imported = {name for name in imported_by(file) if re.match(r"(nnsight|nnsight_\w+|vllm)(\.|$)", name)}
    assert {name for name in imported if not name.startswith("nnsight_example_backend.")} <= PUBLIC
    assert len(file.read_text(encoding="utf-8").splitlines()) < LONGEST


def test_its_tests_import_the_public_surface_alone() -> None:
    imported = set().union(*map(imported_by, (EXAMPLE / "tests").glob("*.py")))
    assert {name for name in imported if re.match(r"(nnsight|vllm)(\.|$)", name)} <= PUBLIC_FOR_TESTS


def test_its_readme_names_each_of_its_files() -> None:
    readme = (EXAMPLE / "README.md").read_text(encoding="utf-8")
    for file in [*SOURCES, *(EXAMPLE / "tests").glob("*.py")]:
        assert f"`{file.name}`" in readme


@pytest.mark.slow
def test_it_passes_the_conformance_suite_through_its_entry_point(checkout: Path) -> None:
    path = os.pathsep.join([str(checkout / "src"), *filter(None, sys.path)])
    done = subprocess.run(
        # Where it hangs is shown before it is given up.
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "faulthandler_timeout=240", "tests"],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": path, "NNSIGHT_PLUGINS": "example"},
        text=True,
        capture_output=True,
        check=False,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\d{2,} passed", done.stdout)
    assert not re.search("failed|error|skipped|xfailed", done.stdout.splitlines()[-1])
