"""What every engine of ours has in common, on the caller's side."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import secrets
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

import nnsight_vllm
from nnsight._program.failures import rebuild_error
from nnsight._trace.messages import block_codecs, encode_program
from nnsight._wire import encode
from nnsight.errors import EngineError, InvalidRequestError
from nnsight.events import PromptFacts
from nnsight.plugins import decide_prefill
from nnsight_vllm._client.guard import refuse_unguarded_script
from nnsight_vllm._client.outcomes import drop_outcome, read_ahead
from nnsight_vllm._edits import TravellingEdit
from nnsight_vllm._mailbox import ADDRESS_VARIABLE, Mailbox, Message
from nnsight_vllm._transfer import remove_files_of
from nnsight_vllm.compat import public
from nnsight_vllm.compat.liveness import DeathWatch
from nnsight_vllm.compat.records import refuse_missing_seams

if TYPE_CHECKING:
    from nnsight._program import Effects
    from nnsight._trace import Edit

# Workers announce themselves before vLLM has loaded the model.
_ANNOUNCED_S: Final = 10.0
# An outcome that has not been posted after this is asked for, which also tells whether the engine still lives.
PATIENCE_S: Final = 10.0
# So long the news of who died may take after vLLM says that the engine is dead.
_NEWS_S: Final = 1.0

_building = threading.Lock()


class RunningEngine:
    """One running engine: its workers, its limits, and the mailbox that outcomes come home to.

    Attributes:
        workers: What each worker said of itself when it started, by rank.
        posts: Whether all workers reach the mailbox, as they do from processes of their own on this host.
        llm: vLLM's own engine object; None once the engine is shut down.
        died: Which of its processes died, and how; None while all live.
        edits: The edits that its model has installed.
    """

    def __init__(self, repo: str, keywords: Mapping[str, Any]) -> None:
        """Start the engine and check that every worker carries our session.

        Raises:
            MissingMainGuardError: The running script would start its engine again in every spawned process.
            EngineError: A worker came up without our session, or vLLM lacks something that it needs.
        """
        refuse_missing_seams()
        refuse_unguarded_script()
        self.workers: list[dict[str, Any]] = []
        self.posts = False
        self.mailbox = Mailbox(drop_outcome, read_ahead)
        self.llm: Any = None
        self.died: str | None = None
        self.edits: tuple[Edit, ...] = ()
        self._watch: DeathWatch | None = None
        # Drawn once: a system call for each of a thousand requests is felt.
        self._key_stem, self._key_numbers = secrets.token_hex(8), itertools.count()
        try:
            with _leading_to(self.mailbox):
                self.llm = self._build(repo, keywords)
            self.workers = self._greet()
            if self.posts:
                self._watch = DeathWatch(self.llm, self.workers, self._bury)
        except BaseException:
            self.shutdown()
            raise
        self._max_model_len = public.max_model_len(self.llm)
        self._budget, self._splits = public.step_budget(self.llm)

    def _build(self, repo: str, keywords: Mapping[str, Any]) -> Any:
        """Build vLLM's engine object."""
        raise NotImplementedError

    def _ask_workers(self) -> Sequence[bytes]:
        """Ask workers that cannot reach the mailbox what runs in them."""
        raise EngineError("workers on other hosts are reached by mode='sync' alone")

    def new_key(self) -> str:
        """Return an id of a request that no other request has, of this engine or another."""
        return f"{self._key_stem}-{next(self._key_numbers)}"

    @property
    def shares_host(self) -> bool:
        """Whether all workers run on this host."""
        return self.posts or (self.llm is not None and public.runs_in_this_process(self.llm))

    @property
    def max_model_len(self) -> int:
        """The longest sequence that the engine takes, in tokens."""
        return self._max_model_len

    def keeps_whole(self, num_prompt_tokens: int, effects: Effects) -> bool:
        """Tell whether a traced prompt must be kept whole by the scheduler, where it splits others.

        Raises:
            InvalidRequestError: The prompt cannot be computed as its block needs it, with the reason of the plugin that
                decided.
            PluginAnswerError: A plugin decided something that no engine knows.
        """
        facts = PromptFacts(num_prompt_tokens, self._budget, self._splits, effects.read_only, effects.follows_pieces)
        policy = decide_prefill(facts)
        if policy is not None and policy.how == "refused":
            raise InvalidRequestError(policy.reason)
        return self._splits and (policy is None or policy.how != "split")

    def install(self, edit: Edit) -> None:
        """Have an edit run beside all requests that are made from now on.

        Raises:
            UntransferableValueError: A value that its block names cannot travel.
        """
        raise NotImplementedError

    def uninstall(self, edits: Sequence[Edit]) -> None:
        """Have edits run beside no further request."""
        raise NotImplementedError

    def shutdown(self) -> None:
        """End the engine's processes."""
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.stop()
        llm, self.llm = self.llm, None
        if llm is not None:
            # Whoever waits in another thread or task is told first, and let go once nothing more can come.
            self.mailbox.fail(self._shut_down())
            public.shut_down(llm)
            self._remove_files()
        self.mailbox.close()

    def refuse_dead(self) -> None:
        """Refuse to run anything on an engine that is over.

        Raises:
            EngineError: It was shut down, or died.
        """
        if self.llm is None:
            raise self._shut_down()
        if self.died is not None:
            raise EngineError(
                f"the engine is dead: {self.died}. Nothing can run on it any more; call model.shutdown(), and the next "
                "trace starts a new engine"
            )

    def note_death(self, doing: str) -> None:
        """Raise the error of an engine that died or was shut down under its caller, if it did.

        Args:
            doing: What it was doing.

        Raises:
            EngineError: It did.
        """
        if self.llm is None:
            raise self._shut_down()
        if self.died is not None:
            raise self._obituary(doing)

    def death(self, doing: str, error: BaseException) -> EngineError:
        """Return the error of an engine that died under its caller.

        Args:
            doing: What it was doing.
            error: What vLLM raised.
        """
        if self.llm is None:
            return self._shut_down()
        # vLLM's error comes by another way than the news of who died.
        deadline = time.monotonic() + _NEWS_S
        while self.died is None and self._watch is not None and time.monotonic() < deadline:
            time.sleep(0.01)
        self.died = self.died or str(error)
        return self._obituary(doing)

    def _shut_down(self) -> EngineError:
        return EngineError(
            "the engine was shut down, and what ran on it or is asked of it now has no result; a later trace of the "
            "model starts a new engine"
        )

    def _obituary(self, doing: str) -> EngineError:
        return EngineError(
            f"the engine died while it {doing}: {self.died}. What led to it may be in its log above, or in that of the "
            "system where it ran out of memory; call model.shutdown(), and the next trace starts a new engine"
        )

    def _bury(self, who: str) -> None:
        self.died = who
        self.mailbox.fail(self._obituary("ran a request"))
        self._remove_files()

    def _remove_files(self) -> None:
        for worker in self.workers:
            remove_files_of(worker["process"])

    def _greet(self) -> list[dict[str, Any]]:
        """Hear from every worker what runs in it."""
        count = public.num_ranks(self.llm)
        alone = public.runs_in_this_process(self.llm)
        announced = [] if alone else self.mailbox.announcements(count, _ANNOUNCED_S)
        self.posts = len(announced) == count
        try:
            replies = [json.loads(reply) for reply in (announced if self.posts else self._ask_workers())]
        except Exception as error:
            raise EngineError(
                f"the engine came up with nnsight in {len(announced)} of its {count} worker(s) ({error}). They load it "
                "through the entry point vllm.general_plugins: if VLLM_PLUGINS is set it must include 'nnsight', and "
                "the workers must run in the environment that nnsight-vllm is installed in; `nnsight doctor` shows "
                "what they see"
            ) from error
        for reply in replies:
            if reply["missing"]:
                raise EngineError(f"worker {reply['rank']} lacks: {'; '.join(reply['missing'])}")
            if reply["nnsight"] != nnsight_vllm.__version__:
                raise EngineError(
                    f"worker {reply['rank']} runs nnsight-vllm {reply['nnsight']}, this process "
                    f"{nnsight_vllm.__version__}; install one version in both"
                )
        return sorted(replies, key=lambda reply: int(reply["rank"]))


