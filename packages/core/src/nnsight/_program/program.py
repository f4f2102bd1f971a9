"""The program: a captured block with the values that it needs."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

from nnsight._capture import (
    MISSING,
    BlockSource,
    block_names,
    compile_block,
    counting_helpers,
    parse_block,
    visible_value,
)
from nnsight._capture.order import names_read_first
from nnsight._envoy import Envoy, Source, SourceOp
from nnsight._interleave import BlockRun, Budget, ReadAhead
from nnsight._program.analysis import Analyses
from nnsight._program.containers import difference, snapshot
from nnsight._program.effects import Effects, summarize
from nnsight._program.inspected import looks_into
from nnsight._program.pending import Pending
from nnsight._program.saves import SaveBook, block_helpers, save_names
from nnsight._program.static_reads import static_outputs
from nnsight._program.unwinding import call_above_unwinding

_HELPERS = tuple(block_helpers())


@dataclass(frozen=True)
class Program:
    """A block as data.

    Attributes:
        source: The block's text and where it stands.
        parameters: Names that the block binds itself and that are bound outside too: they begin with their value.
        values: Values of the names that the block loads.
        returned: Names of containers saved outside the block, whose final state comes home.
        effects: What the block reads and writes.
        exports: Variables of the block that later invokes of its trace need, saved or not.
        kept: Variables of the block that come home without a save.
    """

    source: BlockSource
    parameters: tuple[str, ...]
    values: Mapping[str, object]
    returned: tuple[str, ...]
    effects: Effects
    exports: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()

    @property
    def bound(self) -> frozenset[str]:
        """Names that the block binds."""
        return block_names(parse_block(self.source)).bound

    @property
    def pending(self) -> dict[str, Pending]:
        """Names whose values an earlier invoke of the trace binds."""
        found = {}
        for name, value in self.values.items():
            if type(value) is Pending:
                found[name] = value
        return found

    def keeping(self, names: frozenset[str]) -> Program:
        """Return the program that also brings home those of these variables that its block binds.

        Those that it reads before it binds them are read by the next run of the block.
        """
        read = names | names_read_first(parse_block(self.source))
        return replace(self._giving_back(), kept=tuple(sorted(self.bound & read)))

    def exporting(self, names: Iterable[str]) -> Program:
        """Return the program that also hands these variables to later invokes of its trace."""
        return replace(self._giving_back(), exports=tuple(sorted(names)))

    def _giving_back(self) -> Program:
        # Variables that others read may hold values of the model.
        return replace(self, effects=replace(self.effects, row_local=False, every_row=False))

    @classmethod
    def from_frame(
        cls,
        source: BlockSource,
        frame: FrameType,
        *,
        given: Mapping[str, object],
        value_names: frozenset[str],
        saved: Callable[[object], bool] = lambda value: False,
        analyses: Analyses | None = None,
    ) -> Program:
        """Capture a block that stands in a frame.

        Args:
            source: The block.
            frame: The frame that it would run in.
            given: Names that the trace itself binds, such as the one after `as`.
            value_names: Names of the request's own values, such as `logits`.
            saved: Tells whether a container was saved outside the block.
            analyses: What was told of other blocks of the trace.

        Raises:
            UnknownLocationError: The block names an op that its forward has not.
        """
        statements = parse_block(source)
        names = block_names(statements)
        values: dict[str, object] = {}
        shadowed = set()
        for name in names.loaded:
            value = given[name] if name in given else visible_value(frame, name)
            if value is MISSING:
                continue
            if value is not getattr(builtins, name, MISSING):
                values[name] = value
            elif name in names.bound:
                # The block may read the built-in before it binds the name; it finds the same where it runs.
                shadowed.add(name)
        _let_go(values, statements)
        parameters = tuple(sorted(name for name in names.bound if name in values or name in shadowed))
        # A container of several names changes once.
        first = {id(value): name for name, value in sorted(values.items(), reverse=True) if saved(value)}
        returned = tuple(sorted(first.values()))
        effects = (analyses or Analyses()).effects(source, statements, values, value_names)
        return cls(source, parameters, values, returned, effects)

    @classmethod
    def from_values(cls, source: BlockSource, values: Mapping[str, object]) -> Program:
        """Make a program of a source whose names are given rather than found in a frame."""
        statements = parse_block(source)
        return cls(source, (), dict(values), (), summarize(statements, values, frozenset()))

    def start(
        self,
        values: Mapping[str, object],
        *,
        grad: bool,
        inference: bool = False,
        read_only: bool,
        book: SaveBook | None = None,
        budget: Budget | None = None,
        ahead: bool = False,
    ) -> BlockRun:
        """Make a run of the block.

        Args:
            values: The values of the names, as they are where the block runs.
            grad: Grad mode that the block begins in.
            inference: Inference mode that the block begins in.
            read_only: Whether an edit is refused.
            book: Where saves are marked; a new one by default.
            budget: How much it may run and hold; the one that its functions were read with.
            ahead: Whether what it reads may be copied ahead of it, where its source tells what that is.
        """
        saves_book = book or SaveBook()
        body = _Body(self, values, saves_book, budget)
        run = BlockRun(body, grad=grad, inference=inference, read_only=read_only)
        run.saves = saves_book
        if ahead and read_only and self.effects.places is not None:
            run.plan_ahead = body.plan_ahead
        run.limit(budget, saves_book.values)
        run.looks_into = looks_into(self.effects.looks_into)
        return run


class _Body:
    """Runs a program's block once; a sweep has very many of them at a time."""

    __slots__ = ("_book", "_budget", "_program", "_values")

    def __init__(self, program: Program, values: Mapping[str, object], book: SaveBook, budget: Budget | None) -> None:
        self._program = program
        self._values = values
        self._book = book
        self._budget = budget

    def plan_ahead(self) -> ReadAhead | None:
        """Return what can be copied ahead of the block, if its source tells."""
        try:
            outputs = static_outputs(parse_block(self._program.source), self._values)
        except Exception:  # noqa: BLE001 - a value that the model refuses is the block's error, if it ever asks for it
            return None
        return ReadAhead(outputs) if outputs else None

    def __call__(self, run: BlockRun) -> None:
        call_above_unwinding(self._run, run)

    def _run(self, run: BlockRun) -> None:
        program, values = self._program, self._values
        before = {name: snapshot(values[name]) for name in program.returned}

        def keep(saves: tuple[dict[str, object], dict[str, object]], variables: Mapping[str, object]) -> None:
            named, run.unnamed = saves
            kept = {name: variables[name] for name in program.kept if name in variables}
            run.named = {**{name: value for name, value in kept.items() if not stays(value)}, **named}
            run.changes = {
                name: difference(before[name], variables[name]) for name in program.returned if name in variables
            }
            run.exports = {name: variables[name] for name in program.exports if name in variables}

        run_source(program.source, program.parameters, values, self._book, keep, self._budget)


