"""Values as bytes: what a block captures or saves, on its way between processes.

A message is a mark and a version, a msgpack tree, and the tensors' bytes as safetensors. Nothing in it is code: reading
one imports a module or makes an object of a class only where the reader's limits allow it.
"""

from __future__ import annotations

from nnsight._wire.buffer_reader import Buffer, Fetch
from nnsight._wire.checks import fields, items_of, part
from nnsight._wire.codecs import default_codecs
from nnsight._wire.decoder import Decoder, decode
from nnsight._wire.encoder import Encoder, KeyStep, encode, encode_parts
from nnsight._wire.limits import Limits
from nnsight._wire.message import Parts
from nnsight._wire.table import CodecTable, ValueCodec

__all__ = [
    "Buffer",
    "CodecTable",
    "Decoder",
    "Encoder",
    "Fetch",
    "KeyStep",
    "Limits",
    "Parts",
    "ValueCodec",
    "decode",
    "default_codecs",
    "encode",
    "encode_parts",
    "fields",
    "items_of",
    "part",
]
