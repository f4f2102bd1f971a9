"""Serve the values of a forward to the blocks that wait for them.

A module's `forward` is replaced on its instance while a block waits for it, and restored when nobody does: a module
that nobody asked for runs untouched. Replacing `forward`, rather than registering hooks, also reaches modules whose
class calls `self.forward` by itself, as classes compiled by vLLM do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import get_ident
from typing import TYPE_CHECKING, Any, Protocol

from nnsight._interleave.location import Location
from nnsight._interleave.run import RESULT, BlockRun
from nnsight._interleave.visit import NOTHING

if TYPE_CHECKING:
    from torch import nn

    from nnsight._interleave.scope import Scope


class Tree(Protocol):
    """What the interleaver asks of the tree of envoys."""

    def module(self, path: str) -> nn.Module:
        """Return the module at a path."""

    def gate(self, path: str) -> str | None:
        """Return the path of the parent that tells the calls of a shared module apart, or None."""

    def inner_gates(self, path: str) -> list[str]:
        """Return the gates of the module's other paths that lie inside this one's."""


class Site:
    """One module that blocks wait for, and its replaced `forward`."""

    __slots__ = ("_hub", "_module", "_original", "_prior", "armed", "call", "depth", "external", "inputs", "outputs")

    def __init__(self, module: nn.Module, hub: Interleaver) -> None:
        """Prepare a site; nothing is replaced before `arm`."""
        self._module = module
        self._hub = hub
        self._prior: Callable[..., object] | None = None
        self._original: Callable[..., object] = module.forward
        self.armed = False
        self.inputs: list[BlockRun] = []
        self.outputs: list[BlockRun] = []
        # How many calls of the module are under way.
        self.depth = 0
        # The arguments of the innermost of them.
        self.call: tuple[tuple[Any, ...], dict[str, Any]] | None = None
        # Whoever calls the module does it through `around`.
        self.external = False

    def arm(self) -> None:
        """Replace the module's `forward`."""
        self.armed = True
        if not self.external:
            self._prior = self._module.__dict__.get("forward")
            self._original = self._module.forward
            self._module.__dict__["forward"] = self.forward

    def disarm(self) -> None:
        """Restore the module's `forward`."""
        self.armed = False
        if not self.external:
            if self._prior is None:
                del self._module.__dict__["forward"]
            else:
                self._module.__dict__["forward"] = self._prior
            self._prior = None

    def forward(self, *args: Any, **kwargs: Any) -> object:
        """Stand in for the module's `forward`."""
        if get_ident() != self._hub.thread:
            return self._original(*args, **kwargs)
        return self.around(self._original, args, kwargs)

    def around(self, original: Callable[..., object], args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        """Run `original` between serving the module's inputs and its output."""
        self.depth += 1
        outer = self.call
        try:
            if self.inputs:
                args, kwargs = self._hub.serve_inputs(self, args, kwargs)
            self.call = (args, kwargs)
            output = original(*args, **kwargs)
        finally:
            self.depth -= 1
            self.call = outer
        if self.outputs:
            output = self._hub.serve_output(self, output)
        return output


class Interleaver:
    """The blocks of a batch, and where each of them waits.

    A block that was served inside a module may go on to wait for the output of that module, whose call is under way:
    so the modules around a wait are replaced with it, and stay so to the end of the step.

    Not thread-safe: one interleaver belongs to the thread that runs the forward.
    """

    def __init__(self, tree: Tree, *, after_turn: Callable[[BlockRun], None] | None = None) -> None:
        """Serve the modules of `tree`.

        Args:
            tree: The modules by path.
            after_turn: Called with a block whenever it has had its turn; may raise to leave the forward.
        """
        self._tree = tree
        self._after_turn = after_turn
        self.thread = get_ident()
        self._sites: dict[int, Site] = {}
        self._lines: dict[str, tuple[Site, ...]] = {}
        self._gates: dict[str, tuple[Site | None, tuple[Site, ...]]] = {}
        self._armed: list[Site] = []
        self._values: dict[str, list[BlockRun]] = {}
        self._scopes: dict[BlockRun, Scope] = {}

    def begin_step(self, scopes: Mapping[BlockRun, Scope], steps: Mapping[BlockRun, int]) -> None:
        """Enter a step of the engine: each block owns its scope of the batch."""
        self.thread = get_ident()
        self._scopes = dict(scopes)
        for run, scope in scopes.items():
            run.call_under_way = self.call_under_way
            run.begin_step(steps[run], scope)
            self._enlist(run)

    def end_step(self) -> None:
        """Leave the step: what a block still waits for in it was missed."""
        for run in self._scopes:
            run.end_step()
        self.disarm()

    def disarm(self) -> None:
        """Restore every module and forget who waits."""
        for site in self._armed:
            site.disarm()
            site.inputs.clear()
            site.outputs.clear()
            site.depth = 0
            site.call = None
        self._armed.clear()
        self._values.clear()
        self._scopes = {}

    def serve_inputs(self, site: Site, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """Serve the blocks that wait for a module's arguments."""
        for run in self._due(site.inputs):
            while run in site.inputs:
                site.inputs.remove(run)
                wait = run.wait
                assert type(wait) is Location
                if wait.side == "inputs":
                    args, kwargs = run.serve((args, kwargs), self._scopes[run])  # type: ignore[misc]
                elif args:
                    args = (run.serve(args[0], self._scopes[run]), *args[1:])
                elif kwargs:
                    name = next(iter(kwargs))
                    kwargs = {**kwargs, name: run.serve(kwargs[name], self._scopes[run])}
                else:
                    run.serve(NOTHING, self._scopes[run])
                self._enlist(run)
        return args, kwargs

    def serve_output(self, site: Site, output: object) -> object:
        """Serve the blocks that wait for a module's output."""
        for run in self._due(site.outputs):
            site.outputs.remove(run)
            output = run.serve(output, self._scopes[run])
            self._enlist(run)
        return output

    def offer(self, name: str, live: object, scopes: Mapping[BlockRun, Scope]) -> object:
        """Serve a value of the request, such as its logits, to the blocks that wait for it.

        Returns:
            What the model goes on with.
        """
        for run in list(self._values.get(name, ())):
            if run in scopes:
                self._values[name].remove(run)
                live = run.serve(live, scopes[run])
                self._enlist(run)
        return live

    def site(self, path: str) -> Site:
        """Return the site of the module at `path`."""
        module = self._tree.module(path)
        site = self._sites.get(id(module))
        if site is None:
            site = self._sites[id(module)] = Site(module, self)
        return site

    def call_under_way(self, path: str) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Return the arguments of a module's call that is under way, where blocks wait for something in it."""
        return self.site(path).call

    def _due(self, runs: list[BlockRun]) -> list[BlockRun]:
        due = []
        for run in runs:
            wait = run.wait
            assert type(wait) is Location
            # A module shared by several parents is served where the parent that the block named is calling it.
            gate, inner = self._gates[wait.path]
            if gate is None or (gate.depth and not any(site.depth for site in inner)):
                due.append(run)
        return due

    def _enlist(self, run: BlockRun) -> None:
        if self._after_turn is not None:
            self._after_turn(run)
        wait = run.wait
        if type(wait) is not Location or wait is RESULT:
            return
        if wait.side == "value":
            self._values.setdefault(wait.path, []).append(run)
            return
        line = self._lines.get(wait.path)
        if line is None:
            line = self._line(wait.path)
        (line[0].outputs if wait.side == "output" else line[0].inputs).append(run)
        for site in line:
            if not site.armed:
                site.arm()
                self._armed.append(site)

    def _line(self, path: str) -> tuple[Site, ...]:
        """Return the site of a module and those of the modules around it, and find its gate."""
        parts = path.split(".") if path else []
        line = tuple(self.site(".".join(parts[:length])) for length in range(len(parts), -1, -1))
        gate = self._tree.gate(path)
        inner = tuple(self.site(other) for other in self._tree.inner_gates(path))
        self._gates[path] = (None if gate is None else self.site(gate), inner)
        self._lines[path] = line = (*line, *inner)
        return line
