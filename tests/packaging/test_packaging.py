"""The four distributions as a whole: versions, metadata, public names, hooks and files."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import nnsight
import nnsight.backends
import nnsight_cli.hookspecs
from nnsight import hookspecs

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {
    "nnsight-core": ("core", "nnsight"),
    "nnsight-vllm": ("vllm-backend", "nnsight_vllm"),
    "nnsight-serve": ("serve", "nnsight_serve"),
    "nnsight-cli": ("cli", "nnsight_cli"),
}
VERBS = {"register", "resolve", "check", "before", "after"}
HOOKS = {
    name: value
    for module in (hookspecs, nnsight_cli.hookspecs)
    for name, value in vars(module).items()
    if hasattr(value, "nnsight_spec")
}
LONGEST = 600
# Longer files, each with its reason.
LONG_FILES: dict[str, str] = {
    "packages/core/tests/capture/test_sources_are_found.py": "one table of every way that code comes to run",
}


def project_of(distribution: str) -> dict[str, Any]:
    folder, _ = PACKAGES[distribution]
    project: dict[str, Any] = tomllib.loads((ROOT / "packages" / folder / "pyproject.toml").read_text())["project"]
    return project


def source_of(distribution: str) -> Path:
    folder, module = PACKAGES[distribution]
    return ROOT / "packages" / folder / "src" / module


def tracked_files() -> list[Path]:
    """Return the files that git tracks, or would: those that it does not ignore."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    files = [ROOT / name for name in listed.stdout.decode().split("\0") if name]
    return [file for file in files if file.is_file()]


@pytest.mark.parametrize("distribution", PACKAGES)
def test_versions_are_in_lockstep(distribution: str) -> None:
    version = project_of("nnsight-core")["version"]
    assert project_of(distribution)["version"] == version
    assert importlib.import_module(PACKAGES[distribution][1]).__version__ == version
    siblings = [text for text in project_of(distribution)["dependencies"] if text.startswith("nnsight")]
    assert all(text.endswith(f"=={version}") for text in siblings), siblings


def test_the_workspace_has_all_distributions() -> None:
    workspace = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert set(workspace["project"]["dependencies"]) == set(PACKAGES) == set(workspace["tool"]["uv"]["sources"])
    assert {path.name for path in (ROOT / "packages").iterdir() if path.is_dir()} == {
        name for name, _ in PACKAGES.values()
    }


@pytest.mark.parametrize("distribution", PACKAGES)
def test_each_distribution_is_typed_licensed_and_described(distribution: str) -> None:
    folder = ROOT / "packages" / PACKAGES[distribution][0]
    assert (source_of(distribution) / "py.typed").is_file()
    assert (folder / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
    assert distribution in (folder / "README.md").read_text()
    assert project_of(distribution)["name"] == distribution


def test_the_root_exports_what_is_public_and_nothing_else() -> None:
    assert sorted(nnsight.__all__) == [
        "Cache",
        "Edit",
        "Envoy",
        "NNsight",
        "NNsightError",
        "Session",
        "TracedModel",
        "Tracer",
        "__version__",
        "errors",
        "hookimpl",
        "save",
    ]
    for name in nnsight.__all__:
        assert hasattr(nnsight, name)


def test_the_module_for_backends_exports_what_is_public_and_nothing_else() -> None:
    assert nnsight.backends.__all__ == [
        "BlockRun",
        "Budget",
        "Edit",
        "EditResult",
        "Interleaver",
        "ModelTree",
        "Outcome",
        "Program",
        "Receipt",
        "Request",
        "RequestBlocks",
        "RowScope",
        "Scope",
        "TracedModel",
        "WholeScope",
        "decode_outcome",
        "decode_program",
        "encode_outcome",
        "encode_program",
        "finish_run",
        "join_sequences",
        "module_of",
    ]
    bound = {name for name in vars(nnsight.backends) if not name.startswith("_")} - {"annotations"}
    assert bound == set(nnsight.backends.__all__)


@pytest.mark.parametrize("name", nnsight.backends.__all__)
def test_what_a_backend_is_made_of_is_documented(name: str) -> None:
    value = getattr(nnsight.backends, name)
    assert inspect.getdoc(value)
    members = vars(value).items() if isinstance(value, type) else ()
    for member, function in members:
        if inspect.isfunction(function) and not member.startswith("_"):
            assert inspect.getdoc(function), f"{name}.{member}"


@pytest.mark.parametrize("name", HOOKS)
def test_the_verb_of_a_hook_is_its_calling_rule(name: str) -> None:
    verb = name.partition("_")[0]
    spec = HOOKS[name].nnsight_spec
    assert verb in VERBS
    assert spec["firstresult"] is (verb == "resolve")
    assert len(inspect.signature(HOOKS[name]).parameters) == 1
    assert inspect.getdoc(HOOKS[name])


def test_hooks_were_found() -> None:
    assert len(HOOKS) >= 8


def test_no_source_file_is_longer_than_it_may_be() -> None:
    lengths = {
        file.relative_to(ROOT).as_posix(): len(file.read_text(encoding="utf-8").splitlines())
        for file in tracked_files()
        if file.suffix == ".py"
    }
    too_long = {name: length for name, length in lengths.items() if length > LONGEST}
    assert too_long.keys() == LONG_FILES.keys()


def test_importing_the_core_loads_no_engine_and_no_plugin() -> None:
    code = (
        "import sys, nnsight, nnsight_vllm\n"
        "from nnsight.plugins import plugin_manager\n"
        "print([name for name in ('vllm', 'transformers', 'typer', 'pytest') if name in sys.modules],"
        " plugin_manager.cache_info().currsize)"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert printed.stdout.strip() == "[] 0"


def test_the_readme_and_ci_run_the_same_command() -> None:
    command = "python3 -m pip install --quiet --target .uv uv && .uv/bin/uv run nox -s tests"
    assert f"\n{command}\n" in (ROOT / "README.md").read_text()
    assert f"\n{command} " in (ROOT / ".ci" / "run").read_text()


def test_no_file_names_a_place_on_the_machine_that_it_was_written_on() -> None:
    place = re.compile(rb"/(work|home|root|Users)/[\w.]")
    found = [
        file.relative_to(ROOT).as_posix()
        for file in tracked_files()
        if file.suffix not in {".safetensors", ".lock"} and place.search(file.read_bytes())
    ]
    assert found == []
