"""What `compat` relies on is recorded, every supported release has it, and the tools that check it read rightly."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import snapshots
from nnsight_vllm.compat import relied_on
from nnsight_vllm.compat.relied_on import NAMES, PATCHES, Name, release_key
from nnsight_vllm.compat.versions import installed_version
from snapshots import PACKAGE, declared_range, in_range
from syntax import Found, Sources

COMPAT = PACKAGE / "src" / "nnsight_vllm" / "compat"
MODULES = [path for path in sorted(COMPAT.glob("*.py")) if path.name != "relied_on.py"]
RECORDED = {name.target for name in (*PATCHES, *NAMES)}


def imported_from_vllm(module: Path) -> set[str]:
    """Return the names of vLLM that a module imports, and those that it takes from modules that it imports whole."""
    found: set[str] = set()
    whole: dict[str, str] = {}
    tree = ast.parse(module.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {f"{alias.name}:" for alias in node.names if alias.name.partition(".")[0] == "vllm"}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "vllm":
            for alias in node.names:
                found.add(f"{node.module}:{alias.name}")
                whole[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in whole:
            owner = whole[node.value.id]
            parent, _, name = owner.rpartition(".")
            is_module = importlib.util.find_spec(parent) is not None and _is_module(owner)
            found.add(f"{owner}:{node.attr}" if is_module else f"{parent}:{name}.{node.attr}")
    return found


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.name)
def test_each_name_of_vllm_that_compat_imports_is_recorded(module: Path) -> None:
    assert imported_from_vllm(module) <= RECORDED


def test_an_import_that_is_not_recorded_is_found(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(
        "from vllm.distributed import parallel_state\nfrom vllm.v1.request import RequestStatus\n"
        "import vllm.envs\nparallel_state._NEW\nRequestStatus.NEW\n"
    )
    assert imported_from_vllm(module) - RECORDED == {
        "vllm.envs:",
        "vllm.distributed.parallel_state:_NEW",
        "vllm.v1.request:RequestStatus.NEW",
    }


def test_no_record_is_left_of_a_name_that_compat_does_not_use() -> None:
    words = {word for module in MODULES for word in re.findall(r"\w+", module.read_text(encoding="utf-8"))}
    adapted = {name.runner for name in NAMES if (COMPAT / f"runner_{name.runner}.py").exists()}
    wanted = [name for name in NAMES if name.runner is None or name.runner in adapted]
    assert [name.target for name in wanted if re.split(r"[:.]", name.target)[-1] not in words] == []


def test_names_are_recorded_once() -> None:
    targets = [name.target for name in (*PATCHES, *NAMES)]
    assert sorted(targets) == sorted(set(targets))


def test_no_patch_outlives_its_reason() -> None:
    floor, _ = declared_range()
    outlived = [
        patch.target for patch in PATCHES if patch.remove_from and release_key(floor) >= release_key(patch.remove_from)
    ]
    assert outlived == []


def test_a_name_is_needed_by_its_runner_and_its_releases_alone() -> None:
    name = Name("vllm:Thing", runner="V2", since="0.28", until="0.31")
    assert not name.applies_to("0.27.1")
    assert name.applies_to("0.28.0")
    assert name.applies_to("0.30.2+cpu")
    assert not name.applies_to("0.31.0")
    assert not name.applies_to("0.29.0", ("V1",))


@pytest.mark.parametrize("release", snapshots.committed())
def test_each_supported_release_has_what_the_records_need(release: str) -> None:
    snapshot = snapshots.read(release)
    assert snapshot.keys() == RECORDED
    assert not in_range(release) or snapshots.problems(release, snapshot) == []


def test_the_range_starts_and_ends_at_releases_that_were_looked_at() -> None:
    floor, ceiling = declared_range()
    supported = [release for release in snapshots.committed() if in_range(release)]
    assert release_key(supported[-1])[:2] == release_key(floor)[:2]
    assert release_key(supported[0])[1] + 1 == release_key(ceiling)[1]
    minors = [release_key(release)[1] for release in supported]
    assert sorted(minors, reverse=True) == list(range(minors[0], minors[-1] - 1, -1))


def test_the_installed_release_is_as_its_snapshot_says() -> None:
    import vllm

    release = installed_version()
    assert release is not None
    taken = snapshots.take(Path(vllm.__file__).parents[1])
    assert snapshots.moves(snapshots.read(release.partition("+")[0]), taken) == []


def test_the_offline_check_runs_without_any_installed_package() -> None:
    done = subprocess.run(
        [sys.executable, "-S", str(PACKAGE / "releases" / "contracts.py"), "check", "--offline"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line.partition(":")[0] for line in done.stdout.splitlines()] == snapshots.committed()


# The reading of sources --------------------------------------------------------------------------------------------


@pytest.fixture
def sources(tmp_path: Path) -> Sources:
    files = {
        "__init__.py": """
            import typing
            if typing.TYPE_CHECKING:
                from pack.deep.engine import Engine
        """,
        "deep/__init__.py": """
            from .engine import *
            from ..settings import make as make_settings
        """,
        "deep/engine.py": """
            from pack.base import Base

            @overload
            def run(one): ...

            class Engine(Base):
                limit: int = 3

                def __init__(self, model, *, eager=False, **rest) -> None:
                    self.config, self.own = rest, model

                @property
                def depth(self) -> int:
                    return 1

                @depth.setter
                def depth(self, value) -> None: ...
        """,
        "base.py": """
            class Base:
                def step(self, batch, /, plan, *more) -> list[int]:
                    # A comment.
                    self.last = plan
                    return []
        """,
        "settings.py": """
            @dataclass
            class Settings:
                name: str
                size: int = 1

            CACHE: dict[str, int] = {}

            def make(settings=None): ...
        """,
    }
    for name, text in files.items():
        path = tmp_path / "pack" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    return Sources(tmp_path, "pack")


@pytest.mark.parametrize(
    ("target", "kind", "file", "parameters"),
    [
        ("pack:Engine", "class", "pack/deep/engine.py", ("model", "*", "eager=", "**rest")),
        ("pack.deep:Engine.step", "function", "pack/base.py", ("self", "batch", "plan", "*more")),
        ("pack:Engine.depth", "property", "pack/deep/engine.py", ("self",)),
        ("pack:Engine.limit", "value", "pack/deep/engine.py", ()),
        ("pack:Engine.own", "value", "pack/deep/engine.py", ()),
        ("pack:Engine.last", "value", "pack/base.py", ()),
        ("pack.deep:make_settings", "function", "pack/settings.py", ("settings=",)),
        ("pack.settings:Settings", "class", "pack/settings.py", ("name", "size=")),
        ("pack.settings:CACHE", "value", "pack/settings.py", ()),
        ("pack:settings", "module", "pack/settings.py", ()),
        ("pack.deep.engine:", "module", "pack/deep/engine.py", ()),
    ],
)
def test_a_name_is_found_wherever_it_is_defined(
    sources: Sources, target: str, kind: str, file: str, parameters: tuple[str, ...]
) -> None:
    found = sources.find(target)
    assert found is not None
    assert (found.kind, found.file, found.parameters) == (kind, file, parameters)


@pytest.mark.parametrize("target", ["pack:Other", "pack:Engine.other", "pack.none:Thing", "pack:Engine.limit.real"])
def test_a_name_that_is_nowhere_is_not_found(sources: Sources, target: str) -> None:
    assert sources.find(target) is None


def test_what_moved_is_told_in_words() -> None:
    before = {
        "pack:gone": Found("value", "pack/a.py"),
        "pack:run": Found("function", "pack/a.py", ("self", "batch"), "int", "1"),
        "pack:same": Found("function", "pack/a.py", ("self",), "", "1"),
        "pack:turned": Found("function", "pack/a.py", ("one", "two")),
    }
    after = {
        "pack:gone": None,
        "pack:new": Found("value", "pack/a.py"),
        "pack:run": Found("property", "pack/b.py", ("self", "plan="), "list", "2"),
        "pack:same": Found("function", "pack/a.py", ("self",), "", "2"),
        "pack:turned": Found("function", "pack/a.py", ("two", "one")),
    }
    assert snapshots.moves(before, after) == [
        "pack:gone is gone",
        "pack:new is new",
        "pack:run moved from pack/a.py to pack/b.py",
        "pack:run was a function and is a property",
        "pack:run gained plan=",
        "pack:run lost batch",
        "pack:run: its type was int, and is list",
        "pack:turned has its parameters in another order: two, one",
        "changed inside, to be read again: pack:same",
    ]


def test_what_a_snapshot_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = (
        Name("pack:gone"),
        Name("pack:run", ("batch", "plan")),
        Name("pack:later", since="0.30"),
        Name("pack:unseen"),
    )
    monkeypatch.setattr(snapshots.RECORDS, "PATCHES", ())
    monkeypatch.setattr(snapshots.RECORDS, "NAMES", wanted)
    snapshot: snapshots.Snapshot = {"pack:gone": None, "pack:run": Found("function", "a.py", ("self", "batch="))}
    assert snapshots.problems("0.29.0", snapshot) == [
        "pack:gone is gone",
        "pack:run has no parameter plan",
        "pack:unseen is not in the snapshot: take it again",
    ]


def test_the_tools_read_the_records_of_the_package() -> None:
    assert [name.target for name in snapshots.RECORDS.NAMES] == [name.target for name in relied_on.NAMES]


def test_a_function_is_changed_inside_when_what_it_does_is(tmp_path: Path) -> None:
    def digest(text: str) -> str:
        (tmp_path / "pack.py").write_text(textwrap.dedent(text))
        found = Sources(tmp_path, "pack").find("pack:run")
        assert found is not None
        return found.body

    plain = digest("def run():\n    return 1\n")
    assert digest('def run():\n    """Say\n    more."""\n\n    # A comment.\n    return 1\n') == plain
    assert digest("def run():\n    return 2\n") != plain
