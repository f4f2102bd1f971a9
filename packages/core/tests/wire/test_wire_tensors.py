from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from wire_helpers import CODECS, Probe, travel

from nnsight._wire import Limits, decode, encode, encode_parts
from nnsight._wire.buffer_writer import DEVICE_BATCH_BYTES
from nnsight._wire.buffers import ENTRY_KINDS, OWN_BYTES
from nnsight._wire.message import unpack
from nnsight.errors import UntransferableValueError


def bits(tensor: torch.Tensor) -> list[int]:
    return tensor.detach().reshape(-1).contiguous().view(torch.uint8).tolist()


@pytest.mark.parametrize("name", ENTRY_KINDS)
def test_every_dtype_comes_back_bit_for_bit(name: str) -> None:
    dtype = ENTRY_KINDS[name].dtype
    raw = torch.arange(96, dtype=torch.uint8) % (2 if dtype is torch.bool else 251)
    value = raw.view(dtype)
    for tensor in (value, value.reshape(2, 3, -1), value[:0], value[1], value[1:]):
        (result, other) = travel([tensor, raw], limits=Limits())
        assert (result.dtype, result.shape) == (tensor.dtype, tensor.shape)
        assert bits(result) == bits(tensor)
        assert torch.equal(other, raw)


def test_tensors_of_several_dtypes_keep_their_places() -> None:
    values = [
        torch.full((index % 5,), index, dtype=dtype) for index in range(40) for dtype in (torch.int8, torch.float64)
    ]
    for result, value in zip(travel(values), values, strict=True):
        assert result.dtype is value.dtype
        assert torch.equal(result, value)


def test_small_and_large_tensors_keep_their_order() -> None:
    values = [torch.full((size,), float(index)) for index, size in enumerate([3, 5000, 1, 0, 2000, 2, 2, 9000, 1])]
    for result, value in zip(travel(values), values, strict=True):
        assert torch.equal(result, value)


def test_large_tensors_between_small_ones_come_back_in_memory_of_their_own() -> None:
    large = OWN_BYTES // 4
    values = [torch.full((size,), float(index)) for index, size in enumerate([3, large, 1, large + 5, 2, 0, large])]
    results = travel(values)
    for result, value in zip(results, values, strict=True):
        assert torch.equal(result, value)
    assert [results[index].untyped_storage().nbytes() for index in (1, 3, 6)] == [4 * large, 4 * large + 20, 4 * large]


def test_small_tensors_that_share_a_block_are_edited_apart() -> None:
    results = travel([torch.full((4,), float(index)) for index in range(50)])
    for result in results[::2]:
        result.zero_()
    assert [result[0].item() for result in results] == [index * (index % 2) for index in range(50)]
    assert {result.untyped_storage().nbytes() for result in results} == {16}


def test_four_dimensional_tensors_in_another_order_of_memory_come_back_as_values() -> None:
    values = [torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last) for _ in range(3)]
    values.append(torch.arange(12.0).reshape(3, 4).T)
    for result, value in zip(travel(values), values, strict=True):
        assert torch.equal(result, value)


def test_a_message_in_parts_has_the_size_that_it_says_and_can_be_made_again() -> None:
    values = [torch.randn(7), torch.arange(OWN_BYTES), np.arange(5), b"x" * 100_000]
    parts = encode_parts(values, codecs=CODECS)
    whole = b"".join([bytes(piece) for piece in parts])
    assert parts.size == len(whole)
    assert parts.joined() == whole == encode(values, codecs=CODECS)


def test_a_receiver_may_choose_the_memory_of_tensors_and_fill_it_after_they_are_made() -> None:
    values = [torch.randn(3), torch.randn(OWN_BYTES), torch.arange(9)]
    message = encode(values, codecs=CODECS)
    asked: list[tuple[bytearray, int, int]] = []

    def fetch(begin: int, end: int) -> bytearray:
        memory = bytearray(end - begin)
        asked.append((memory, begin, end))
        return memory

    results: Any = decode(message, codecs=CODECS, fetch=fetch)
    for memory, begin, end in asked:
        memory[:] = message[begin:end]
    for result, value in zip(results, values, strict=True):
        assert torch.equal(result, value)


def test_the_payload_is_a_safetensors_file() -> None:
    message = encode([torch.arange(3), torch.ones(2, 2), torch.tensor([1j]), np.arange(2)], codecs=CODECS)
    _, payload = unpack(message, Limits())
    tensors = safetensors.torch.load(bytes(payload))
    assert tensors["int64"].tolist() == [0, 1, 2]
    assert tensors["float32"].tolist() == [1, 1, 1, 1]
    assert tensors["complex64"].tolist() == [[0, 1]]
    assert len(tensors["bytes"]) == 16


