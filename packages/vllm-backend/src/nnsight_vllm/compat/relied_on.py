"""Every name of vLLM that `nnsight_vllm.compat` patches or relies on, as data.

Two checks read it: the self-test of an engine (`records.missing_seams`), by importing vLLM, and the offline check of
releases (`packages/vllm-backend/releases`), from vLLM's sources. The second runs where neither torch nor vLLM is
installed, so this module imports the standard library alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

Runner = Literal["V1", "V2"]


@dataclass(frozen=True)
class Name:
    """One name of vLLM.

    Attributes:
        target: `"module:qualified.name"`, or `"module:"` for a module. An attribute that methods set on `self` counts.
        parameters: Parameters that are given by name, or that our own overrides rely on; of a class, its constructor's.
        runner: The model runner that needs it; None where both do.
        since: The first release that has it, where releases before did without; empty for all.
        until: The first release that is without it; empty for none.
    """

    target: str
    parameters: tuple[str, ...] = ()
    runner: Runner | None = None
    since: str = ""
    until: str = ""

    def applies_to(self, release: str, runners: Iterable[Runner] = ("V1", "V2")) -> bool:
        """Tell whether a release has to have this name for these runners."""
        if self.runner is not None and self.runner not in runners:
            return False
        key = release_key(release)
        return not (self.since and key < release_key(self.since)) and not (
            self.until and key >= release_key(self.until)
        )


@dataclass(frozen=True, kw_only=True)
class Patch(Name):
    """One name of vLLM that is changed.

    Attributes:
        why: What cannot be done without it.
        source: Where the reader finds the changed code.
        remove_when: What makes the patch unnecessary.
        remove_from: The release in which that comes; empty where none is known. A patch has to be gone once every
            supported release is at least this one.
    """

    why: str
    source: str
    remove_when: str
    remove_from: str = ""


def release_key(release: str) -> tuple[int, ...]:
    """Make the numbers of a release comparable: `"0.27.1"` and `"0.27.1+cpu"` are `(0, 27, 1)`."""
    numbers: list[int] = []
    for part in release.partition("+")[0].split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
    return tuple([*numbers, 0, 0][: max(len(numbers), 3)])


def _members(owner: str, names: str, runner: Runner | None = None) -> Iterator[Name]:
    for name in names.split():
        yield Name(f"{owner}.{name}", runner=runner)


PATCHES: tuple[Patch, ...] = (
    Patch(
        "vllm.config.scheduler:SchedulerConfig.get_scheduler_cls",
        ("self",),
        why="derives our scheduler from whatever class vLLM chose, so that a block can end its request",
        source="vLLM 0.27.1, config/scheduler.py; called by v1/engine/core.py after the plugins were loaded",
        remove_when="vLLM lets a worker end a request",
    ),
    Patch(
        "vllm.v1.worker.worker_base:WorkerWrapperBase.init_device",
        ("self",),
        why="sets up our session in each worker, whatever worker_cls is",
        source="vLLM 0.27.1, v1/worker/worker_base.py",
        remove_when="vLLM calls an extension of the worker between its device and its model: init_worker_extension",
        remove_from="0.33",
    ),
    Patch(
        "vllm.v1.engine.core:EngineCore.preprocess_add_request",
        ("self", "request"),
        why="decides which edits a request runs beside and gives it the salt of its cached keys and values, before "
        "its prompt is hashed",
        source="vLLM 0.27.1, v1/engine/core.py",
        remove_when="vLLM lets a plugin change a request when it is added, in the engine core",
    ),
    Patch(
        "vllm.v1.engine.core:EngineCore.collective_rpc",
        ("self", "method", "timeout", "args", "kwargs"),
        why="notes in the engine core which edits its workers have",
        source="vLLM 0.27.1, v1/engine/core.py",
        remove_when="vLLM lets a plugin add methods to the engine core",
    ),
)

_RUNNER_V1 = "vllm.v1.worker.gpu_model_runner:GPUModelRunner"
_RUNNER_V2 = "vllm.v1.worker.gpu.model_runner:GPUModelRunner"
_SCHEDULER = "vllm.v1.core.sched.scheduler:Scheduler"
_OUTPUT = "vllm.v1.core.sched.output"
_LINEAR = "vllm.model_executor.layers.linear"
_EMBEDDING = "vllm.model_executor.layers.vocab_parallel_embedding:VocabParallelEmbedding"
_GROUPS = "vllm.distributed.parallel_state"

NAMES: tuple[Name, ...] = (
    # Configuration
    *_members(
        "vllm.config.vllm:VllmConfig", "additional_config cache_config model_config parallel_config scheduler_config"
    ),
    *_members("vllm.config.scheduler:SchedulerConfig", "async_scheduling"),
    *_members("vllm.config.model:ModelConfig", "dtype max_model_len"),
    *_members("vllm.config.cache:CacheConfig", "gpu_memory_utilization"),
    *_members(
        "vllm.config.parallel:ParallelConfig", "distributed_executor_backend nnodes tensor_parallel_size world_size"
    ),
    *_members("vllm.config.scheduler:SchedulerConfig", "max_num_batched_tokens enable_chunked_prefill"),
    # The client
    Name("vllm:LLM", ("model", "kwargs")),
    Name("vllm:LLM.generate", ("prompts", "sampling_params", "use_tqdm", "lora_request", "priority")),
    Name("vllm:LLM.collective_rpc", ("method", "args")),
    *_members("vllm:LLM", "get_tokenizer llm_engine"),
    *_members("vllm.v1.engine.llm_engine:LLMEngine", "output_processor engine_core model_config vllm_config"),
    Name("vllm.v1.engine.llm_engine:LLMEngine.abort_request", ("request_ids", "internal")),
    Name("vllm.v1.engine.output_processor:OutputProcessor.request_states"),
    Name("vllm.v1.engine.core_client:SyncMPClient.shutdown", ("timeout",)),
    *_members("vllm.v1.engine.core_client:SyncMPClient", "output_queue_thread outputs_queue utility_results"),
    *_members("vllm.v1.engine.core_client:MPClient", "ctx resources"),
    *_members("vllm.v1.engine.core_client:BackgroundResources", "ctx engine_manager"),
    Name("vllm.v1.engine.utils:CoreEngineProcManager.processes"),
    Name("vllm:AsyncEngineArgs", ("model",)),
    Name("vllm.v1.engine.async_llm:AsyncLLM"),
    Name("vllm.v1.engine.async_llm:AsyncLLM.from_engine_args", ("engine_args",)),
    Name(
        "vllm.v1.engine.async_llm:AsyncLLM.generate",
        ("prompt", "sampling_params", "request_id", "lora_request", "priority"),
    ),
    Name("vllm.v1.engine.async_llm:AsyncLLM.add_request"),
    Name("vllm.v1.engine.async_llm:AsyncLLM.collective_rpc", ("method", "args")),
    Name("vllm.v1.engine.async_llm:AsyncLLM.shutdown", ("timeout",)),
    *_members("vllm.v1.engine.async_llm:AsyncLLM", "engine_core get_tokenizer vllm_config"),
    Name("vllm.v1.engine.exceptions:EngineDeadError"),
    Name("vllm:SamplingParams"),
    *_members(
        "vllm:SamplingParams",
        "extra_args skip_reading_prefix_cache stop_token_ids ignore_eos all_stop_token_ids n output_kind skip_clone",
    ),
    Name("vllm.sampling_params:RequestOutputKind.DELTA"),
    Name("vllm.lora.request:LoRARequest"),
    Name("vllm.v1.serial_utils:MsgpackEncoder"),
    Name("vllm.v1.serial_utils:MsgpackEncoder.encode", ("self", "obj")),
    Name("vllm.v1.serial_utils:MsgpackDecoder.decode", ("self", "bufs")),
    Name("vllm.v1.serial_utils:MsgpackDecoder", ("t",)),
    *_members("vllm.outputs:RequestOutput", "outputs finished"),
    *_members("vllm.outputs:CompletionOutput", "index text token_ids logprobs finish_reason"),
    Name("vllm.v1.engine.parallel_sampling:ParentRequest.get_child_info", ("index",)),
    Name("vllm.v1.engine.parallel_sampling:ParentRequest.get_outputs"),
    Name("vllm.tokenizers:get_tokenizer", ("trust_remote_code",)),
    Name("vllm.tokenizers:cached_tokenizer_from_config", ("model_config",)),
    # The module tree without weights
    Name("vllm.engine.arg_utils:EngineArgs", ("model", "enforce_eager")),
    Name("vllm.engine.arg_utils:EngineArgs.create_engine_config", ("self",)),
    Name("vllm.model_executor.model_loader.utils:initialize_model", ("vllm_config",)),
    Name("vllm.utils.torch_utils:set_default_torch_dtype", ("dtype",)),
    Name("vllm.model_executor.layers:rotary_embedding"),
    Name("vllm.model_executor.layers.rotary_embedding:_ROPE_DICT"),
    Name("vllm.distributed:parallel_state"),
    *(Name(f"{_GROUPS}:{group}") for group in ("_WORLD", "_TP", "_PP", "_DP", "_EP", "_DCP", "_PCP", "_EPLB")),
    Name(f"{_GROUPS}:_ETP", since="0.30"),
    *_members(
        f"{_GROUPS}:GroupCoordinator",
        "world_size rank rank_in_group local_rank ranks is_first_rank is_last_rank first_rank last_rank",
    ),
    *_members("vllm.config.vllm:VllmConfig", "lora_config"),
    *_members("vllm.config.scheduler:SchedulerConfig", "max_num_seqs"),
    Name(
        "vllm.lora.model_manager:LoRAModelManager",
        ("model", "max_num_seqs", "max_num_batched_tokens", "vocab_size", "lora_config", "device", "vllm_config"),
    ),
    Name("vllm.lora:model_manager"),
    *(Name(f"vllm.lora.model_manager:{name}") for name in ("get_punica_wrapper", "from_layer")),
    # The model in a worker
    Name("vllm.lora.layers:BaseLayerWithLoRA"),
    Name("vllm.distributed:tensor_model_parallel_all_gather"),
    Name("vllm.model_executor.layers.logits_processor:LogitsProcessor._get_logits", ("hidden_states", "lm_head")),
    Name(_EMBEDDING),
    *_members(_EMBEDDING, "quant_method org_vocab_size"),
    *(Name(f"{_LINEAR}:{kind}") for kind in ("ColumnParallelLinear", "ReplicatedLinear", "RowParallelLinear")),
    Name(f"{_LINEAR}:RowParallelLinear.reduce_results"),
    Name("vllm.model_executor.layers.attention.attention:Attention.kv_cache"),
    # The engine core
    *_members("vllm.v1.engine.core:EngineCore", "vllm_config"),
    *_members("vllm.v1.engine:EngineCoreRequest", "sampling_params cache_salt prompt_token_ids"),
    # Workers
    *_members("vllm.v1.worker.worker_base:WorkerWrapperBase", "vllm_config worker"),
    *_members("vllm.v1.worker.gpu_worker:Worker", "model_runner rank"),
    Name("vllm.v1.worker.worker_base:WorkerBase.compile_or_warm_up_model", ("self",)),
    # The scheduler
    Name(_SCHEDULER, ("vllm_config",)),
    Name(f"{_SCHEDULER}.update_from_output", ("self", "scheduler_output", "model_runner_output")),
    Name(f"{_SCHEDULER}._update_request_with_output", ("self", "request", "new_token_ids")),
    Name(f"{_SCHEDULER}.add_request", ("self", "request")),
    Name(f"{_SCHEDULER}.schedule", ("self",)),
    *_members(_SCHEDULER, "running kv_cache_manager scheduler_config max_num_scheduled_tokens max_num_running_reqs"),
    *_members("vllm.config.scheduler:SchedulerConfig", "long_prefill_token_threshold"),
    Name("vllm.v1.core.kv_cache_manager:KVCacheManager.allocate_slots", ("self", "request", "num_new_tokens")),
    *_members("vllm.v1.request:Request", "request_id status stop_reason sampling_params is_finished"),
    *_members(
        "vllm.v1.request:Request",
        "num_tokens num_tokens_with_spec num_output_tokens num_output_placeholders num_computed_tokens",
    ),
    Name("vllm.v1.request:RequestStatus.RUNNING"),
    Name("vllm.v1.request:RequestStatus"),
    Name("vllm.v1.request:RequestStatus.FINISHED_LENGTH_CAPPED"),
    Name("vllm.v1.core.sched.utils:check_stop"),
    # What the scheduler tells a runner
    *_members(
        f"{_OUTPUT}:SchedulerOutput",
        "scheduled_new_reqs num_scheduled_tokens finished_req_ids",
    ),
    *_members(f"{_OUTPUT}:GrammarOutput", "structured_output_request_ids grammar_bitmask"),
    *_members(f"{_OUTPUT}:NewRequestData", "req_id prompt_token_ids sampling_params"),
    # The V1 runner
    Name(f"{_RUNNER_V1}._update_states", ("self", "scheduler_output"), "V1"),
    Name(f"{_RUNNER_V1}._model_forward", ("self", "input_ids", "positions"), "V1"),
    Name(f"{_RUNNER_V1}.execute_model", ("self", "scheduler_output"), "V1"),
    Name(f"{_RUNNER_V1}._sample", ("self", "logits"), "V1"),
    Name(f"{_RUNNER_V1}.sample_tokens", ("self", "grammar_output"), "V1"),
    *_members(_RUNNER_V1, "get_model device requests input_batch execute_model_state", runner="V1"),
    *_members("vllm.v1.worker.gpu_model_runner:ExecuteModelState", "logits", runner="V1"),
    *_members("vllm.v1.worker.gpu_input_batch:InputBatch", "req_ids", runner="V1"),
    *_members(
        "vllm.v1.worker.gpu_input_batch:CachedRequestState", "num_computed_tokens num_prompt_tokens", runner="V1"
    ),
    *_members(_RUNNER_V1, "sampler", runner="V1"),
    Name("vllm.v1.sample.sampler:Sampler.sample", ("self", "logits"), "V1"),
    Name("vllm.v1.outputs:AsyncModelRunnerOutput.get_output", ("self",)),
    *_members(
        "vllm.v1.worker.gpu_model_runner:AsyncGPUModelRunnerOutput",
        "async_copy_ready_event sampled_token_ids_cpu",
        runner="V1",
    ),
    # The V2 runner
    Name(f"{_RUNNER_V2}.finish_requests", ("self", "scheduler_output"), "V2"),
    Name(f"{_RUNNER_V2}.add_requests", ("self", "scheduler_output"), "V2"),
    Name(f"{_RUNNER_V2}.prepare_inputs", ("self", "scheduler_output"), "V2"),
    Name(f"{_RUNNER_V2}.sample", ("self", "hidden_states", "input_batch", "grammar_output"), "V2"),
    Name(f"{_RUNNER_V2}.sample_tokens", ("self", "grammar_output"), "V2"),
    *_members(_RUNNER_V2, "get_model device model sampler", runner="V2"),
    Name("vllm.v1.worker.gpu.sample.sampler:Sampler.sample", ("self", "logits"), "V2"),
    *_members(
        "vllm.v1.worker.gpu.input_batch:InputBatch",
        "req_ids num_tokens_after_padding query_start_loc_np num_computed_tokens_np",
        runner="V2",
    ),
    *_members("vllm.v1.worker.gpu.async_utils:AsyncOutput", "copy_event sampled_token_ids", runner="V2"),
)