def write_question(results: Mapping[str, Any]) -> bytes:
    """Write what `nnsight_collect` is given: keys of requests, each with the finished output that its block waits for.

    Args:
        results: By key; None asks for an outcome that may not need the finished output.
    """
    codecs = block_codecs()
    return msgspec.msgpack.encode(
        [[key, None if each is None else encode(each, codecs=codecs, name="result")] for key, each in results.items()]
    )


def read_answers(replies: Sequence[bytes]) -> dict[str, Message]:
    """Read what workers answered: messages by key, without the keys of requests that nobody knows."""
    found: dict[str, Message] = {}
    for keys, data in msgspec.msgpack.decode(next(reply for reply in replies if reply)):
        found |= dict.fromkeys(keys, Message(data))
    return found


def write_edit(edit: Edit) -> bytes:
    """Write an edit for `nnsight_install`.

    Raises:
        UntransferableValueError: A value that its block names cannot travel.
    """
    program = edit.program
    return TravellingEdit.of(edit.key, edit.name, program.effects, encode_program(program)).written()


def write_keys(edits: Sequence[Edit]) -> bytes:
    """Write edits for `nnsight_uninstall`."""
    return msgspec.msgpack.encode([edit.key for edit in edits])


def refusal_of(replies: Sequence[bytes]) -> BaseException | None:
    """Return why a worker could not read an edit; None where all could."""
    reply = next((reply for reply in replies if reply), None)
    return None if reply is None else rebuild_error(msgspec.msgpack.decode(reply))


@contextlib.contextmanager
def _leading_to(mailbox: Mailbox) -> Iterator[None]:
    """Let the processes of engines that are built inherit the way to a mailbox, and this one keep nothing of it."""
    with _building:
        os.environ[ADDRESS_VARIABLE] = mailbox.address
        try:
            yield
        finally:
            del os.environ[ADDRESS_VARIABLE]
