"""What a run of the backend's tests on one release and one model runner gave, and the table of all of them."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from snapshots import PACKAGE, declared_range, newest_first

ROOT: Final = PACKAGE.parents[1]
FOLDER: Final = ROOT / "docs" / "reference" / "support"
PAGE: Final = ROOT / "docs" / "reference" / "support.md"
BEGIN: Final = "<!-- made by `nox -s support_table` from the files in support/ -->"
END: Final = "<!-- end of the table -->"
RUNNERS: Final = ("v1", "v1-async", "v2", "v2-async")
CONFORMANCE: Final = "test_eager_conformance"
_COLUMNS: Final = {
    ("cpu", "v1"): "CPU, V1",
    ("cpu", "v1-async"): "CPU, V1, asynchronous",
    ("cpu", "v2"): "CPU, V2",
    ("cpu", "v2-async"): "CPU, V2, asynchronous",
    ("gpu", "v1"): "GPU, V1",
    ("gpu", "v1-async"): "GPU, V1, asynchronous",
    ("gpu", "v2"): "GPU, V2",
    ("gpu", "v2-async"): "GPU, V2, asynchronous",
}


@dataclass(frozen=True)
class Result:
    """One cell of the matrix.

    Attributes:
        vllm: The release of vLLM that ran.
        runner: Its model runner, one of `RUNNERS`.
        device: `cpu` or `gpu`.
        hardware: Name of the device.
        compiled: The release that vLLM's compiled code was of.
        python: The interpreter's version.
        torch: The version of torch.
        commit: The commit of this project that ran.
        date: The day, as `2026-01-31`.
        tests: Per test file, how many tests `passed`, `failed` or were `skipped`.
        failures: The tests that failed.
    """

    vllm: str
    runner: str
    device: str
    hardware: str
    compiled: str
    python: str
    torch: str
    commit: str
    date: str
    tests: dict[str, dict[str, int]]
    failures: list[str]

    @property
    def name(self) -> str:
        """Name of the file that holds it."""
        return f"{self.device}-{self.vllm}-{self.runner}.json"

    def count(self, outcome: str) -> int:
        """Return how many tests had an outcome."""
        return sum(counts.get(outcome, 0) for counts in self.tests.values())

    @property
    def is_evidence(self) -> bool:
        """Whether it shows that the release works: every promise about blocks held, on compiled code of its own."""
        return self.compiled == self.vllm and not self.count("failed") and "passed" in self.tests.get(CONFORMANCE, {})


def read_report(path: Path) -> tuple[dict[str, dict[str, int]], list[str]]:
    """Count the outcomes in pytest's XML report per test file, and list the tests that failed."""
    tests: dict[str, Counter[str]] = {}
    failures: list[str] = []
    for case in ElementTree.parse(path).iter("testcase"):
        parts = case.get("classname", "").split(".")
        file = next((part for part in parts if part.startswith("test_")), parts[-1])
        if case.find("failure") is not None or case.find("error") is not None:
            outcome = "failed"
            failures.append(f"{file}::{case.get('name')}")
        else:
            outcome = "skipped" if case.find("skipped") is not None else "passed"
        tests.setdefault(file, Counter())[outcome] += 1
    return {file: dict(sorted(counts.items())) for file, counts in sorted(tests.items())}, failures


def write(result: Result, folder: Path = FOLDER) -> Path:
    """Write a result into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / result.name
    path.write_text(json.dumps(asdict(result), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


def read_all(folder: Path = FOLDER) -> list[Result]:
    """Read the results in a folder."""
    return [Result(**json.loads(path.read_text(encoding="utf-8"))) for path in sorted(folder.glob("*.json"))]


def table(results: list[Result]) -> str:
    """Make the table: a row per release, a column per device and runner that was ever tried."""
    cells = {(result.device, result.runner, result.vllm): result for result in results}
    columns = [key for key in _COLUMNS if any((result.device, result.runner) == key for result in results)]
    floor, ceiling = declared_range()
    lines = [
        "| vLLM | " + " | ".join(_COLUMNS[key] for key in columns) + " |",
        "| --- |" + " --- |" * len(columns),
    ]
    for release in newest_first({result.vllm for result in results}):
        row = [_cell(cells.get((*column, release))) for column in columns]
        lines.append(f"| {release} | " + " | ".join(row) + " |")
    note = f"Supported are the releases from {floor} up to, and without, {ceiling}."
    return "\n".join([*lines, "", note])


def refresh(page: Path = PAGE) -> bool:
    """Put the table into its page, and tell whether that changed the page."""
    text = page.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    new = f"{before}{BEGIN}\n\n{table(read_all())}\n\n{END}{after}"
    page.write_text(new, encoding="utf-8")
    return new != text


def _cell(result: Result | None) -> str:
    if result is None:
        return "not run"
    passed, failed = result.count("passed"), result.count("failed")
    text = f"{failed} of {passed + failed} failed" if failed else f"{passed} passed"
    text += f" in {len(result.tests)} file{'s' if len(result.tests) > 1 else ''}"
    borrowed = "" if result.compiled == result.vllm else f"; logic only, over the compiled code of {result.compiled}"
    return f"[{text}](support/{result.name}){borrowed}"
