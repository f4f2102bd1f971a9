"""Check, without vLLM or torch installed, that releases of vLLM have what nnsight-vllm relies on.

    python contracts.py check [RELEASE ...]    committed snapshots fit the records; the wheels still give the snapshots
    python contracts.py update [RELEASE ...]   take snapshots anew
    python contracts.py upstream               what moved in the newest release on the package index

Releases default to those with a snapshot; wheels are read of the supported ones. `check --offline` reads no wheel.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import snapshots
from fetch import newest_release, sources_of


def check(releases: list[str], cache: Path, offline: bool) -> int:
    """Print a line per release with its problems, and return how many problems supported releases have."""
    num_problems = 0
    for release in releases or snapshots.committed():
        supported = snapshots.in_range(release)
        if not (snapshots.CONTRACTS / f"{release}.json").is_file():
            raise SystemExit(f"no snapshot of vLLM {release}: take it with `nox -s contracts -- update {release}`")
        snapshot = snapshots.read(release)
        problems = snapshots.problems(release, snapshot)
        compared = not offline and (bool(releases) or supported)
        if compared:
            moves = snapshots.moves(snapshot, snapshots.take(sources_of(release, cache)))
            problems += [f"the wheel is not as its snapshot: {move}" for move in moves]
        num_problems += len(problems) if supported else 0
        state = [] if supported else ["not supported"]
        state += [f"{len(problems)} problems" if problems else "as recorded"]
        state += [] if compared else ["wheel not read"]
        print("\n    ".join([f"{release}: {', '.join(state)}", *problems]))
    return num_problems


def update(releases: list[str], cache: Path) -> int:
    """Take snapshots anew, print what they lack, and return how much supported releases lack."""
    num_problems = 0
    for release in releases or snapshots.committed():
        taken = snapshots.take(sources_of(release, cache))
        snapshots.write(release, taken)
        problems = snapshots.problems(release, taken)
        num_problems += len(problems) if snapshots.in_range(release) else 0
        print("\n    ".join([f"{release}: {len(problems)} problems", *problems]))
    return num_problems


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
    parser.add_argument("--offline", action="store_true", help="read no wheel")
    options = parser.parse_args()
    if options.command == "check":
        return int(bool(check(options.releases, options.cache, options.offline)))
    if options.command == "update":
        return int(bool(update(options.releases, options.cache)))
    return int(bool(upstream(options.cache)))


if __name__ == "__main__":
    raise SystemExit(main())
