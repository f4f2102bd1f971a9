"""Traces that belong together: `with model.session() as session:`."""

from __future__ import annotations

import ast
import copy
import sys
from contextvars import ContextVar, Token
from types import CodeType, FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from nnsight._capture import BlockSource, block_names, find_block
from nnsight._capture.source import parse_statement
from nnsight.errors import CaptureError, InvalidRequestError

if TYPE_CHECKING:
    from nnsight._trace.model import TracedModel

_open: ContextVar[tuple[Session, ...]] = ContextVar("nnsight.sessions", default=())


class Session:
    """Traces of one model that run one after the other, each at the end of its own block.

    Attributes:
        model: The model whose traces belong to the session.
        keywords: Keywords of every trace that does not give its own.
        saves: Everything that the traces saved, by variable; of a name that several saved, the latest value.
    """

    def __init__(self, model: TracedModel, keywords: dict[str, Any]) -> None:
        """Prepare a session."""
        self.model = model
        self.keywords = keywords
        self.saves: dict[str, object] = {}
        self._code: CodeType | None = None
        self._body: list[ast.stmt] = []
        self._token: Token[tuple[Session, ...]] | None = None

    def __enter__(self) -> Session:
        """Begin the session.

        Raises:
            InvalidRequestError: The model has an open session.
        """
        if session_of(self.model) is not None:
            raise InvalidRequestError("sessions of one model do not nest: end the session that is open, or use it")
        frame = sys._getframe(1)
        try:
            self._body = parse_statement(find_block(frame)).body
            self._code = frame.f_code
        except CaptureError:
            # Without its source, the session cannot tell what its code reads: traces in it bring home what they save.
            self._body = []
        self._token = _open.set((*_open.get(), self))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End the session."""
        if self._token is not None:
            _open.reset(self._token)
            self._token = None

    def names_read(self, frame: FrameType, trace: BlockSource) -> frozenset[str]:
        """Return the names that code of the session reads outside a trace, which come home from it without a save.

        Args:
            frame: Where the trace stands.
            trace: The trace.
        """
        if frame.f_code is not self._code:
            return frozenset()
        body = [_Without(trace.first_line).visit(statement) for statement in copy.deepcopy(self._body)]
        return block_names(body).loaded


class _Without(ast.NodeTransformer):
    """Take the statement at a line out of the code around it, but keep what its header names."""

    def __init__(self, line: int) -> None:
        self._line = line

    def visit_With(self, node: ast.With) -> ast.AST:
        if node.lineno != self._line:
            return self.generic_visit(node)
        return ast.copy_location(ast.With(items=node.items, body=[ast.Pass()]), node)


def session_of(model: TracedModel) -> Session | None:
    """Return the open session of a model."""
    return next((session for session in reversed(_open.get()) if session.model is model), None)
