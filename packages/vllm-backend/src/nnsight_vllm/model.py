"""A language model inside a vLLM engine."""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from nnsight._envoy import ModelTree
from nnsight._trace import Edit, Outcome, Request, TracedModel
from nnsight._trace.deliver import raise_first
from nnsight._trace.edit import chosen_edits
from nnsight.errors import EngineError, InvalidRequestError, UnsupportedFeatureError
from nnsight.plugins import find_engine, load_object
from nnsight_vllm._client.guard import refuse_unguarded_script
from nnsight_vllm._client.prepared import PreparedRequest
from nnsight_vllm._client.prompts import token_prompt
from nnsight_vllm._client.sampling import SharedParams, plain_names, split_keywords
from nnsight_vllm._client.settings import Setting, chosen_runner, engine_settings
from nnsight_vllm._client.stream import TraceStream, gather_outcomes, gather_outputs
from nnsight_vllm._client.submission import Submission, untraced
from nnsight_vllm._worker.tree import VALUES
from nnsight_vllm.compat.requests import attach
from nnsight_vllm.compat.switch import DEFAULT_BUDGETS, SPARE
from nnsight_vllm.compat.versions import refuse_unsupported

if TYPE_CHECKING:
    from nnsight.diagnosis import Finding

refuse_unsupported()

_MODES = ("sync", "async")


