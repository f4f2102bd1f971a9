"""What a backend is made of: the classes and functions that it subclasses, calls and is given.

A backend is a subclass of `TracedModel` that a plugin registers with `register_backends`. It is given a `Request` for
each invoke and returns an `Outcome` for each; those of a request's several sequences are joined by `join_sequences`.

Where the model runs, the `Program` of a request is started as a `BlockRun`, an `Interleaver` serves it the values of
each forward, and `finish_run` tells what became of it. Where that is another process, programs and outcomes travel as
bytes.

This module, `nnsight.hookspecs`, `nnsight.events`, `nnsight.errors` and `nnsight.testing` are all that a backend needs.
"""

from __future__ import annotations

from nnsight._envoy import ModelTree, module_of
from nnsight._interleave import BlockRun, Budget, Interleaver, Receipt, RowScope, Scope, WholeScope
from nnsight._program import Program
from nnsight._trace import Edit, EditResult, Outcome, Request, RequestBlocks, TracedModel, join_sequences
from nnsight._trace.messages import decode_program, encode_program
from nnsight._trace.outcomes import decode_outcome, encode_outcome, finish_run

__all__ = [
    "BlockRun",
    "Budget",
    "Edit",
    "EditResult",
    "Interleaver",
    "ModelTree",
    "Outcome",
    "Program",
    "Receipt",
    "Request",
    "RequestBlocks",
    "RowScope",
    "Scope",
    "TracedModel",
    "WholeScope",
    "decode_outcome",
    "decode_program",
    "encode_outcome",
    "encode_program",
    "finish_run",
    "join_sequences",
    "module_of",
]
