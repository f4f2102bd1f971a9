"""Every Python block of the documentation runs as it is written."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from doc_snippets import matches, snippets_of

ROOT = Path(__file__).resolve().parents[2]
RUNNER = ROOT / "tests" / "support" / "run_snippets.py"
ALL_PAGES = [
    ROOT / "README.md",
    *sorted(ROOT.glob("packages/*/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
PAGES = [page for page in ALL_PAGES if any(not snippet.skipped for snippet in snippets_of(page, ROOT))]
LONGEST_S = 500


class Runner:
    """A process that runs one page after the other, with engines that outlive a page."""

    def __init__(self) -> None:
        self._replies, theirs = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, str(RUNNER), str(ROOT), str(theirs)], stdin=subprocess.PIPE, text=True, pass_fds=[theirs]
        )
        os.close(theirs)

    def run(self, page: Path) -> str | None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{page}\n")
        self._process.stdin.flush()
        reply = b""
        while not reply.endswith(b"\n"):
            ready, _, _ = select.select([self._replies], [], [], LONGEST_S)
            if not ready:
                self._process.kill()
                return f"{page} took longer than {LONGEST_S} s"
            part = os.read(self._replies, 1 << 16)
            if not part:
                return f"{page} ended the process that ran it (exit status {self._process.wait()})"
            reply += part
        problem: str | None = json.loads(reply)
        return problem

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._replies)


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    runner = Runner()
    yield runner
    runner.close()


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_blocks_of_a_page_run_as_written(page: Path, runner: Runner) -> None:
    problem = runner.run(page)
    assert problem is None, problem


def test_a_block_is_read_with_its_directive_and_output(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("x\n\n<!-- raises: KeyError -->\n```python\n{}[0]\n```\n\n    ```python\n    print(1)\n    ```\n")
    page.write_text(page.read_text() + "\n    ```text\n    1\n    ```\n\n```bash\nls\n```\n")
    first, second = snippets_of(page, tmp_path)
    assert (first.line, first.code, first.raises, first.prints) == (4, "{}[0]\n", "KeyError", None)
    assert (second.code, second.raises, second.prints) == ("print(1)\n", "", "1\n")


def test_an_ellipsis_in_expected_output_stands_for_anything() -> None:
    assert matches("a ... c\n", "a b\nb c")
    assert not matches("a ... c", "a b c d")