def test_strided_expanded_and_lazily_conjugated_tensors_come_back_as_values() -> None:
    base = torch.arange(12.0).reshape(3, 4)
    values = [
        base.T,
        base[:, 1::2],
        torch.ones(()).expand(3, 4),
        torch.ones(1, 1).expand(1, 5),
        torch.tensor(3),
        base[:, :0],
        torch.tensor([1 + 2j, 3 - 1j]).conj(),
        torch.tensor([1 + 2j, 3 - 1j]).conj().imag,
        base.to(torch.bfloat16)[0, 1:2].expand(7),
    ]
    for result, value in zip(travel(values), values, strict=True):
        assert result.shape == value.shape
        assert torch.equal(result, value)
        assert result.is_contiguous()
        assert not result.is_conj()
        assert not result.is_neg()


def test_decoded_tensors_can_be_written_and_leave_the_message_as_it_was() -> None:
    message = encode([torch.zeros(3), torch.zeros(5), np.zeros(2)], codecs=CODECS)
    first: Any = decode(message, codecs=CODECS)
    first[0].add_(1)
    first[2][:] = 5
    assert first[0].untyped_storage().nbytes() == 12
    assert first[1].tolist() == [0] * 5
    second: Any = decode(memoryview(bytearray(message)), codecs=CODECS)
    assert second[0].tolist() == [0, 0, 0]
    assert second[2].tolist() == [0, 0]


def test_decoded_tensors_take_part_in_gradients() -> None:
    weight = torch.ones(2, 2, requires_grad=True)
    result = travel(torch.zeros(2, 2))
    result.add_(weight * 3)
    result[0] *= 2
    result.sum().backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [[6, 6], [3, 3]]


def test_leaves_that_require_gradients_still_do() -> None:
    leaf = torch.ones(2, requires_grad=True)
    result, computed, parameter, frozen = travel(
        [leaf, leaf * 2, torch.nn.Parameter(torch.ones(1)), torch.nn.Parameter(torch.ones(1), requires_grad=False)]
    )
    assert (result.requires_grad, result.is_leaf, type(result)) == (True, True, torch.Tensor)
    (result * 3).sum().backward()
    assert result.grad.tolist() == [3, 3]
    assert not computed.requires_grad
    assert computed.tolist() == [2, 2]
    assert type(parameter) is type(frozen) is torch.nn.Parameter
    assert (parameter.requires_grad, frozen.requires_grad) == (True, False)


def test_tensors_of_inference_mode_travel_and_arrive_as_ordinary_ones() -> None:
    with torch.inference_mode():
        value = torch.ones(3) * 2
        parameter = torch.nn.Parameter(torch.ones(2))
        results = [*travel([value, parameter, torch.zeros(2, requires_grad=True), value[1:]])]
    results += travel([value, value.reshape(3, 1)])
    for result in results:
        assert not result.is_inference()
        result.detach().add_(1)
    assert results[2].requires_grad


def test_a_default_device_or_dtype_does_not_move_what_is_read() -> None:
    message = encode([torch.ones(2), torch.ones(0), np.ones(1)], codecs=CODECS)
    with torch.device("meta"):
        result: Any = decode(message, codecs=CODECS)
    assert [value.device.type for value in result[:2]] == ["cpu", "cpu"]


def test_the_device_of_a_tensor_is_chosen_where_it_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    from nnsight._wire.codecs import tensors

    asked = []

    def device_of(text: str) -> torch.device:
        asked.append(text)
        return torch.device("meta")

    original = tensors.TensorCodec.encode

    def encode_from_elsewhere(self: Any, value: torch.Tensor, encoder: Any) -> object:
        return [*original(self, value, encoder), 0, "cuda:3"]  # type: ignore[misc]

    monkeypatch.setattr(tensors.TensorCodec, "encode", encode_from_elsewhere)
    message = encode(torch.ones(2), codecs=CODECS)
    assert decode(message, codecs=CODECS).device.type == "cpu"  # type: ignore[attr-defined]
    assert decode(message, codecs=CODECS, device_of=device_of).device.type == "meta"  # type: ignore[attr-defined]
    assert asked == ["cuda:3"]
    monkeypatch.undo()
    for value in (torch.ones(2), torch.ones(2, requires_grad=True), torch.nn.Parameter(torch.ones(2))):
        moved: Any = decode(encode(value, codecs=CODECS), codecs=CODECS, device_of=device_of)
        assert (moved.device.type, moved.requires_grad, type(moved)) == ("meta", value.requires_grad, type(value))
    assert asked[1:] == ["cpu"] * 3


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (torch.ones(2).to_sparse(), "torch.sparse_coo"),
        (torch.ones(2, device="meta"), "meta device"),
        (torch.nn.parameter.UninitializedParameter(), "class of its own"),
    ],
    ids=["sparse", "meta", "uninitialised"],
)
def test_tensors_without_dense_values_are_refused_by_name(value: torch.Tensor, reason: str) -> None:
    with pytest.raises(UntransferableValueError, match=rf"`hidden\[1\]`.*{reason}"):
        encode([1, value], codecs=CODECS, name="hidden")


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_quantised_tensors_are_refused_by_name() -> None:
    value = torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)
    with pytest.raises(UntransferableValueError, match=r"torch\.qint8.*dequantize"):
        encode(value, codecs=CODECS)


