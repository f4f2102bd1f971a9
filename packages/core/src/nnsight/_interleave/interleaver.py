"""Serve the values of a forward to the blocks that wait for them.

A module's `forward` is replaced on its instance while a block waits for it, and restored when nobody does: a module
that nobody asked for runs untouched. Replacing `forward`, rather than registering hooks, also reaches modules whose
class calls `self.forward` by itself, as classes compiled by vLLM do, and makes room for a forward with points in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from greenlet import getcurrent, greenlet
from torch import nn

from nnsight._interleave.location import Location
from nnsight._interleave.passage import Passage, Point, Site
from nnsight._interleave.turns import RESULT, executing_run
from nnsight._interleave.visit import NOTHING

if TYPE_CHECKING:
    from nnsight._interleave.ahead import ReadAhead
    from nnsight._interleave.recording import Recording
    from nnsight._interleave.run import BlockRun
    from nnsight._interleave.scope import Scope


class Tree(Protocol):
    """What the interleaver asks of the tree of envoys."""

    def module(self, path: str) -> nn.Module:
        """Return the module at a path."""

    def gate(self, path: str) -> str | None:
        """Return the path of the parent that tells the calls of a shared module apart, or None."""

    def inner_gates(self, path: str) -> list[str]:
        """Return the gates of the module's other paths that lie inside this one's."""

    def keeps_state(self, module: nn.Module) -> bool:
        """Tell whether a call of the module leaves something behind for later steps."""


class Interleaver:
    """The blocks of a batch, and where each of them waits.

    A block that was served inside a module may go on to wait for the output of that module, whose call is under way:
    so the modules around a wait are replaced with it, and stay so to the end of the step.

    Not thread-safe: one interleaver belongs to the thread that runs the forward.

    Attributes:
        turn: Where the forward runs. A module that another thread calls, or a block by itself, is nobody's visit.
    """

    def __init__(self, tree: Tree, *, after_turn: Callable[[BlockRun], None] | None = None) -> None:
        """Serve the modules of `tree`.

        Args:
            tree: The modules by path.
            after_turn: Called with a block whenever it has had its turn; may raise to leave the forward.
        """
        self._tree = tree
        self._after_turn = after_turn
        self.turn: greenlet = getcurrent()
        self._sites: dict[int, Site] = {}
        self._lines: dict[str, tuple[Site, ...]] = {}
        # Of modules that several parents share: what tells their calls apart.
        self._gates: dict[str, tuple[Site, tuple[Site, ...]]] = {}
        self._armed: list[Site] = []
        self._values: dict[str, list[BlockRun]] = {}
        self._scopes: dict[BlockRun, Scope] = {}
        # Blocks whose values of this step are copied ahead of them.
        self._behind: list[tuple[BlockRun, ReadAhead]] = []
        # Whether requests have several blocks, which take turns in order.
        self._ranked = False

    def begin_step(self, scopes: Mapping[BlockRun, Scope], steps: Mapping[BlockRun, int]) -> None:
        """Enter a step of the engine: each block owns its scope of the batch."""
        self.turn = getcurrent()
        self._scopes = dict(scopes)
        self._ranked = any([run.rank for run in scopes])
        for run, scope in scopes.items():
            run.tree = self._tree
            run.num_armed = 0
            self._record(run)
            run.call_under_way = self.call_under_way
            run.begin_step(steps[run], scope)
            if run.plan_ahead is None or not self._read_ahead(run, scope):
                self.enlist(run)

    def end_step(self) -> None:
        """Leave the step: what a block still waits for in it was missed."""
        self._catch_up()
        for run in self._scopes:
            run.end_step()
        self.disarm()

    def disarm(self) -> None:
        """Restore every module and forget who waits."""
        for site in self._armed:
            site.disarm()
        self._armed.clear()
        self._values.clear()
        self._behind.clear()
        self._scopes = {}

    def close(self) -> None:
        """Serve nobody any more, and forget the modules, whose sites lead back here."""
        self.disarm()
        self._after_turn = None
        self._sites.clear()
        self._lines.clear()
        self._gates.clear()

    def serve_inputs(self, passage: Passage, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """Serve the blocks that wait for the arguments of a call, each location once."""
        for run in self.due(passage.inputs):
            scope = self.scope_at(passage, run)
            served: list[object] = []
            while run in passage.inputs and run.wait not in served and self._concerns(run):
                passage.inputs.remove(run)
                wait = run.wait
                assert type(wait) is Location
                served.append(wait)
                if wait.side == "inputs":
                    args, kwargs = run.serve((args, kwargs), scope)  # type: ignore[misc]
                elif args:
                    args = (run.serve(args[0], scope), *args[1:])
                elif kwargs:
                    name = next(iter(kwargs))
                    kwargs = {**kwargs, name: run.serve(kwargs[name], scope)}
                else:
                    run.serve(NOTHING, scope)
                self.enlist(run)
        return args, kwargs

    def serve_output(self, passage: Passage, output: object) -> object:
        """Serve the blocks that wait for what a call returns."""
        for run in self.due(passage.outputs):
            passage.outputs.remove(run)
            output = run.serve(output, self.scope_at(passage, run))
            self.enlist(run)
        return output

    def record_inputs(self, site: Site, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Record what a module is given."""
        for run, path, recording in self._recording(site):
            try:
                recording.begin_call(path, run.step, (args, kwargs), self._scopes[run])
            except Exception as error:  # noqa: BLE001 - it belongs to the request that records, never to the model
                self._fail(run, error)

    def record_output(self, site: Site, output: object) -> None:
        """Record what the model goes on with of what a module returned."""
        for run, path, recording in self._recording(site):
            try:
                recording.end_call(path, run.step, output, self._scopes[run])
            except Exception as error:  # noqa: BLE001 - as above
                self._fail(run, error)

    def awaits(self, name: str) -> bool:
        """Tell whether a block waits for a value of its request, such as its logits, which the model has got to."""
        self._catch_up()
        return bool(self._values.get(name))

    def offer(self, name: str, live: object, scopes: Mapping[BlockRun, Scope]) -> object:
        """Serve a value of the request, such as its logits, to the blocks that wait for it.

        Returns:
            What the model goes on with.
        """
        self._catch_up()
        for run in self._in_order(list(self._values.get(name, ()))):
            if run in scopes:
                self._values[name].remove(run)
                live = run.serve(live, scopes[run])
                self.enlist(run)
        return live

    def site(self, path: str) -> Site:
        """Return the site of the module at `path`."""
        module = self._tree.module(path)
        site = self._sites.get(id(module))
        if site is None:
            site = self._sites[id(module)] = Site(module, self, path)
        return site

    def call_under_way(self, path: str) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Return the arguments of a module's call that is under way, where blocks wait for something in it."""
        return self.site(path).call

    def scope_at(self, passage: Passage, run: BlockRun) -> Scope:
        """Return the part of a call's values that a block's request owns in this step, and how edits of it land."""
        scope = self._scopes[run]
        return scope.apart() if passage.apart else scope

    def is_called_by_a_block(self) -> bool:
        """Tell whether one of the blocks is calling the module itself, which is nobody's visit."""
        return executing_run() in self._scopes

    def keeps_state(self, passage: Passage, called: object) -> bool:
        """Tell whether a call leaves something behind for later steps, judging a function by the module around it."""
        owner = getattr(called, "__self__", None) if isinstance(passage, Point) else None
        known = next((each for each in (called, owner) if isinstance(each, nn.Module)), None)
        return self._tree.keeps_state(self._tree.module(passage.path) if known is None else known)

    def due(self, runs: list[BlockRun]) -> list[BlockRun]:
        """Return those of the blocks waiting at a module, or in it, whom this call of it concerns."""
        return self._in_order([run for run in runs if self._concerns(run)] if self._gates else runs.copy())

    def _in_order(self, runs: list[BlockRun]) -> list[BlockRun]:
        # A block that was served elsewhere may have come to wait here after another of its request.
        return sorted(runs, key=_rank_of) if self._ranked and len(runs) > 1 else runs

    def _concerns(self, run: BlockRun) -> bool:
        wait = run.wait
        assert type(wait) is Location
        return self._is_called_as(wait.path)

    def _is_called_as(self, path: str) -> bool:
        # A module shared by several parents is served where the parent that the block named is calling it.
        gate = self._gates.get(path)
        return gate is None or (gate[0].depth > 0 and not any(site.depth for site in gate[1]))

    def enlist(self, run: BlockRun) -> None:
        """Note what a block waits for now that it has had its turn."""
        if self._after_turn is not None:
            self._after_turn(run)
        if len(run.recordings) > run.num_armed:
            self._record(run)
        wait = run.wait
        if type(wait) is not Location or wait is RESULT:
            return
        if wait.side == "value":
            self._values.setdefault(wait.path, []).append(run)
            return
        line = self._lines.get(wait.path)
        if line is None:
            line = self._line(wait.path)
        line[0].enlist(run, wait)
        self._arm(line)
        if run.looks_into is not None:
            for site in line[1:]:
                if run.looks_into(site.path.rpartition(".")[2]):
                    site.looked_into = True

    def _read_ahead(self, run: BlockRun, scope: Scope) -> bool:
        """Have what a block will read in this step copied as the model passes it, where that can be told."""
        ahead = None if self._ranked else run.ahead_in_step(scope)
        if ahead is None:
            return False
        sites = [(self._lines.get(path) or self._line(path))[0] for path in ahead.keepers]
        if not self._gates.keys().isdisjoint(ahead.keepers):
            run.plan_ahead = None
            return False
        for site, keeper in zip(sites, ahead.keepers.values(), strict=True):
            site.keepers.append(keeper)
        self._arm(sites)
        self._behind.append((run, ahead))
        return True

    def _catch_up(self) -> None:
        """Let blocks run through what was copied ahead of them."""
        behind, self._behind = self._behind, []
        for run, ahead in behind:
            run.catch_up(ahead)
            self.enlist(run)

    def _arm(self, sites: Iterable[Site]) -> None:
        for site in sites:
            if not site.armed:
                site.arm()
                self._armed.append(site)

    def _record(self, run: BlockRun) -> None:
        """Arm the modules whose calls are recorded for a block."""
        first, run.num_armed = run.num_armed, len(run.recordings)
        if not run.records:
            return
        for recording in run.recordings[first:]:
            for path in recording.paths:
                site, *around = self._lines.get(path) or self._line(path)
                site.records.append((run, path, recording))
                self._arm([site])
                if path in self._gates:
                    self._arm(around)

    def _recording(self, site: Site) -> list[tuple[BlockRun, str, Recording]]:
        return [each for each in site.records if each[0].records and self._is_called_as(each[1])]

    def _fail(self, run: BlockRun, error: Exception) -> None:
        run.fail(error)
        self.enlist(run)

    def _line(self, path: str) -> tuple[Site, ...]:
        """Return the site of a module and those of the modules around it, and find its gate."""
        parts = path.split(".") if path else []
        line = tuple(self.site(".".join(parts[:length])) for length in range(len(parts), -1, -1))
        gate = self._tree.gate(path)
        inner = tuple(self.site(other) for other in self._tree.inner_gates(path))
        if gate is not None:
            self._gates[path] = (self.site(gate), inner)
        self._lines[path] = line = (*line, *inner)
        return line


def _rank_of(run: BlockRun) -> int:
    return run.rank
