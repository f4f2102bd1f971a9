"""Finding the block that a frame is entering."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, NamedTuple

from nnsight._capture.bytecode import Instruction, Span, instructions
from nnsight._capture.codes import PerCode
from nnsight._capture.derived import source_of
from nnsight._capture.leaving import Exit, find_exit
from nnsight._capture.outline import Located, first_line, outline, source_outline
from nnsight._capture.source import BlockSource, lines_of
from nnsight._capture.texts import candidate_texts
from nnsight._capture.verification import FUTURE_FLAGS, compiles_to, source_missing
from nnsight.errors import CaptureError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import CodeType, FrameType


class Site(NamedTuple):
    """One place in the running code that enters a block, with the source of the block and the way out of its body."""

    block: BlockSource
    exit: Exit


_sites: PerCode[dict[int, Site]] = PerCode()


def find_block(frame: FrameType) -> BlockSource:
    """Find the source of the `with` statement that a frame is entering.

    Args:
        frame: The frame that executes the `with` statement, while it calls `__enter__`.

    Returns:
        The source of the whole statement.

    Raises:
        SourceNotFoundError: There is no source text, or none that the running code was compiled from.
        CaptureError: The object is not entered by a plain `with` statement, or it is unclear by which one.
    """
    return find_site(frame).block


def find_site(frame: FrameType) -> Site:
    """Find the block that a frame is entering, and the way out of its body. See `find_block`."""
    code = frame.f_code
    sites = _sites.get(code)
    if sites is not None:
        site = sites.get(frame.f_lasti)
        if site is not None:
            return site
    site = _find_new_site(frame)
    if sites is None:
        sites = _sites.set(code, {})
    sites[frame.f_lasti] = site
    return site


def _find_new_site(frame: FrameType) -> Site:
    code = frame.f_code
    place = f"{code.co_filename}:{frame.f_lineno}"
    listing = instructions(code)
    index = next((number for number, each in enumerate(listing) if each.offset == frame.f_lasti), -1)
    entering = _entering(listing, index)
    if entering == "async":
        raise CaptureError(f"the block at {place} is entered by `async with`; use a plain `with` statement")
    if entering is None:
        raise CaptureError(
            f"the context manager was entered by a call at {place}, so there is no block to capture; enter it by "
            "`with ... as ...:` instead of ExitStack.enter_context or __enter__()"
        )
    compiled_from = source_of(code)
    if compiled_from is not None:
        matches = _matches(source_outline(compiled_from).blocks, listing, index)
        if len(matches) == 1:
            return _site(code, compiled_from.text, compiled_from.first_line, listing, index, matches[0])
    texts = 0
    for text in candidate_texts(code, frame.f_globals):
        texts += 1
        found = outline(text)
        if found is None:
            continue
        matches = _matches((each for each in found.blocks if _in_scope(each, code)), listing, index)
        verified = [match for match in matches if compiles_to(code, match[0], found, whole=False)]
        if len(verified) > 1:
            raise CaptureError(f"several with items at {place} match the running code; put each on a line of its own")
        if verified:
            return _site(code, text, 1, listing, index, verified[0])
    raise source_missing(f"the block at {place}", texts)


def _entering(listing: Sequence[Instruction], index: int) -> str | None:
    if index < 0:
        return None
    instruction = listing[index]
    # Python 3.14 looks the method up by an instruction of its own, and then calls it.
    if instruction.name == "CALL" and index > 0 and listing[index - 1].name == "LOAD_SPECIAL":
        return {0: "with", 2: "async"}.get(listing[index - 1].argument)
    return {"BEFORE_WITH": "with", "BEFORE_ASYNC_WITH": "async"}.get(instruction.name)


def _matches(
    blocks: Iterable[Located], listing: Sequence[Instruction], index: int
) -> list[tuple[Located, ast.With, int]]:
    """The items of `with` statements that stand where the code enters one."""
    entered = listing[index].span
    # The instruction that finished the value of the item.
    skipped = {"COPY", "LOAD_SPECIAL", "SWAP"}
    previous = next((each.span for each in reversed(listing[:index]) if each.name not in skipped), entered)
    matches = []
    for located in blocks:
        node = located.node
        if not isinstance(node, ast.With):
            continue
        statement = Span.of(node)
        for number, item in enumerate(node.items):
            expression = Span.of(item.context_expr)
            # Up to Python 3.12 the instruction has the position of the statement, later that of the expression.
            if entered.exact:
                same = entered == expression or (entered == statement and previous.inside(expression))
            else:
                same = entered.line in (statement.line, expression.line) and previous.inside(expression)
            if same:
                matches.append((located, node, number))
    if len(matches) > 1 and not entered.exact:
        # Without columns, items on one line are told apart by their order, if each was compiled just once.
        peers = [number for number, each in enumerate(listing) if _entering(listing, number) and each.span == entered]
        if len(peers) == len(matches):
            return [matches[peers.index(index)]]
    return matches


def _in_scope(located: Located, code: CodeType) -> bool:
    scope = located.scope
    if scope is None:
        # IPython names the code of a cell `<cell line: 1>`.
        return code.co_name.startswith("<")
    return not isinstance(scope, ast.Lambda) and scope.name == code.co_name and first_line(scope) == code.co_firstlineno


def _site(
    code: CodeType,
    text: str,
    text_line: int,
    listing: Sequence[Instruction],
    index: int,
    match: tuple[Located, ast.With, int],
) -> Site:
    located, node, item = match
    before = text_line - 1
    block = BlockSource(
        filename=code.co_filename,
        first_line=node.lineno,
        text=lines_of(text, node.lineno - before, (node.end_lineno or node.lineno) - before),
        item=item,
        function_name=code.co_name,
        class_name=located.class_name,
        flags=code.co_flags & FUTURE_FLAGS,
    )
    return Site(block, find_exit(code, listing, index, node, item))
