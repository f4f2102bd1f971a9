"""Serve the values of a forward to the blocks that wait for them.

A module's `forward` is replaced on its instance while a block waits for it, and restored when nobody does: a module
that nobody asked for runs untouched. Replacing `forward`, rather than registering hooks, also reaches modules whose
class calls `self.forward` by itself, as classes compiled by vLLM do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import get_ident
from typing import Any, Protocol

from torch import nn

from nnsight._interleave.location import Location
from nnsight._interleave.run import RESULT, BlockRun
from nnsight._interleave.scope import Scope


class Tree(Protocol):
    """What the interleaver asks of the tree of envoys."""

    def module(self, path: str) -> nn.Module:
        """Return the module at a path."""

    def gate(self, path: str) -> str | None:
        """Return the path of the parent that tells the calls of a shared module apart, or None."""


class Site:
    """One module that blocks wait for, and its replaced `forward`."""

    __slots__ = ("_armed", "_hub", "_module", "_original", "_prior", "depth", "external", "holds", "inputs", "outputs")

    def __init__(self, module: nn.Module, hub: Interleaver) -> None:
        """Prepare a site; nothing is replaced before `arm`."""
        self._module = module
        self._hub = hub
        self._armed = False
        self._prior: Callable[..., object] | None = None
        self._original: Callable[..., object] = module.forward
        self.inputs: list[BlockRun] = []
        self.outputs: list[BlockRun] = []
        self.holds = 0
        self.depth = 0
        # Whoever calls the module does it through `around`.
        self.external = False

    def arm(self) -> None:
        """Replace the module's `forward`."""
        if not self._armed and not self.external:
            self._prior = self._module.__dict__.get("forward")
            self._original = self._module.forward
            self._module.__dict__["forward"] = self.forward
            self._armed = True

    def disarm_if_idle(self) -> None:
        """Restore the module's `forward` when no block waits for it."""
        if not (self.inputs or self.outputs or self.holds):
            self.disarm()

    def disarm(self) -> None:
        """Restore the module's `forward`."""
        if self._armed:
            if self._prior is None:
                del self._module.__dict__["forward"]
            else:
                self._module.__dict__["forward"] = self._prior
            self._prior = None
            self._armed = False

    def forward(self, *args: Any, **kwargs: Any) -> object:
        """Stand in for the module's `forward`."""
        if get_ident() != self._hub.thread:
            return self._original(*args, **kwargs)
        return self.around(self._original, args, kwargs)

    def around(self, original: Callable[..., object], args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        """Run `original` between serving the module's inputs and its output."""
        if self.inputs:
            args, kwargs = self._hub.serve_inputs(self, args, kwargs)
        self.depth += 1
        try:
            output = original(*args, **kwargs)
        finally:
            self.depth -= 1
        if self.outputs:
            output = self._hub.serve_output(self, output)
        return output


class Interleaver:
    """The blocks of a batch, and where each of them waits.

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
        self._values: dict[str, list[BlockRun]] = {}
        self._scopes: dict[BlockRun, Scope] = {}
        self._parents: dict[str, Site] = {}

    @property
    def busy(self) -> bool:
        """Whether any block is part of the step."""
        return bool(self._scopes)

    def begin_step(self, scopes: Mapping[BlockRun, Scope], steps: Mapping[BlockRun, int]) -> None:
        """Enter a step of the engine: each block owns its scope of the batch."""
        self._scopes = dict(scopes)
        for run, scope in scopes.items():
            run.begin_step(steps[run], scope)
            self._enlist(run)

    def end_step(self) -> None:
        """Leave the step: what a block still waits for in it was missed."""
        for run in list(self._scopes):
            self._withdraw(run)
            run.end_step()
        self._scopes = {}

    def abandon_step(self, error: BaseException) -> None:
        """Leave a step whose forward failed."""
        for run in list(self._scopes):
            self._withdraw(run)
            run.fail(error)
            run.close()
        self._scopes = {}

    def serve_inputs(self, site: Site, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """Serve the blocks that wait for a module's arguments."""
        for run in self._due(site, site.inputs):
            while type(wait := run.wait) is Location and wait.side != "output" and run in site.inputs:
                site.inputs.remove(run)
                if wait.side == "inputs":
                    args, kwargs = run.serve((args, kwargs), self._scopes[run])  # type: ignore[misc]
                elif args:
                    args = (run.serve(args[0], self._scopes[run]), *args[1:])
                elif kwargs:
                    name = next(iter(kwargs))
                    kwargs = {**kwargs, name: run.serve(kwargs[name], self._scopes[run])}
                else:
                    run.serve(None, self._scopes[run])
                self._released(wait)
                self._enlist(run)
        site.disarm_if_idle()
        return args, kwargs

    def serve_output(self, site: Site, output: object) -> object:
        """Serve the blocks that wait for a module's output."""
        for run in self._due(site, site.outputs):
            wait = run.wait
            assert type(wait) is Location
            site.outputs.remove(run)
            output = run.serve(output, self._scopes[run])
            self._released(wait)
            self._enlist(run)
        site.disarm_if_idle()
        return output

    def waiting_for(self, name: str) -> list[BlockRun]:
        """Return the blocks that wait for a value of the request, such as `"logits"`."""
        return list(self._values.get(name, ()))

    def offer(self, name: str, live: object, scopes: Mapping[BlockRun, Scope]) -> object:
        """Serve a value of the request to the blocks that wait for it, and return what the model goes on with."""
        for run in self.waiting_for(name):
            if run in scopes:
                self._values[name].remove(run)
                live = run.serve(live, scopes[run])
                self._enlist(run)
        return live

    def withdraw(self, run: BlockRun) -> None:
        """Forget a block in the middle of a step."""
        self._withdraw(run)
        self._scopes.pop(run, None)

    def _due(self, site: Site, runs: list[BlockRun]) -> list[BlockRun]:
        due = []
        for run in runs:
            wait = run.wait
            assert type(wait) is Location
            # A module shared by several parents is served where the parent that the block named is calling it.
            parent = self._parents.get(wait.path)
            if parent is None or parent.depth:
                due.append(run)
        return due

    def disarm(self) -> None:
        """Restore every module, whoever waits."""
        for site in self._sites.values():
            site.inputs.clear()
            site.outputs.clear()
            site.holds = site.depth = 0
            site.disarm()
        self._values.clear()
        self._scopes = {}

    def site(self, path: str) -> Site:
        """Return the site of the module at `path`."""
        return self._site(path)

    def _enlist(self, run: BlockRun) -> None:
        if self._after_turn is not None:
            self._after_turn(run)
        wait = run.wait
        if type(wait) is not Location or wait is RESULT:
            return
        if wait.side == "value":
            self._values.setdefault(wait.path, []).append(run)
            return
        site = self._site(wait.path)
        (site.outputs if wait.side == "output" else site.inputs).append(run)
        site.arm()
        parent = self._parents.get(wait.path)
        if parent is None and (gate := self._tree.gate(wait.path)) is not None:
            parent = self._parents[wait.path] = self._site(gate)
        if parent is not None:
            parent.holds += 1
            parent.arm()

    def _withdraw(self, run: BlockRun) -> None:
        wait = run.wait
        if type(wait) is not Location or wait is RESULT:
            return
        if wait.side == "value":
            runs = self._values.get(wait.path, [])
            if run in runs:
                runs.remove(run)
            return
        site = self._site(wait.path)
        runs = site.outputs if wait.side == "output" else site.inputs
        if run in runs:
            runs.remove(run)
            self._released(wait)
        site.disarm_if_idle()

    def _released(self, wait: Location) -> None:
        parent = self._parents.get(wait.path)
        if parent is not None:
            parent.holds -= 1
            if not parent.depth:
                parent.disarm_if_idle()

    def _site(self, path: str) -> Site:
        module = self._tree.module(path)
        site = self._sites.get(id(module))
        if site is None:
            site = self._sites[id(module)] = Site(module, self)
        return site
