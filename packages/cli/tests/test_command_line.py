"""The command line as a whole: help, errors, and commands of other plugins."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import nnsight._installation
import nnsight_cli
import nnsight_cli.application
from nnsight import hookimpl
from nnsight.errors import InvalidRequestError, PluginLoadError
from nnsight.plugins import create_plugin_manager
from nnsight_cli import plugin
from nnsight_cli.application import build_application
from nnsight_cli.main import main


def _run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    code = left.value.code
    return code if isinstance(code, int) else int(code is not None)


def _plugins(*others: Any) -> Any:
    manager = create_plugin_manager(entry_points=False)
    for other in (plugin, *others):
        manager.register(other)
    return manager


def _failing(command: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the command line have a single command, called `fail`."""
    application = typer.Typer(pretty_exceptions_enable=False)
    application.callback()(lambda: None)

    @application.command()
    def fail(verbose: bool = False) -> None:
        command()

    monkeypatch.setattr(nnsight_cli.application, "build_application", lambda: application)


class Hello:
    """A plugin that adds a command."""

    @hookimpl(optionalhook=True)
    def register_commands(self, application: typer.Typer) -> None:
        application.command()(hello)


def hello() -> None:
    """Say hello."""
    typer.echo("hello from a plugin")


def test_without_arguments_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run() == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("demo", "doctor", "locations"))


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("--version") == 0
    assert capsys.readouterr().out.strip() == f"nnsight {nnsight_cli.__version__}"


def test_an_unknown_command_is_a_usage_error() -> None:
    assert _run("dmeo") == 2


def test_a_folder_that_does_not_exist_is_refused_before_an_engine_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run("demo", "--image", str(tmp_path / "missing" / "lens.png")) == 2
    assert "does not exist" in " ".join(capsys.readouterr().err.replace("│", "").split())


def test_an_error_of_nnsight_is_one_message_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def command() -> None:
        raise InvalidRequestError("the prompt [is] empty")

    _failing(command, monkeypatch)
    monkeypatch.delenv("NNSIGHT_TRACEBACK", raising=False)
    assert _run("fail") == 1
    assert capsys.readouterr().err.strip() == "error: the prompt [is] empty"


def test_the_traceback_of_an_error_is_shown_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def command() -> None:
        raise InvalidRequestError("the prompt is empty")

    _failing(command, monkeypatch)
    with pytest.raises(InvalidRequestError):
        main(["fail", "--verbose"])
    monkeypatch.setenv("NNSIGHT_TRACEBACK", "1")
    with pytest.raises(InvalidRequestError):
        main(["fail"])


def test_an_error_that_is_none_of_ours_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def command() -> None:
        raise KeyError("a bug")

    _failing(command, monkeypatch)
    with pytest.raises(KeyError):
        main(["fail"])


def test_another_distribution_of_the_same_package_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def distribution(name: str) -> Any:
        if name == "nnsight":
            return SimpleNamespace(version="0.8.1")
        raise PackageNotFoundError(name)

    monkeypatch.setattr(nnsight._installation, "distribution", distribution)
    with pytest.raises(SystemExit, match="uninstall both"):
        main(["--version"])


def test_a_plugin_adds_a_command() -> None:
    result = CliRunner().invoke(build_application(_plugins(Hello())), ["hello"])
    assert result.exit_code == 0
    assert result.output == "hello from a plugin\n"


def test_two_commands_of_one_name_are_refused() -> None:
    with pytest.raises(PluginLoadError, match="more than one plugin adds the command 'hello'"):
        build_application(_plugins(Hello(), Hello()))


def test_a_hook_that_does_not_exist_is_refused_unless_it_is_optional() -> None:
    class Misspelled:
        @hookimpl
        def register_comands(self, application: typer.Typer) -> None:
            """Do nothing."""

    class ForAnotherProgram:
        @hookimpl(optionalhook=True)
        def register_something_else(self) -> None:
            """Do nothing."""

    build_application(_plugins(ForAnotherProgram()))
    with pytest.raises(PluginLoadError, match="register_comands"):
        build_application(_plugins(Misspelled()))


def test_the_application_can_be_built_twice_from_one_manager() -> None:
    manager = _plugins()
    build_application(manager)
    build_application(manager)


def test_the_plugin_and_the_entry_point_import_no_command_and_no_vllm() -> None:
    code = (
        "import nnsight_cli.plugin, nnsight_cli.main, sys; "
        "print([name for name in ('typer', 'rich', 'vllm', 'nnsight_vllm', 'PIL') if name in sys.modules])"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout.strip() == "[]"


def test_the_entry_point_alone_imports_no_torch_into_the_processes_of_an_engine() -> None:
    code = "import nnsight_cli.main, sys; print('torch' in sys.modules)"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout.strip() == "False"


def test_no_module_imports_vllm_or_its_backend() -> None:
    folder = Path(nnsight_cli.__file__).parent
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not [name for name in names if name.partition(".")[0] in ("vllm", "nnsight_vllm")], path


def test_the_bundled_model_is_in_its_place() -> None:
    assert (nnsight_cli.demo_model_path() / "model.safetensors").is_file()
