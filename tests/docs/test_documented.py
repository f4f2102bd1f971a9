"""What must be documented is, and what the documentation says of the code is true."""

from __future__ import annotations

import ast
import inspect
import re
import tomllib
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import nnsight
import nnsight_cli.hookspecs
from nnsight import backends, errors, hookspecs
from nnsight._torch.families import HF_FAMILIES
from nnsight_cli.application import build_application
from nnsight_vllm._client import settings
from nnsight_vllm.families import VLLM_FAMILIES

if TYPE_CHECKING:
    from nnsight.families import ModelFamily

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
HOOKS = {
    name: value
    for module in (hookspecs, nnsight_cli.hookspecs)
    for name, value in vars(module).items()
    if hasattr(value, "nnsight_spec")
}


def text_of(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", errors.__all__)
def test_each_public_error_has_a_page_that_names_its_builtin(name: str) -> None:
    page = text_of(f"how-to/errors/{name}.md")
    assert page.startswith(f"# {name}\n")
    for base in getattr(errors, name).__bases__:
        if base not in (Exception, errors.NNsightError, errors.NNsightWarning):
            assert f"`{base.__name__}`" in page


def test_each_page_of_an_error_belongs_to_one() -> None:
    pages = {page.stem for page in (DOCS / "how-to" / "errors").glob("*.md")} - {"index"}
    assert pages == set(errors.__all__)


@pytest.mark.parametrize("name", errors.__all__)
def test_each_public_error_is_listed(name: str) -> None:
    assert f"[`{name}`]({name}.md)" in text_of("how-to/errors/index.md")
    assert f"how-to/errors/{name}.md" in (ROOT / "mkdocs.yml").read_text()


@pytest.mark.parametrize("name", HOOKS)
def test_each_hook_is_documented_with_its_argument(name: str) -> None:
    (argument,) = inspect.signature(HOOKS[name]).parameters
    assert f"## {name}({argument})\n" in text_of("reference/hooks.md")


def test_each_documented_hook_exists() -> None:
    assert sorted(re.findall(r"^## (\w+)\(", text_of("reference/hooks.md"), re.MULTILINE)) == sorted(HOOKS)


@pytest.mark.parametrize("family", [*HF_FAMILIES, *VLLM_FAMILIES], ids=lambda family: family.classes[0])
def test_each_family_is_documented_with_its_paths(family: ModelFamily) -> None:
    page = text_of("reference/standard-names.md")
    for kind in family.classes:
        (row,) = [line for line in page.splitlines() if f"`{kind}`" in line]
        for path in (family.layers, family.embed, family.final_norm, family.unembed):
            assert f"`{path}`" in row
    for value in family.values.values():
        assert f"`{value.module or value.side}" in page


def test_each_command_is_documented() -> None:
    listed = re.findall(r"^\| `nnsight (\w+)", text_of("reference/command-line.md"), re.MULTILINE)
    commands = [command.callback.__name__ for command in build_application().registered_commands if command.callback]
    assert sorted(listed) == sorted(commands)


def test_each_setting_of_an_engine_is_documented() -> None:
    page = text_of("reference/settings.md")
    _, report = settings.engine_settings({})
    for setting in report:
        assert f"| `{setting.name}` |" in page


def test_each_refused_engine_keyword_is_documented() -> None:
    page = text_of("reference/settings.md")
    for name in settings._REFUSED:
        assert f"| `{name}`" in page


def test_the_public_names_are_documented_and_no_others() -> None:
    listed = re.findall(r"^\| `nnsight\.(\w+)` \|", text_of("reference/public-api.md"), re.MULTILINE)
    assert set(listed) - {"backends", "diagnosis", "events", "families", "plugins", "testing"} == set(nnsight.__all__)


@pytest.mark.parametrize("name", backends.__all__)
def test_what_a_backend_is_made_of_is_in_the_reference(name: str) -> None:
    assert re.search(rf"^::: nnsight(\.backends)?\.{name}$", text_of("reference/public-api.md"), re.MULTILINE)


def test_the_range_of_vllm_is_that_of_the_metadata() -> None:
    metadata = tomllib.loads((ROOT / "packages" / "vllm-backend" / "pyproject.toml").read_text())
    (wanted,) = [text for text in metadata["project"]["dependencies"] if text.startswith("vllm")]
    assert f"| vLLM | `{wanted.removeprefix('vllm')}` |" in text_of("reference/support.md")


def test_the_glossary_is_in_order() -> None:
    lines = text_of("reference/glossary.md").splitlines()
    terms = [above for above, line in pairwise(lines) if line.startswith(": ")]
    assert terms
    assert terms == sorted(terms)


def test_each_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text()
    for page in PAGES:
        assert page.relative_to(DOCS).as_posix() in navigation


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(DOCS).as_posix())
def test_no_page_copies_what_needs_no_copy(page: Path) -> None:
    assert ".clone()" not in page.read_text(encoding="utf-8")


def test_the_error_tree_in_the_module_is_complete() -> None:
    tree = ast.get_docstring(ast.parse(inspect.getsource(errors))) or ""
    for name in errors.__all__:
        assert re.search(rf"(^|── ){name}\b", tree, re.MULTILINE), name
