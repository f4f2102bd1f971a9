"""Traces on the caller's side: blocks are captured, run by a backend, and their saves brought home."""

from nnsight._trace.block_tracer import BlockTracer
from nnsight._trace.blocks import RequestBlocks
from nnsight._trace.cache import Cache
from nnsight._trace.edit import Edit, EditResult
from nnsight._trace.model import TracedModel
from nnsight._trace.request import Outcome, Request, join_sequences
from nnsight._trace.session import Session
from nnsight._trace.tracer import Tracer

__all__ = [
    "BlockTracer",
    "Cache",
    "Edit",
    "EditResult",
    "Outcome",
    "Request",
    "RequestBlocks",
    "Session",
    "TracedModel",
    "Tracer",
    "join_sequences",
]
