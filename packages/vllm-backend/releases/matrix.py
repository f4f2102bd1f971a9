"""Run the backend's tests on many releases of vLLM, an environment each.

    python matrix.py cpu [RELEASE ...] [RUNNER ...] [PYTEST ARGUMENT ...]
    python matrix.py gpu [RELEASE ...] [RUNNER ...] [PYTEST ARGUMENT ...]
    python matrix.py cpu here [RUNNER ...]      in this environment, with the vLLM that is installed in it
    python matrix.py versions [RELEASE ...]     choose the versions in environments/ anew
    python matrix.py table                      make the table in docs/reference/support.md anew

What follows the releases and runners goes to pytest. Runs of all tests, or of whole test files, are written to
docs/reference/support; runs of any other selection to .nox/support, since their records cannot say what was left out.
"""

from __future__ import annotations

import datetime
import functools
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import environments
import results
import snapshots
from environments import ROOT, Environment

CACHE: Final = ROOT / ".nox"
_TESTS: Final = "packages/vllm-backend/tests"
_FACTS: Final = """
import platform, torch
print(platform.python_version(), torch.__version__.partition("+")[0],
      torch.cuda.get_device_name(0) if torch.cuda.is_available() else platform.machine(), sep="|")
"""


def parse(arguments: list[str]) -> tuple[list[str], list[str], list[str]]:
    """Split arguments into releases, runners, and what goes to pytest."""
    releases: list[str] = []
    runners: list[str] = []
    for index, argument in enumerate(arguments):
        if argument == environments.HERE_WORD:
            releases.append(argument)
        elif re.fullmatch(r"\d+\.\d+(\.\d+)?", argument):
            releases.append(argument if argument.count(".") == 2 else f"{argument}.0")
        elif argument in results.RUNNERS:
            runners.append(argument)
        else:
            return releases, runners, arguments[index:]
    return releases, runners, []


def are_files(arguments: list[str]) -> list[bool]:
    """Tell which arguments of pytest are whole test files."""
    return [Path(argument).is_file() and argument.endswith(".py") for argument in arguments]


def run_matrix(device: str, arguments: list[str]) -> int:
    """Run cells of the matrix, print what they gave, and return the number of those that failed."""
    releases, runners, selection = parse(arguments)
    known = environments.cpu_releases() if device == "cpu" else snapshots.committed()
    recorded = all(are_files(selection))
    outcomes = []
    for release in releases or known:
        if release == environments.HERE_WORD:
            environment = environments.this_one()
        elif device == "gpu":
            environment = environments.make_gpu(release, CACHE)
        elif release in known:
            environment = environments.make_cpu(release, CACHE)
        else:
            raise SystemExit(f"no environment of vLLM {release} for CPUs; there are {', '.join(known)}")
        for runner in runners or results.RUNNERS:
            result = run_cell(environment, device, runner, selection)
            path = results.write(result, results.FOLDER if recorded else CACHE / "support")
            outcomes.append((result, path))
    if recorded:
        results.refresh()
    for result, path in outcomes:
        counts = ", ".join(f"{result.count(outcome)} {outcome}" for outcome in ("passed", "failed", "skipped"))
        print(f"{result.device} {result.vllm} {result.runner}: {counts}; {path.relative_to(ROOT)}")
        for failure in result.failures:
            print(f"    {failure}")
    return sum(result.count("failed") > 0 or not result.count("passed") for result, _ in outcomes)


def run_cell(environment: Environment, device: str, runner: str, selection: list[str]) -> results.Result:
    """Run the tests in one environment on one runner.

    Raises:
        SystemExit: pytest did not run to its end.
    """
    release = environment.release
    print(f"== {device}, vLLM {release}, {runner}", flush=True)
    logs = CACHE / "support"
    logs.mkdir(parents=True, exist_ok=True)
    report = logs / f"{device}-{release}-{runner}.xml"
    report.unlink(missing_ok=True)
    python = str(environment.python)
    # The tests of the backend know this option: it chooses the model runner of their engines.
    options = ["--vllm-runner", runner, f"--junitxml={report}", "-p", "no:cacheprovider"]
    command = [python, "-m", "pytest", *([] if any(are_files(selection)) else [_TESTS]), *options, *selection]
    variables = {**os.environ, "VLLM_NO_USAGE_STATS": "1"}
    if python != sys.executable:
        variables.pop("PYTHONPATH", None)  # it is this environment's
    if device == "gpu":
        variables["NNSIGHT_REQUIRE_GPU"] = "1"
    status = subprocess.run(command, cwd=ROOT, env=variables, check=False).returncode
    if status not in (0, 1) or not report.is_file():
        raise SystemExit(f"pytest did not run its tests to the end (status {status}); see its output above")
    tests, failures = results.read_report(report)
    facts = subprocess.run([python, "-c", _FACTS], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    version, torch, hardware = facts.strip().splitlines()[-1].split("|")
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    return results.Result(
        vllm=release,
        runner=runner,
        device=device,
        hardware=hardware,
        compiled=environment.compiled,
        python=version,
        torch=torch,
        commit=_commit(),
        date=today,
        tests=tests,
        failures=failures,
    )


def _commit() -> str:
    """Return the commit that is checked out, marked where the packages differ from it."""
    git = functools.partial(subprocess.run, capture_output=True, text=True, check=False, cwd=ROOT)
    name = git(["git", "rev-parse", "--short=12", "HEAD"]).stdout.strip()
    changed = name and git(["git", "status", "--porcelain", "--", "packages"]).stdout.strip()
    return f"{name}-changed" if changed else name or "unknown"


def main(arguments: list[str]) -> int:
    """Run the command line."""
    command, *rest = arguments or ["--help"]
    if command in ("cpu", "gpu"):
        return int(bool(run_matrix(command, rest)))
    if command == "versions":
        for release in rest or [name for name in environments.cpu_releases() if name not in environments.BORROWED]:
            environments.compile_versions(release)
        return 0
    if command == "table":
        print("the table was " + ("made anew" if results.refresh() else "up to date"))
        return 0
    print(__doc__)
    return 0 if command in ("-h", "--help") else 2


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
