"""Plant faults one at a time in a copy of the sources, and see the tests fail; see README.md.

python tests/mutants/run_mutants.py [--engine] [NAME ...]
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from faults import FAULTS, Fault

ROOT = Path(__file__).parents[2]
COPIED = ("packages", "tests", "conftest.py", "pyproject.toml")
PACKAGES = ("core", "vllm-backend", "cli", "serve")
LIMIT_S = 1200


def main() -> int:
    """Run what is asked for, print a line for each fault, and return 1 where one survived or could not be planted."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="faults whose name contains one of these; all where there is none")
    parser.add_argument("--engine", action="store_true", help="also those that need an engine of vLLM, minutes each")
    parser.add_argument("--trust", action="store_true", help="do not run the tests without the fault first")
    given = parser.parse_args()
    chosen = [fault for fault in FAULTS if _is_chosen(fault, given.names, engine=given.engine)]
    failed = False
    with tempfile.TemporaryDirectory(prefix="nnsight-mutants-") as folder:
        copy = Path(folder)
        _copy(copy)
        sound = {(fault.tests, fault.runner) for fault in chosen} if given.trust else set()
        for fault in chosen:
            began = time.monotonic()
            verdict = _try(fault, copy, sound)
            failed |= verdict != "killed"
            print(f"{verdict:32} {time.monotonic() - began:5.0f} s  {fault.name}", flush=True)
    return int(failed or not chosen)


def _is_chosen(fault: Fault, names: list[str], *, engine: bool) -> bool:
    if names:
        return any(name in fault.name for name in names)
    return engine or fault.runner is None


def _copy(target: Path) -> None:
    ignore = shutil.ignore_patterns("__pycache__", ".venv", "*.safetensors", ".hypothesis")
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=ignore)
        else:
            shutil.copy2(source, target / name)


def _try(fault: Fault, copy: Path, sound: set[tuple[tuple[str, ...], str | None]]) -> str:
    """Plant a fault in the copy, run its tests, take it out again, and say what came of it."""
    file = copy / fault.file
    text = file.read_text()
    if text.count(fault.found) != 1:
        return f"ROTTEN: found {text.count(fault.found)} times"
    selection = (fault.tests, fault.runner)
    if selection not in sound:
        if _run_tests(fault, copy) != "survived":
            return "UNSOUND: fails without it"
        sound.add(selection)
    file.write_text(text.replace(fault.found, fault.planted))
    try:
        verdict = _run_tests(fault, copy)
    finally:
        file.write_text(text)
    return verdict if verdict == "killed" else verdict.upper()


def _run_tests(fault: Fault, copy: Path) -> str:
    """Return `killed` where a test failed, by itself and not for want of what it needs."""
    options = ["-x", "-q", "-p", "no:cacheprovider", "-m", "not full", "--no-header", "--tb=no"]
    if fault.runner is not None:
        options += ["--vllm-runner", fault.runner]
    command = [sys.executable, "-m", "pytest", *options, *fault.tests]
    sources = [str(copy / "packages" / package / "src") for package in PACKAGES]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sources), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return f"broken: no end in {LIMIT_S} s"
    if done.returncode == 0:
        return "survived"
    if done.returncode == 1 and "\nFAILED " in done.stdout:
        return "killed"
    return f"broken: exit status {done.returncode}"


if __name__ == "__main__":
    sys.exit(main())
