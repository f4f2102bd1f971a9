"""The documented parts of vLLM that the client uses."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from nnsight_vllm.compat.event_loops import let_streams_go
from nnsight_vllm.compat.liveness import release_callers

# vLLM's own default kills workers that are still releasing their shared memory.
_SHUTDOWN_S: Final = 30.0


@lru_cache(maxsize=1)
def sampling_names() -> frozenset[str]:
    """Return the names of vLLM's sampling parameters."""
    import msgspec

    fields = msgspec.structs.fields(_sampling_params_class())
    return frozenset(field.name for field in fields if not field.name.startswith("_"))


def make_sampling_params(keywords: Mapping[str, Any]) -> Any:
    """Make sampling parameters, checked by vLLM.

    Raises:
        Exception: vLLM refuses a value.
    """
    params = _sampling_params_class()(**keywords)
    refuse_unreadable("sampling_params", params)
    return params


def refuse_unreadable(name: str, value: Any) -> None:
    """Refuse what the engine core could not read: it logs that, drops the request, and its caller waits forever.

    Args:
        name: `sampling_params`, or a keyword of `generate` beside it.
        value: What is given for it; None is the default of each.

    Raises:
        msgspec.ValidationError: It is of another type than vLLM declares.
        TypeError: It cannot be sent.

    Source:
        vLLM 0.27.1, v1/engine/core.py, EngineCoreProc.process_input_sockets
    """
    encoder, decoders = _travelling()
    if value is not None:
        decoders[name].decode(encoder.encode(value))


@lru_cache(maxsize=1)
def _travelling() -> tuple[Any, Mapping[str, Any]]:
    from vllm.lora.request import LoRARequest
    from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

    kinds = {"sampling_params": _sampling_params_class(), "lora_request": LoRARequest, "priority": int}
    return MsgpackEncoder(), {name: MsgpackDecoder(kind) for name, kind in kinds.items()}


@lru_cache(maxsize=1)
def _sampling_params_class() -> Any:
    # vLLM looks its public names up anew at each import of them, and a sweep makes many.
    from vllm import SamplingParams

    return SamplingParams


def copy_of_params(params: Any) -> Any:
    """Return sampling parameters whose fields can be set apart; what the fields hold is shared."""
    return copy.copy(params)


def build_llm(repo: str, keywords: Mapping[str, Any]) -> Any:
    """Build vLLM's synchronous engine.

    Raises:
        EngineError: One of its processes failed to start.
    """
    from vllm import LLM

    from nnsight.errors import EngineError

    try:
        return LLM(model=repo, **keywords)
    except RuntimeError as error:
        # vLLM says no more than this; the cause is what its processes wrote.
        raise EngineError(f"the engine of {repo} failed to start: {error} The cause is in its log above") from error


def build_async_llm(repo: str, keywords: Mapping[str, Any]) -> Any:
    """Build vLLM's asynchronous engine; its event loop is the one that it is first used in.

    Raises:
        EngineError: One of its processes failed to start.
    """
    from vllm import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    from nnsight.errors import EngineError

    arguments = AsyncEngineArgs(model=repo, **keywords)
    try:
        return AsyncLLM.from_engine_args(arguments)
    except RuntimeError as error:
        raise EngineError(f"the engine of {repo} failed to start: {error} The cause is in its log above") from error


def generate(llm: Any, prompts: Sequence[Any], params: Sequence[Any], **keywords: Any) -> list[Any]:
    """Run requests to their ends and return their outputs in order."""
    outputs: list[Any] = llm.generate(list(prompts), list(params), use_tqdm=False, **keywords)
    return outputs


def failed_sequences(output: Any) -> list[int]:
    """Return which sequences of a finished output vLLM ended with an error of its own."""
    return [completion.index for completion in output.outputs if completion.finish_reason == "error"]


class Completions:
    """The completions of one streamed request: each output carries those that went on, the finished one all of them.

    vLLM's own finished output of a request with several sequences has only what the others have not had yet.

    Source:
        vLLM 0.27.1, v1/engine/parallel_sampling.py, ParentRequest.get_outputs
    """

    def __init__(self, params: Any) -> None:
        """Follow a request with these sampling parameters."""
        self._several = params.n > 1
        self._pieces = params.output_kind.name == "DELTA"
        self._latest: dict[int, Any] = {}

    def note(self, output: Any) -> None:
        """Note the completions of an output; where it is the finished one, give it those that it lacks."""
        if not self._several:
            return
        arrived = {completion.index for completion in output.outputs}
        self._latest |= {completion.index: completion for completion in output.outputs}
        if output.finished:
            complete = [
                self._again(completion) if index not in arrived else completion
                for index, completion in sorted(self._latest.items())
            ]
            output.outputs[:] = complete

    def _again(self, completion: Any) -> Any:
        """Return a completion that an earlier output carried, with nothing new where outputs carry what is new."""
        if not self._pieces:
            return completion
        logprobs: list[Any] | None = None if completion.logprobs is None else []
        return dataclasses.replace(completion, text="", token_ids=[], logprobs=logprobs)