class Wrapped(torch.Tensor):
    pass


class Weight(torch.nn.Parameter):
    pass


def test_tensors_of_other_classes_are_refused_and_parameters_of_other_classes_become_parameters() -> None:
    with pytest.raises(UntransferableValueError, match="class of its own"):
        encode(torch.ones(2).as_subclass(Wrapped), codecs=CODECS)
    weight = Weight(torch.ones(2))
    first, second = travel([weight, weight])
    assert type(first) is torch.nn.Parameter
    assert first.requires_grad
    assert first is second


def test_more_bytes_than_a_batch_come_back() -> None:
    value = [torch.full((DEVICE_BATCH_BYTES // 16 + 3,), float(index)) for index in range(5)]
    for result, tensor in zip(travel(value), value, strict=True):
        assert torch.equal(result, tensor)


def test_a_probe_computes_the_same_after_travel() -> None:
    probe = Probe()
    hidden = torch.randn(3, 4)
    result = travel(probe)
    assert torch.equal(result(hidden), probe(hidden))
    assert [name for name, _ in result.named_parameters()] == [name for name, _ in probe.named_parameters()]
    result(hidden).sum().backward()
    assert result.encoder.weight.grad is not None


@pytest.mark.parametrize(
    "value",
    [
        np.arange(6, dtype=np.float16).reshape(2, 3),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.arange(10)[::3],
        np.zeros((0, 3)),
        np.array(5, dtype=">i4"),
        np.array(["a", "bcd"]),
        np.array([b"a", b"bc"]),
        np.array(["2024-01-01"], dtype="datetime64[D]"),
        np.array([5], dtype="timedelta64[25s]"),
        np.array([True, False]),
        np.array([1j]),
        np.broadcast_to(np.ones(1), (3, 2)),
    ],
    ids=lambda value: f"{value.dtype}{value.shape}",
)
def test_numpy_arrays_come_back_and_can_be_written(value: np.ndarray[Any, Any]) -> None:
    result = travel(value, limits=Limits())
    assert (result.dtype, result.shape) == (value.dtype, value.shape)
    assert np.array_equal(result, value)
    assert result.flags.writeable


@pytest.mark.parametrize(
    "value",
    [
        np.float32(1.5),
        np.float64(2),
        np.int8(-1),
        np.bool_(True),
        np.str_("ab"),
        np.str_(""),
        np.bytes_(b"x"),
        np.datetime64("2024"),
    ],
    ids=repr,
)
def test_numpy_scalars_come_back(value: np.generic) -> None:
    result = travel(value, limits=Limits())
    assert type(result) is type(value)
    assert result == value


def test_arrays_of_objects_records_and_other_classes_are_refused() -> None:
    for value, reason in [
        (np.array([object()]), "Python objects"),
        (np.zeros(2, dtype=[("a", "i4")]), "dtype"),
        (np.ma.masked_array([1], [True]), "class of its own"),
        (np.zeros(2, dtype="V0"), "have no bytes"),
    ]:
        with pytest.raises(UntransferableValueError, match=reason):
            encode(value, codecs=CODECS)


def test_named_results_of_torch_come_back_without_permission() -> None:
    result = travel(torch.topk(torch.tensor([1.0, 3.0, 2.0]), 2), limits=Limits())
    assert type(result) is torch.return_types.topk
    assert result.indices.tolist() == [1, 2]


def test_a_single_element_of_any_stride_travels() -> None:
    value = torch.tensor([[1.0, 2.0]]).t()[1:, :].expand(1, 1)
    strided = torch.as_strided(torch.tensor([1.0, 2.0, 3.0]), (1,), (2,), 1)
    (one, other) = decode(encode([value, strided], codecs=CODECS), codecs=CODECS)
    assert one.tolist() == [[2.0]]
    assert other.tolist() == [2.0]
