"""Tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from nnsight._wire.buffers import ENTRY_NAMES
from nnsight._wire.checks import fields, part
from nnsight.errors import WireError

if TYPE_CHECKING:
    from nnsight._wire.decoder import Decoder
    from nnsight._wire.encoder import Encoder
    from nnsight._wire.table import CodecTable

_REQUIRES_GRAD, _PARAMETER = 1, 2
_PLAIN_TENSOR = "Turn it into a plain tensor first, such as with `.to_dense()`, `.dequantize()` or `.full_tensor()`."


class TensorCodec:
    """Dense tensors: their values, dtype, shape and device, and whether a leaf requires gradients.

    Gradients, hooks and attributes set on the tensor stay behind. Views of one storage become separate tensors.
    """

    tag = "tensor"

    def encode(self, value: torch.Tensor, encoder: Encoder) -> object:
        """Write where the values are, then what is unusual about the tensor."""
        flags = 0
        if type(value) is not torch.Tensor:
            value = self._plain(value, encoder)
            flags = _PARAMETER
        if value.layout is not torch.strided or value.dtype not in ENTRY_NAMES:
            raise encoder.refusal(value, f"it is a tensor of {value.layout} and {value.dtype}", _PLAIN_TENSOR)
        if value.requires_grad and value.is_leaf:
            flags |= _REQUIRES_GRAD
        if value.is_cpu:
            place = encoder.buffers.add(value)
            if flags:
                place.append(flags)
            return place
        if value.is_meta:
            raise encoder.refusal(value, "it is a tensor of the meta device, without values", _PLAIN_TENSOR)
        if not encoder.copy_to_cpu:
            reason = f"it is on {value.device}, and copies from there are off"
            raise encoder.refusal(value, reason, "Call `.cpu()` on it.")
        place = encoder.buffers.add(value)
        place += (flags, encoder.buffers.device_text(value.device))
        return place

    def decode(self, payload: object, decoder: Decoder) -> torch.Tensor:
        """Read the values, and restore what is unusual about the tensor."""
        parts = fields(payload, 3, 5)
        tensor = decoder.buffers.tensor(parts[0], parts[1], parts[2])
        flags = part(parts[3], int) if len(parts) > 3 else 0
        if not 0 <= flags <= _REQUIRES_GRAD | _PARAMETER:
            raise WireError(f"a tensor of the message has the unknown flags {flags}")
        if decoder.buffers.device_of is not None:
            tensor = _moved(tensor, decoder.buffers.device_of(part(parts[4], str) if len(parts) > 4 else "cpu"))
        if flags & _PARAMETER:
            tensor = torch.nn.Parameter(tensor, requires_grad=bool(flags & _REQUIRES_GRAD))
        elif flags:
            tensor.requires_grad_()
        return tensor

    def _plain(self, value: torch.Tensor, encoder: Encoder) -> torch.Tensor:
        """Return a parameter without the class that another package gave it, which holds no data of its own."""
        kind = type(value)
        if kind is torch.nn.Parameter:
            return value
        own_dispatch = kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
        if issubclass(kind, torch.nn.Parameter) and not own_dispatch and not torch.nn.parameter.is_lazy(value):
            plain = torch.Tensor.detach(value).as_subclass(torch.Tensor)
            return torch.nn.Parameter(plain, requires_grad=value.requires_grad)
        raise encoder.refusal(value, "it is a tensor of a class of its own", _PLAIN_TENSOR)


def _moved(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    if device.type != "cuda" or not tensor.numel():
        return tensor.to(device)
    # From pinned memory the copy waits for nothing that the device has yet to do.
    return tensor.pin_memory().to(device, non_blocking=True)


def add_tensors(table: CodecTable) -> None:
    """Add the codecs of this module to a table.

    Args:
        table: The table.
    """
    table.register(torch.Tensor, TensorCodec())
