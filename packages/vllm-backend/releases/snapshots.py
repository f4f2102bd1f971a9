"""What releases of vLLM have of the names that nnsight-vllm relies on, read from their sources, compared, and told."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from syntax import Found, Sources

HERE: Final = Path(__file__).resolve().parent
PACKAGE: Final = HERE.parent
CONTRACTS: Final = HERE / "contracts"


def _load_records() -> ModuleType:
    """Load the records by their path: the package around them imports torch."""
    spec = importlib.util.spec_from_file_location(
        "relied_on", PACKAGE / "src" / "nnsight_vllm" / "compat" / "relied_on.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


RECORDS: Final = _load_records()
Snapshot = dict[str, Found | None]


def declared_range() -> tuple[str, str]:
    """Return the first supported release of vLLM, and the first one after it that is not.

    Raises:
        SystemExit: The metadata of nnsight-vllm gives no range of that form.
    """
    metadata = tomllib.loads((PACKAGE / "pyproject.toml").read_text(encoding="utf-8"))
    for text in metadata["project"]["dependencies"]:
        matched = re.fullmatch(r"vllm>=([\d.]+),<([\d.]+)", text)
        if matched:
            return matched[1], matched[2]
    raise SystemExit("pyproject.toml of nnsight-vllm has no dependency of the form vllm>=A,<B; give it one")


def in_range(release: str) -> bool:
    """Tell whether a release is supported."""
    floor, ceiling = declared_range()
    key = RECORDS.release_key
    return bool(key(floor) <= key(release) < key(ceiling))


def newest_first(releases: Iterable[str]) -> list[str]:
    """Sort releases."""
    return sorted(releases, key=RECORDS.release_key, reverse=True)


def committed() -> list[str]:
    """Return the releases of which a snapshot is committed, newest first."""
    return newest_first(path.stem for path in CONTRACTS.glob("*.json"))


def take(root: Path) -> Snapshot:
    """Look every recorded name up in the sources below a folder that holds the package `vllm`."""
    sources = Sources(root, "vllm")
    found: Snapshot = {}
    for name in (*RECORDS.PATCHES, *RECORDS.NAMES):
        entry = sources.find(name.target)
        if entry is not None and entry.kind == "class":
            # Constructors of configurations have hundreds of parameters; those that we give are kept.
            kept = tuple(text for text in entry.parameters if text.strip("*=") in name.parameters)
            entry = Found(entry.kind, entry.file, kept, entry.annotation, entry.body)
        found[name.target] = entry
    return found


def write(release: str, snapshot: Snapshot) -> None:
    """Write a snapshot where it is committed."""
    # A line per name, so that a difference between two releases is read as one.
    lines = [f"{json.dumps(target)}: {json.dumps(_as_data(found))}" for target, found in sorted(snapshot.items())]
    text = f'{{"vllm": {json.dumps(release)}, "names": {{\n' + ",\n".join(lines) + "\n}}\n"
    (CONTRACTS / f"{release}.json").write_text(text, encoding="utf-8")


def read(release: str) -> Snapshot:
    """Read a committed snapshot."""
    data = json.loads((CONTRACTS / f"{release}.json").read_text(encoding="utf-8"))
    return {target: _from_data(found) for target, found in data["names"].items()}


def problems(release: str, snapshot: Snapshot) -> list[str]:
    """Return what the records need and a snapshot lacks, one sentence each."""
    found: list[str] = []
    for name in (*RECORDS.PATCHES, *RECORDS.NAMES):
        if not name.applies_to(release):
            continue
        if name.target not in snapshot:
            found.append(f"{name.target} is not in the snapshot: take it again")
            continue
        entry = snapshot[name.target]
        if entry is None:
            found.append(f"{name.target} is gone")
            continue
        have = {text.strip("*=") for text in entry.parameters}
        lost = [parameter for parameter in name.parameters if parameter not in have]
        if lost:
            found.append(f"{name.target} has no parameter {', '.join(lost)}")
    return found


def moves(before: Snapshot, after: Snapshot) -> list[str]:
    """Say what differs between two snapshots, one sentence each; functions that changed inside come last, in one."""
    told: list[str] = []
    inside: list[str] = []
    for target, new in after.items():
        old = before.get(target)
        if old is None or new is None:
            if old is not new:
                told.append(f"{target} is {'gone' if new is None else 'new'}")
            continue
        if old.file != new.file:
            told.append(f"{target} moved from {old.file} to {new.file}")
        if old.kind != new.kind:
            told.append(f"{target} was a {old.kind} and is a {new.kind}")
        told += _parameter_moves(target, old, new)
        if old.annotation != new.annotation:
            told.append(
                f"{target}: its type was {old.annotation or 'not written'}, and is {new.annotation or 'not written'}"
            )
        if old.body != new.body and old.kind == new.kind:
            module, _, name = target.partition(":")
            inside.append(f"{module.rpartition('.')[2]}:{name}")
    if inside:
        told.append(f"changed inside, to be read again: {', '.join(inside)}")
    return told


def _parameter_moves(target: str, old: Found, new: Found) -> list[str]:
    gained = [text for text in new.parameters if text not in old.parameters]
    lost = [text for text in old.parameters if text not in new.parameters]
    told = []
    if gained:
        told.append(f"{target} gained {', '.join(gained)}")
    if lost:
        told.append(f"{target} lost {', '.join(lost)}")
    if not gained and not lost and old.parameters != new.parameters:
        told.append(f"{target} has its parameters in another order: {', '.join(new.parameters)}")
    return told


def _as_data(found: Found | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {name: value for name, value in asdict(found).items() if value}


def _from_data(data: Mapping[str, Any] | None) -> Found | None:
    if data is None:
        return None
    return Found(**{**data, "parameters": tuple(data.get("parameters", ()))})
