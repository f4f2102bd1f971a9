from __future__ import annotations

from typing import Any

import pytest
import torch
from wire_helpers import CODECS, TRUSTING, Probe, travel

from nnsight._wire import decode, encode
from nnsight._wire.buffer_writer import DEVICE_BATCH_BYTES
from nnsight._wire.buffers import ENTRY_KINDS
from nnsight.errors import UntransferableValueError

pytestmark = pytest.mark.gpu


def bits(tensor: torch.Tensor) -> list[int]:
    return tensor.detach().cpu().reshape(-1).contiguous().view(torch.uint8).tolist()


@pytest.mark.parametrize("name", ENTRY_KINDS)
def test_every_dtype_leaves_the_gpu_bit_for_bit_and_returns_to_it_where_asked(name: str) -> None:
    raw = torch.arange(96, dtype=torch.uint8) % (2 if name == "bool" else 251)
    value = raw.view(ENTRY_KINDS[name].dtype)
    there = value.cuda()
    values = [there, there.reshape(2, 3, -1), there[1:], there[0], there[:0], value]
    message = encode(values, codecs=CODECS)
    on_cpu: Any = decode(message, codecs=CODECS)
    back: Any = decode(message, codecs=CODECS, device_of=torch.device)
    for one, other, original in zip(on_cpu, back, values, strict=True):
        assert bits(one) == bits(other) == bits(original)
        assert (one.dtype, one.shape, one.device.type) == (original.dtype, original.shape, "cpu")
        assert other.device == original.device


def test_sets_larger_than_a_batch_leave_the_gpu() -> None:
    large = DEVICE_BATCH_BYTES // 4
    sizes = [3, large + 5, 1, large // 2, 5, large // 2 + 1, 0, 2]
    values = [torch.full((size,), float(index), device="cuda") for index, size in enumerate(sizes)]
    for result, value in zip(travel(values), values, strict=True):
        assert torch.equal(result, value.cpu())


def test_lazily_conjugated_values_leave_the_gpu() -> None:
    value = torch.tensor([1 + 2j], device="cuda").conj()
    first, second = travel([value, value.imag])
    assert torch.equal(first, value.cpu().resolve_conj())
    assert torch.equal(second, value.imag.cpu())


def test_a_probe_returns_to_the_gpu() -> None:
    probe = Probe().cuda()
    message = encode(probe, codecs=CODECS)
    result: Any = decode(message, codecs=CODECS, limits=TRUSTING, device_of=torch.device)
    hidden = torch.ones(1, 4, device="cuda")
    assert type(result.encoder.weight) is torch.nn.Parameter
    assert torch.equal(result(hidden), probe(hidden))


def test_copies_from_the_gpu_are_refused_where_they_are_off() -> None:
    with pytest.raises(UntransferableValueError, match=r"it is on cuda:0.*`\.cpu\(\)`"):
        encode(torch.ones(1, device="cuda"), codecs=CODECS, copy_to_cpu=False)
