"""Checks of how nnsight is installed."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution

from nnsight.errors import DistributionConflictError


def refuse_conflict() -> None:
    """Refuse to run beside PyPI's `nnsight`, which owns the same import package.

    Whichever of the two was installed last has overwritten files of the other.

    Raises:
        DistributionConflictError: It is installed.
    """
    try:
        other = distribution("nnsight")
    except PackageNotFoundError:
        return
    raise DistributionConflictError(
        f"the distribution nnsight {other.version} is installed beside nnsight-core and both own the package "
        "`nnsight`, so files of one have overwritten the other's; uninstall both (pip uninstall nnsight nnsight-core) "
        "and install nnsight-core again"
    )
