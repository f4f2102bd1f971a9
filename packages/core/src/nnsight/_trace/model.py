"""What every traced model offers, whatever runs it."""

from __future__ import annotations

import contextlib
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from nnsight._interleave.location import SIDES
from nnsight._program.analysis import Analyses
from nnsight._trace.edit import EditBlock
from nnsight._trace.levels import run_in_levels
from nnsight._trace.session import Session
from nnsight._trace.tracer import Tracer
from nnsight.errors import UnknownLocationError, UnsupportedFeatureError
from nnsight.events import RunFinished, RunStarted
from nnsight.plugins import plugin_manager

if TYPE_CHECKING:
    from nnsight._envoy import Envoy, ModelTree
    from nnsight._trace.edit import Edit
    from nnsight._trace.request import Outcome, Request

_installing = threading.Lock()


class TracedModel(ABC):
    """A model whose values can be read and changed in `with model.trace(...):` blocks.

    Attribute access leads into the tree of the model: `model.transformer.h[3].mlp`.

    A backend subclasses it: `backend_name` is its name in events, `_tree` is set once the modules are known, and
    `_prepare` and `_execute` are implemented. `_has_input`, `_merge_keywords` and `_settable` may be overridden. These
    names begin with an underscore because all others may be those of modules; they are public to subclasses. So are
    attributes: once `_tree` is set, others than those with an underscore are assigned only if `_settable` names them.
    """

    stands_in = True
    backend_name: str
    _tree: ModelTree

    @property
    def envoy(self) -> Envoy:
        """The root of the model's tree."""
        return self._tree.envoy()

    @cached_property
    def _analyses(self) -> Analyses:
        """What was told of blocks, which later traces of the model run too."""
        return Analyses()

    def trace(self, *args: Any, **kwargs: Any) -> Tracer:
        """Begin a trace.

        With an input, the block runs beside one request with that input. Without one, the block contains invokes:
        `with tracer.invoke(prompt):`. Keywords given here apply to every invoke that does not give its own.

        Raises:
            InvalidRequestError: The input cannot be run.
        """
        return Tracer(self, args, kwargs)

    def session(self, **keywords: Any) -> Session:
        """Begin a session: traces that run one after the other and share keywords.

        `with model.session(max_tokens=1) as session:` gives its traces the keywords that they do not give themselves,
        and collects what they save on `session.saves`. A variable that a block binds, and that other code of the
        session reads, comes home without a save.
        """
        return Session(self, keywords)

    def edit(self, *, name: str | None = None) -> EditBlock:
        """Install a block that runs beside every later request of the model, traced or not.

        `with model.edit() as (tracer, edit):` captures the block as a trace does, and runs nothing. Edits run in the
        order in which they were installed, and before the block of a trace: it sees what they changed. What they save
        is on `tracer.edits[name].saves`, and on the `saves` of outputs that take attributes. `edits=["name"]` of a
        trace or an invoke runs these alone, and `edits=[]` none.

        Args:
            name: What the edit is called; a name is made up where none is given.

        Raises:
            InvalidRequestError: The name is taken.
            UnsupportedFeatureError: The backend has no edits.
        """
        return EditBlock(self, name)

    @property
    def edits(self) -> tuple[Edit, ...]:
        """The edits that are installed, in order."""
        installed: tuple[Edit, ...] = self.__dict__.get("_installed", ())
        return installed

    def clear_edits(self) -> None:
        """Remove all edits: requests that are made from now on run without them."""
        if self.edits:
            self._uninstall(self.edits)

    def run(self, *args: Any, **kwargs: Any) -> Tracer:
        """Run a function as a block, for code that has no `with` statement: `model.run(prompt, function)`.

        The last positional argument is the function. It may take `model`, `tracer`, both or nothing, by these names;
        its own variables that it saves are on the returned tracer's `saves`, what it returns on its `value`.

        Raises:
            InvalidRequestError: No function was given.
        """
        return Tracer.run_function(self, args, kwargs)

    def get(self, path: str) -> Any:
        """Return the module at a dotted path, or a value where the path ends in `.output` or the like."""
        return self.envoy.get(path)

    @abstractmethod
    def _prepare(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Check the input of one request and bring it into the form that `_execute` finds as `Request.prepared`.

        Called where the user's `trace` or `invoke` stands, before the block is captured.

        Raises:
            InvalidRequestError: The input cannot be run.
        """

    @abstractmethod
    def _execute(self, requests: Sequence[Request]) -> list[Outcome]:
        """Run requests, and return what became of each, in order.

        May be called by several threads at once. An error of one request belongs into its outcome; what is raised here
        ends the trace, with nothing saved.
        """

    def _has_input(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Tell whether a trace was given the input of a request."""
        return bool(args)

    def _merge_keywords(self, of_trace: dict[str, Any], of_invoke: dict[str, Any]) -> dict[str, Any]:
        """Join the keywords of a trace and of an invoke in it, which win."""
        return {**of_trace, **of_invoke}

    def _defer(
        self, requests: Sequence[Request], arrive: Callable[[list[Outcome]], None], *, single: bool
    ) -> object | None:
        """Take requests to be run later, where the engine is asynchronous.

        Args:
            requests: The requests of a trace.
            arrive: To be called with what became of all of them; raises the first error.
            single: Whether the trace has an input of its own rather than invokes.

        Returns:
            What the caller awaits, or None where requests run as soon as their blocks end.
        """
        return None

    def _check_edits(self) -> None:
        """Allow edits; a backend whose `_execute` runs `Request.edits`, or those of `_edits_of`, overrides it.

        Raises:
            UnsupportedFeatureError: The backend has no edits.
        """
        raise UnsupportedFeatureError(
            f"the backend {self.backend_name!r} has no edits: write the block in each trace, or in a function for "
            "model.run"
        )

    def _edits_of(self, request: Request) -> tuple[Edit, ...]:
        """Return the edits that run beside a request which begins now."""
        return self.edits if request.edits is None else request.edits

    def _install(self, edit: Edit) -> None:
        """Take an edit, which applies to requests that begin from now on; a backend with more to do extends it."""
        with _installing:
            self._installed = (*self.edits, edit)

    def _uninstall(self, edits: Sequence[Edit]) -> None:
        """Let go of edits; requests that are under way keep theirs."""
        with _installing:
            self._installed = tuple([edit for edit in self.edits if edit not in edits])

    def _run_requests(self, requests: Sequence[Request]) -> list[Outcome]:
        with self._observed(len(requests)) as outcomes:
            outcomes += run_in_levels(requests, self._execute)
        return outcomes

    @contextlib.contextmanager
    def _observed(self, num_requests: int) -> Iterator[list[Outcome]]:
        """Tell plugins of a run; the outcomes that it has are to be put into the list."""
        hook = plugin_manager().hook
        # No hook is called while a forward runs, so the standard names are found before it.
        _ = self._tree.standard.family
        hook.before_run(event=RunStarted(self.backend_name, num_requests))
        began = time.perf_counter()
        outcomes: list[Outcome] = []
        try:
            yield outcomes
        finally:
            errors = tuple(outcome.error for outcome in outcomes if outcome.error is not None)
            seconds = time.perf_counter() - began
            hook.after_run(event=RunFinished(self.backend_name, num_requests, seconds, errors))

    def __getattr__(self, name: str) -> Any:
        """Look a name up in the model's tree."""
        if name.startswith("__") or "_tree" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.envoy, name)

    def __setattr__(self, name: str, value: object) -> None:
        """Assign a value of the request inside a block; attributes of the model object otherwise."""
        tree = self.__dict__.get("_tree")
        if tree is not None and (name in tree.values or name in SIDES):
            setattr(self.envoy, name, value)
        elif tree is not None and not name.startswith("_") and name not in self._settable():
            raise UnknownLocationError(f"{type(self).__name__}.{name} cannot be assigned")
        else:
            object.__setattr__(self, name, value)

    def _settable(self) -> frozenset[str]:
        """Return the names of attributes without an underscore that may be assigned."""
        return frozenset()

    def __getitem__(self, index: Any) -> Any:
        """Index a model that is a sequence of modules."""
        return self.envoy[index]

    def __len__(self) -> int:
        """Count the modules of a model that is a sequence of modules."""
        return len(self.envoy)

    def __bool__(self) -> bool:
        """Count as true."""
        return True

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the modules of a model that is a sequence of modules, or over the names in a module dict."""
        return iter(self.envoy)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the whole model ad hoc, inside a block."""
        return self.envoy(*args, **kwargs)

    def __dir__(self) -> list[str]:
        """List methods and the children of the root."""
        return sorted({*object.__dir__(self), *dir(self.envoy)})

    def __repr__(self) -> str:
        """Print the module tree."""
        return repr(self.envoy)