class VLLM(TracedModel):
    """A model served by vLLM, whose values can be read and changed while it generates.

    ```python
    model = VLLM("Qwen/Qwen3-8B", dispatch=True)
    with model.trace("The capital of France is", temperature=0.0, max_tokens=1):
        logits = model.logits.save()
    ```

    Without `dispatch` only the module tree is built, on the meta device and without a GPU; the first trace starts the
    engine. Inside a block, `model.logits` [1, vocabulary] is what the sampler is given, `model.samples` [1] the token
    id that it chose, and both can be edited.
    """

    backend_name = "vllm"

    def __init__(
        self,
        repo: str | os.PathLike[str],
        *,
        dispatch: bool = False,
        mode: str = "sync",
        taps: Sequence[str] | None = None,
        rename: Mapping[str, str] | None = None,
        step_budget: int | None = DEFAULT_BUDGETS["step_budget"],
        byte_budget: int | str | None = SPARE,
        **engine_keywords: Any,
    ) -> None:
        """Build the module tree, and start the engine if asked to.

        Args:
            repo: Repository id or folder of a checkpoint.
            dispatch: Start the engine now rather than at the first trace.
            mode: `"sync"` for `vllm.LLM`, whose saves land in the caller's variables, or `"async"` for vLLM's
                `AsyncLLM`, whose traces are awaited or iterated at `tracer.backend`.
            taps: Locations that are served under CUDA graphs.
            rename: Extra names of modules: an alias for each path, such as `{"model.layers": "layers"}`.
            step_budget: How many iterations of loops and calls of functions a block may run in each step of its
                request; None for no limit.
            byte_budget: How many bytes a block may hold, in copies that it keeps and in what it saved; `"spare"` for as
                much as the engine leaves of its device (a quarter of the memory on a CPU), None for no limit.
            **engine_keywords: Everything else goes to vLLM's engine as it is.

        Raises:
            InvalidRequestError: `mode` is unknown, an alias is taken, or a keyword contradicts what the engine needs.
            BackendNotFoundError: The engine that the arguments ask for is not installed.
            UnsupportedFeatureError: A keyword asks for something that is refused by name.
            UnknownLocationError: A renamed path names no module.
        """
        from nnsight_vllm.compat.meta_tree import build_meta_tree

        if mode not in _MODES:
            raise InvalidRequestError(f"mode={mode!r} is unknown; it is one of {', '.join(map(repr, _MODES))}")
        _refuse_server(engine_keywords)
        if dispatch:
            refuse_unguarded_script()
        name = "tapped" if taps is not None else "async" if mode == "async" else "eager"
        self._engine_spec = find_engine("vllm", name)
        self._repo = repo = os.fspath(repo)
        self._keywords, self._settings = engine_settings(
            {**engine_keywords, "step_budget": step_budget, "byte_budget": byte_budget}
        )
        self._engine: Any = None
        self._shared_params = SharedParams()
        self._finalizer: Any = None
        self._meta_tokenizer: Any = None
        root = build_meta_tree(repo, self._keywords)
        self._tree = ModelTree(root, values=VALUES, renames=rename, reserved=("tokenizer", *dir(type(self))))
        if dispatch:
            self.dispatch()

    def dispatch(self) -> None:
        """Start the engine, if it does not run yet; the envoys stay the same.

        Raises:
            MissingMainGuardError: The running script would start its engine again in every spawned process.
            EngineError: The engine came up without its instrumentation.
        """
        if self._engine is None:
            self._engine = load_object(self._engine_spec.factory)(self._repo, self._keywords)
            self._finalizer = weakref.finalize(self, self._engine.shutdown)
            # At exit, finalizers run in the place of the process's first one. Where that was made before
            # multiprocessing was imported, as in IPython, it would wait for the engine first, and for ever.
            atexit.register(self._finalizer)
            for edit in self.edits:
                self._engine.install(edit)
            self._tell_engine()

    def shutdown(self) -> None:
        """End the engine's processes and free its memory; the tree stays, and a later trace starts a new engine."""
        if self._engine is not None:
            atexit.unregister(self._finalizer)
            self._finalizer()
            self._engine = None

    def __enter__(self) -> VLLM:
        """Start the engine for the length of a `with` block."""
        self.dispatch()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Shut the engine down."""
        self.shutdown()

    async def __aenter__(self) -> VLLM:
        """Start the engine for the length of an `async with` block."""
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Shut the engine down."""
        self.shutdown()

    @classmethod
    def diagnose(cls, checkpoint: str | None = None, **engine_keywords: Any) -> list[Finding]:
        """Look at the installation, and where a checkpoint is given, start an engine on it and run a trace.

        Args:
            checkpoint: Repository id or folder of a small checkpoint; None starts no engine.
            **engine_keywords: Keywords of that engine.
        """
        from nnsight_vllm.diagnosis import diagnose

        return diagnose(checkpoint, engine_keywords)

    @property
    def dispatched(self) -> bool:
        """Whether the engine runs."""
        return self._engine is not None

    @property
    def vllm_entrypoint(self) -> Any:
        """vLLM's own engine object, or None before the engine runs."""
        return self._engine.llm if self._engine is not None else None

    @property
    def settings(self) -> tuple[Setting, ...]:
        """What nnsight sets for the engine, and why; once it runs, which model runner vLLM chose too."""
        if self._engine is None:
            return self._settings
        return (*self._settings, chosen_runner(self._engine.workers))

    @property
    def taps(self) -> list[str]:
        """The locations served under CUDA graphs; an eager engine serves every location and has none."""
        return []

    @property
    def tokenizer(self) -> Any:
        """The model's tokenizer; needs no engine."""
        if self._engine is not None:
            return self._engine.tokenizer
        if self._meta_tokenizer is None:
            from nnsight_vllm.compat.public import tokenizer_for

            self._meta_tokenizer = tokenizer_for(self._repo, self._keywords)
        return self._meta_tokenizer

    def generate(self, prompts: Any, **keywords: Any) -> Any:
        """Generate without a block of its own; the edits of the model run beside it.

        What they saved is on the `saves` of an output: a value by its variable, where one edit alone saved it. `edits`
        has it apart for each edit: `output.edits["probe"].saves`.

        Args:
            prompts: One prompt in any of its forms, or a list of them.
            **keywords: Sampling keywords, and `edits=[...]` to choose edits by name.

        Returns:
            vLLM's output, or a list of them for a list of prompts; in an asynchronous engine, what gives it when it is
            awaited.

        Raises:
            InvalidRequestError: A prompt or value cannot be run, or no edit has a name.
            Exception: What the block of an edit raised; its `outputs` holds those of all prompts.
        """
        edits = chosen_edits(self, keywords.pop("edits", None))
        self.dispatch()
        several = isinstance(prompts, list) and bool(prompts) and not isinstance(prompts[0], int)
        params, request_keywords = split_keywords(keywords)
        converted = [self._prompt(prompt) for prompt in (prompts if several else [prompts])]
        if self.edits if edits is None else edits:
            prepared = [PreparedRequest(each, params, request_keywords) for each in converted]
            submissions = untraced(self._engine, prepared, edits)
            if self._is_asynchronous:
                return self._outputs_later(submissions, several=several)
            return _outputs_of(self._engine.submit(submissions), several=several)
        if edits is not None:
            params = params.clone()
            attach(params, edits=[])
        if self._is_asynchronous:
            return gather_outputs(self._engine, converted, params, request_keywords, several=several)
        joined = {name: [value] * len(converted) for name, value in request_keywords.items()}
        outputs = self._engine.generate(converted, [params] * len(converted), **joined)
        return outputs if several else outputs[0]

    async def _outputs_later(self, submissions: Sequence[Submission], *, several: bool) -> Any:
        return _outputs_of(await gather_outcomes(self._engine, submissions), several=several)

    def _check_edits(self) -> None:
        """Allow edits."""

    def _install(self, edit: Edit) -> None:
        if self._engine is not None:
            self._engine.install(edit)
        super()._install(edit)
        self._tell_engine()

    def _uninstall(self, edits: Sequence[Edit]) -> None:
        super()._uninstall(edits)
        if self._engine is not None:
            self._engine.uninstall(edits)
        self._tell_engine()

    def _tell_engine(self) -> None:
        if self._engine is not None:
            self._engine.edits = self.edits

    @property
    def _is_asynchronous(self) -> bool:
        return "stream" in self._engine_spec.capabilities

    def _defer(
        self, requests: Sequence[Request], arrive: Callable[[list[Outcome]], None], *, single: bool
    ) -> TraceStream | None:
        if not self._is_asynchronous:
            return None
        return TraceStream(self._engine, requests, self._observed, arrive, single=single)

    def _prompt(self, prompt: Any) -> dict[str, Any]:
        return token_prompt(prompt, self._engine.tokenizer, self._engine.max_model_len)

    def _prepare(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> PreparedRequest:
        if len(args) != 1:
            raise InvalidRequestError(f"{len(args)} prompts were given, and an invoke takes one")
        _refuse_server(kwargs)
        kwargs = dict(kwargs)
        streams = self._streams_saves(kwargs.pop("stream_saves", False))
        params, keywords = self._shared_params.split(kwargs)
        self.dispatch()
        return PreparedRequest(self._prompt(args[0]), params, keywords, streams)

    def _streams_saves(self, asked: object) -> bool:
        if not isinstance(asked, bool):
            raise InvalidRequestError(f"stream_saves={asked!r} is neither True nor False")
        if asked and not self._is_asynchronous:
            raise UnsupportedFeatureError(
                "stream_saves=True brings saves on the outputs of a stream, and this engine has none: its trace has "
                "run when the block ends, with every save in your variables; leave it out, or build the model with "
                "mode='async' and iterate tracer.backend"
            )
        return asked

    def _merge_keywords(self, of_trace: dict[str, Any], of_invoke: dict[str, Any]) -> dict[str, Any]:
        return {**plain_names(of_trace), **plain_names(of_invoke)}

    def _execute(self, requests: Sequence[Request]) -> list[Outcome]:
        if self._engine is None:
            raise EngineError("the engine was shut down while a trace was open")
        outcomes: list[Outcome] = self._engine.execute(requests)
        return outcomes


def _outputs_of(outcomes: Sequence[Outcome], *, several: bool) -> Any:
    outputs = [outcome.result for outcome in outcomes]
    try:
        raise_first(outcomes, {}, "prompt")
    except BaseException as error:
        error.outputs = outputs  # type: ignore[attr-defined]
        raise
    return outputs if several else outputs[0]


def _refuse_server(keywords: dict[str, Any]) -> None:
    for name in ("serve", "remote"):
        if keywords.get(name) is not None:
            raise UnsupportedFeatureError(
                f"{name}={keywords[name]!r} asks for a model behind a server, which this release does not have yet; "
                "leave it out to run the engine on this machine"
            )
