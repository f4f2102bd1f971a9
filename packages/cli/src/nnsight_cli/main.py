"""The entry point of the `nnsight` command.

Imports next to nothing: every process that an engine spawns imports this module again.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

_REINSTALL = (
    "nnsight-core is missing or its files were overwritten; uninstall nnsight and nnsight-core, "
    "then install nnsight-cli again"
)


def _exit_on_conflict() -> None:
    """Exit where PyPI's `nnsight` is installed, before anything of `nnsight` is imported: it may be the other's."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        other = version("nnsight")
    except PackageNotFoundError:
        return
    sys.exit(
        f"error: the distribution nnsight {other} is installed beside nnsight-core and both own the package `nnsight`; "
        "uninstall both (pip uninstall nnsight nnsight-core) and install nnsight-core again"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command line, and exit with its status.

    An error that nnsight raises by itself is printed as its message alone; `--verbose`, or `NNSIGHT_TRACEBACK` in the
    environment, shows where it came from.

    Args:
        arguments: The command line without the name of the command; by default this process's own.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    _exit_on_conflict()
    try:
        from nnsight._installation import refuse_conflict

        refuse_conflict()
        from nnsight.errors import NNsightError
    except ModuleNotFoundError as error:
        sys.exit(f"error: {error}: {_REINSTALL}")
    except ImportError as error:
        sys.exit(f"error: {error}")
    try:
        from nnsight_cli.application import build_application

        build_application()(given, prog_name="nnsight")
    except (NNsightError, OSError) as error:
        if "--verbose" in given or os.environ.get("NNSIGHT_TRACEBACK"):
            raise
        from nnsight_cli.terminal import print_error

        print_error(error)
        sys.exit(1)
