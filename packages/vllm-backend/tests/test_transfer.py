"""Large replies between two processes of one host."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from nnsight._trace.messages import decode_values, encode_values
from nnsight.errors import WireError
from nnsight_vllm import _transfer
from nnsight_vllm._transfer import read_shared, write_shared


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(_transfer, "shared_folder", lambda: tmp_path)
    return tmp_path


def read_values(path: str) -> dict[str, Any]:
    return read_shared(path, lambda data, fetch: decode_values(data, fetch=fetch))


def test_small_and_large_values_come_through_a_file_that_is_gone_then(folder: Path) -> None:
    values = {
        "small": [torch.full((1, 64), float(index)) for index in range(3000)],
        "large": torch.randn(3 << 20),
        "between": torch.randn(400_000).to(torch.bfloat16),
        "plain": [1, "text"],
    }
    path = write_shared(encode_values(values))
    assert path is not None
    assert Path(path).stat().st_mode & 0o777 == 0o600
    found = read_values(path)
    assert not list(folder.iterdir())
    assert torch.equal(torch.cat(found["small"]), torch.cat(values["small"]))
    assert torch.equal(found["large"], values["large"])
    assert torch.equal(found["between"], values["between"])
    assert found["plain"] == values["plain"]
    found["large"].add_(1)
    found["small"][0].add_(1)
    assert found["small"][1].sum() == 64


def test_a_folder_without_room_is_told_and_left_empty(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write

    def write(descriptor: int, data: Any) -> int:
        if len(data) < 100_000:
            return real(descriptor, data)
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(os, "write", write)
    assert write_shared(encode_values({"value": torch.zeros(1 << 20)})) is None
    assert not list(folder.iterdir())


def test_a_file_that_is_cut_short_is_an_error_and_is_gone_then(folder: Path) -> None:
    path = write_shared(encode_values({"value": torch.zeros(1 << 20)}))
    assert path is not None
    os.truncate(path, 1 << 20)
    with pytest.raises(WireError, match="truncated"):
        read_values(path)
    assert not list(folder.iterdir())
