"""The table of codecs that every message starts from."""

from __future__ import annotations

from nnsight._wire.codecs.arrays import add_arrays
from nnsight._wire.codecs.containers import add_containers
from nnsight._wire.codecs.names import add_names
from nnsight._wire.codecs.objects import add_objects
from nnsight._wire.codecs.refusals import add_refusals
from nnsight._wire.codecs.scalars import add_scalars
from nnsight._wire.codecs.structs import add_structs
from nnsight._wire.codecs.tensors import add_tensors
from nnsight._wire.table import CodecTable


def default_codecs() -> CodecTable:
    """Make a table of the codecs for the types of Python, PyTorch and NumPy."""
    table = CodecTable()
    add_containers(table)
    add_scalars(table)
    add_tensors(table)
    add_arrays(table)
    add_refusals(table)
    add_names(table)
    add_structs(table)
    add_objects(table)
    return table
