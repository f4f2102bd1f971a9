"""Check, without vLLM or torch installed, that releases of vLLM have what nnsight-vllm relies on.

    python contracts.py check [RELEASE ...]    committed snapshots fit the records; the wheels still give the snapshots
    python contracts.py update [RELEASE ...]   take snapshots anew
    python contracts.py upstream               what moved in the newest release on the package index

Releases default to those in the range that pyproject.toml declares; `check --offline` reads committed files alone.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import snapshots
from fetch import newest_release, sources_of


def check(releases: list[str], cache: Path, offline: bool) -> int:
    """Return the number of problems, each printed."""
    found: list[str] = []
    for release in releases or snapshots.committed():
        if not (snapshots.CONTRACTS / f"{release}.json").is_file():
            found.append(f"{release}: no snapshot; run `nox -s contracts -- update {release}`")
            continue
        snapshot = snapshots.read(release)
        new = [f"{release}: {problem}" for problem in snapshots.problems(release, snapshot)]
        compared = not offline and (bool(releases) or snapshots.in_range(release))
        if compared:
            taken = snapshots.take(sources_of(release, cache))
            new += [
                f"{release}: the wheel differs from its snapshot: {move}" for move in snapshots.moves(snapshot, taken)
            ]
        found += new
        print(
            f"{release}: {'as recorded' if not new else f'{len(new)} problems'}{'' if compared else ', wheel not read'}"
        )
    for problem in found:
        print(problem)
    return len(found)


def update(releases: list[str], cache: Path) -> int:
    """Take snapshots anew and return the number of problems in them, each printed."""
    found: list[str] = []
    for release in releases or [name for name in snapshots.committed() if snapshots.in_range(name)]:
        taken = snapshots.take(sources_of(release, cache))
        snapshots.write(release, taken)
        found += [f"{release}: {problem}" for problem in snapshots.problems(release, taken)]
    for problem in found:
        print(problem)
    return len(found)


def upstream(cache: Path) -> int:
    """Print what moved since the newest supported release, and return the number of problems."""
    newest = newest_release()
    known = next(name for name in snapshots.committed() if snapshots.in_range(name))
    taken = snapshots.take(sources_of(newest, cache))
    state = "supported" if snapshots.in_range(newest) else "not supported"
    print(f"the newest release is {newest}, which is {state}; since {known}:")
    moves = snapshots.moves(snapshots.read(known), taken)
    for move in moves or ["nothing that we rely on has moved"]:
        print(f"- {move}")
    found = snapshots.problems(newest, taken)
    for problem in found:
        print(f"does not work: {problem}")
    return len(found)


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("check", "update", "upstream"))
    parser.add_argument("releases", nargs="*", metavar="RELEASE")
    parser.add_argument("--cache", type=Path, default=Path(".nox") / "contracts", help="folder for unpacked releases")
    parser.add_argument("--offline", action="store_true", help="check committed files alone")
    options = parser.parse_args()
    if options.command == "check":
        return int(bool(check(options.releases, options.cache, options.offline)))
    if options.command == "update":
        return int(bool(update(options.releases, options.cache)))
    return int(bool(upstream(options.cache)))


if __name__ == "__main__":
    raise SystemExit(main())