def abort_all(llm: Any) -> None:
    """End every request of an engine whose caller was interrupted; their outputs would come with the next call's.

    Source:
        vLLM 0.27.1, v1/engine/llm_engine.py, LLMEngine.abort_request
    """
    engine = llm.llm_engine
    unfinished = list(engine.output_processor.request_states)
    if unfinished:
        engine.abort_request(unfinished, internal=True)


def prepare_requests(llm: Any, prepare: Callable[[], Awaitable[None]]) -> None:
    """Have an asynchronous engine wait for `prepare` before it adds a request, whoever makes it."""
    add_request = llm.add_request

    @functools.wraps(add_request)
    async def prepared_add_request(*args: Any, **kwargs: Any) -> Any:
        await prepare()
        return await add_request(*args, **kwargs)

    llm.add_request = prepared_add_request


def engine_dead_errors() -> tuple[type[BaseException], ...]:
    """Return what vLLM raises when an engine's process has died."""
    from vllm.v1.engine.exceptions import EngineDeadError

    return (EngineDeadError,)


def call_workers(llm: Any, method: str, data: bytes | None = None) -> list[bytes]:
    """Call a method of our session in every worker."""
    replies: list[bytes] = llm.collective_rpc(method, args=() if data is None else (data,))
    return replies


def shut_down(llm: Any) -> None:
    """End the processes of an engine, and close the sockets that led to them.

    Source:
        vLLM 0.27.1, v1/engine/core_client.py, MPClient.shutdown, which leaves its ZeroMQ context open
    """
    import zmq.asyncio

    engine = getattr(llm, "llm_engine", llm)
    core = getattr(engine, "engine_core", None)
    if core is None:
        return
    if engine is llm:
        let_streams_go(llm)
        llm.shutdown(timeout=_SHUTDOWN_S)
    else:
        core.shutdown(timeout=_SHUTDOWN_S)
    thread = getattr(core, "output_queue_thread", None)
    if thread is not None:
        thread.join(timeout=_SHUTDOWN_S)
    resources = getattr(core, "resources", None)
    if resources is None:
        return  # the engine ran in this process
    release_callers(core)
    if isinstance(core.ctx, zmq.asyncio.Context):
        # vLLM leaves the sockets to the event loop, which may never run again. Their context is a shadow of the one
        # that counts as open.
        for value in list(vars(resources).values()):
            if isinstance(value, zmq.asyncio.Socket):
                value.close(linger=0)
    if thread is None or not thread.is_alive():
        resources.ctx.destroy(linger=0)


def spawns() -> bool:
    """Tell whether vLLM starts its processes by spawning, which runs the main module again in each.

    Source:
        vLLM 0.27.1, utils/system_utils.py, _maybe_force_spawn; platforms/cpu.py
    """
    import os

    import torch

    from nnsight_vllm.compat.versions import runs_on_cpu

    # Not torch.cuda.is_available(): before vLLM is imported it would start CUDA here, and forked processes could not.
    method = os.environ.get("VLLM_WORKER_MULTIPROC_METHOD")
    if method == "spawn" or runs_on_cpu():
        return True
    return method != "fork" and bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def _config_of(llm: Any) -> Any:
    """Return the configuration of an `LLM` or an `AsyncLLM`."""
    return getattr(llm, "llm_engine", llm).vllm_config


def max_model_len(llm: Any) -> int:
    """Return the longest sequence that an engine takes, in tokens."""
    return int(_config_of(llm).model_config.max_model_len)


def num_ranks(llm: Any) -> int:
    """Return how many workers an engine has."""
    return int(_config_of(llm).parallel_config.world_size)


def runs_in_this_process(llm: Any) -> bool:
    """Tell whether an engine has no process of its own, as with `VLLM_ENABLE_V1_MULTIPROCESSING=0`.

    Source:
        vLLM 0.27.1, v1/engine/core_client.py, InprocClient, which is no MPClient
    """
    return not hasattr(getattr(llm, "llm_engine", llm).engine_core, "resources")


def step_budget(llm: Any) -> tuple[int, bool]:
    """Return how many tokens an engine computes in one step at most, and whether it may split prompts."""
    scheduler = _config_of(llm).scheduler_config
    return int(scheduler.max_num_batched_tokens), bool(scheduler.enable_chunked_prefill)


def tokenizer_of(llm: Any) -> Any:
    """Return the tokenizer of an engine."""
    return llm.get_tokenizer()


def tokenizer_for(repo: str, keywords: Mapping[str, Any]) -> Any:
    """Load the tokenizer of a checkpoint without an engine."""
    from vllm.tokenizers import get_tokenizer

    return get_tokenizer(keywords.get("tokenizer") or repo, trust_remote_code=keywords.get("trust_remote_code", False))