def _let_go(values: dict[str, object], statements: Sequence[ast.stmt]) -> None:
    """Leave out the values of earlier invokes for names that the block binds before it reads them."""
    if not any(isinstance(value, Pending) for value in values.values()):
        return
    read_first = names_read_first(statements)
    for name, value in list(values.items()):
        if isinstance(value, Pending) and name not in read_first:
            if value.displaced is MISSING:
                del values[name]
            else:
                values[name] = value.displaced


def stays(value: object) -> bool:
    """Tell whether a variable holds no value of the request, such as a module or a function."""
    return isinstance(value, Envoy | Source | SourceOp | ModuleType) or callable(value)


Keep = Callable[[tuple[dict[str, object], dict[str, object]], Mapping[str, object]], None]


def run_source(
    source: BlockSource,
    parameters: tuple[str, ...],
    values: Mapping[str, object],
    book: SaveBook,
    keep: Keep,
    budget: Budget | None = None,
) -> None:
    """Run a block's source in a namespace of its own.

    Args:
        source: The block.
        parameters: Names that the block binds itself and that have a value beforehand.
        values: Values of all names that are no built-ins.
        book: Where saves are marked.
        keep: Receives the saves, and the block's variables at its end; also when the block raises.
        budget: What its loops and functions count for.
    """
    namespace: dict[str, Any] = {"__builtins__": builtins, "__name__": "__nnsight_block__"}
    namespace.update({name: value for name, value in values.items() if name not in parameters})
    helpers = block_helpers()
    counts = budget is not None and budget.steps is not None
    if budget is not None and budget.steps is not None:
        helpers |= counting_helpers(budget.steps.counts)
    code = compile_block(source, (*parameters, *helpers), save_names(values), counts=counts)
    function = FunctionType(code, namespace)
    variables: Mapping[str, object] = {}
    try:
        given = [values[name] if name in values else getattr(builtins, name) for name in parameters]
        variables = function(*given, *helpers.values())
    except BaseException as error:
        variables = variables_of(error, function)
        if isinstance(error, AttributeError) and error.name == "save":
            error.add_note(
                "`.save()` on any value works in the block and in functions that it names, not in methods of objects "
                "and in installed packages: write nnsight.save(value) there"
            )
        raise
    finally:
        found = {**values, **variables}
        keep(book.collect(found), found)


def run_in_place(source: BlockSource, frame: FrameType, entered: Callable[[CodeType], None]) -> dict[str, object]:
    """Run a block's source in the caller's process, seeing what its frame sees.

    Args:
        source: The block.
        frame: The frame that it stands in.
        entered: Told the code that runs.

    Returns:
        The variables that the block bound.
    """
    statements = parse_block(source)
    names = block_names(statements)
    known = {
        name: value
        for name in (names.loaded | names.bound)
        if (value := frame.f_locals.get(name, MISSING)) is not MISSING
    }
    at_top = frame.f_locals is frame.f_globals
    parameters = tuple(sorted(names.bound & set(known) if at_top else known))
    seen = {name: value for name in names.loaded if (value := visible_value(frame, name)) is not MISSING}
    function = FunctionType(compile_block(source, (*parameters, *_HELPERS), save_names(seen)), frame.f_globals)
    entered(function.__code__)
    variables: dict[str, object] = function(*[known[name] for name in parameters], *block_helpers().values())
    return {name: variables[name] for name in names.bound if name in variables}


def variables_of(error: BaseException, function: FunctionType) -> dict[str, object]:
    """Return the variables of `function` where `error` left it."""
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code is function.__code__:
            return dict(traceback.tb_frame.f_locals)
        traceback = traceback.tb_next
    return {}
