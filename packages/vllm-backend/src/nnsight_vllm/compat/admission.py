"""Our part of an engine core: which edits a request runs beside, and what it may share of the prefix cache.

Both are decided when the request is added, before its prompt is hashed. In an engine with processes of its own that is
in the thread that receives requests, while edits come and go in the core's loop; so what was decided travels with the
request to the workers, and an edit is not forgotten there before the requests that were given it are gone.

Source:
    vLLM 0.27.1, v1/engine/core.py, EngineCore.preprocess_add_request and EngineCoreProc.process_input_sockets
"""

from __future__ import annotations

import copy
import functools
import hashlib
import threading
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final
from weakref import WeakSet

import msgspec

from nnsight_vllm._edits import INSTALL, UNINSTALL, TravellingEdit
from nnsight_vllm.compat.requests import ours_of
from nnsight_vllm.compat.switch import KEY, options_of

_creating: Final = threading.Lock()


def wrap_preprocess_add_request(preprocess_add_request: Any) -> Any:
    """Wrap `EngineCore.preprocess_add_request` to decide what a request runs beside, and shares, in engines of ours."""

    @functools.wraps(preprocess_add_request)
    def traced_preprocess_add_request(self: Any, request: Any) -> Any:
        params = request.sampling_params
        ours = ours_of(params)
        admission = self.__dict__.get("nnsight_admission")
        if params is None or (ours is None and (admission is None or not admission.installed)):
            return preprocess_add_request(self, request)
        if options_of(self.vllm_config) is None:
            return preprocess_add_request(self, request)
        splits = _splits(self.vllm_config.scheduler_config, request)
        return _admission_of(self).admit(
            request, ours or {}, lambda: preprocess_add_request(self, request), splits=splits
        )

    return traced_preprocess_add_request


def wrap_collective_rpc(collective_rpc: Any) -> Any:
    """Wrap `EngineCore.collective_rpc` to note which edits the workers have."""

    @functools.wraps(collective_rpc)
    def traced_collective_rpc(
        self: Any, method: Any, timeout: float | None = None, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if method not in (INSTALL, UNINSTALL) or options_of(self.vllm_config) is None:
            return collective_rpc(self, method, timeout, args, kwargs)
        admission = _admission_of(self)
        if method == UNINSTALL:
            unused = admission.retire(msgspec.msgpack.decode(args[0]))
            return collective_rpc(self, UNINSTALL, timeout, (msgspec.msgpack.encode(unused),), kwargs)
        edit = TravellingEdit.read(args[0])
        replies = collective_rpc(self, INSTALL, timeout, args, kwargs)
        if any(replies):
            # One of the workers could not read it, so none may keep it.
            collective_rpc(self, UNINSTALL, timeout, (msgspec.msgpack.encode([edit.key]),), kwargs)
        else:
            admission.install(edit)
        return replies

    return traced_collective_rpc


def _splits(scheduler_config: Any, request: Any) -> bool:
    # A prompt that no step has room for would wait for one forever; its blocks are told of the parts instead.
    fits = len(request.prompt_token_ids or ()) <= scheduler_config.max_num_batched_tokens
    return bool(scheduler_config.enable_chunked_prefill) and fits


def _admission_of(core: Any) -> Admission:
    found: Admission | None = core.__dict__.get("nnsight_admission")
    if found is None:
        with _creating:
            found = core.__dict__.setdefault("nnsight_admission", Admission())
    return found


class Admission:
    """The edits of one engine, and the requests that were given them.

    Attributes:
        installed: The edits that apply to requests that are added now, by key in the order of their installation.
    """

    def __init__(self) -> None:
        """Begin without edits."""
        self.installed: dict[str, TravellingEdit] = {}
        self._users: dict[str, WeakSet[Any]] = {}
        self._known: dict[tuple[str, ...], Beside] = {}
        self._lock = threading.Lock()

    def install(self, edit: TravellingEdit) -> None:
        """Apply an edit to requests that are added from now on; the workers have it."""
        with self._lock:
            self._known.clear()
            self.installed[edit.key] = edit
            self._users[edit.key] = WeakSet()

    def retire(self, keys: Sequence[str]) -> list[str]:
        """Apply edits no longer, and return the keys of all retired ones that no request will ask for again."""
        with self._lock:
            self._known.clear()
            for key in keys:
                self.installed.pop(key, None)
            unused = [key for key, users in self._users.items() if key not in self.installed and not users]
            for key in unused:
                del self._users[key]
        return unused

    def admit(self, request: Any, ours: dict[str, Any], add: Any, *, splits: bool) -> Any:
        """Add a request with what was decided for it.

        Args:
            request: vLLM's own request, as it came.
            ours: What it brought for us.
            add: Goes on with it, and returns the request of the scheduler with something else.
            splits: Whether its prompt might be computed in several steps, and could be computed in one.
        """
        with self._lock:
            chosen = ours.get("edits")
            beside = self._beside(self.installed if chosen is None else chosen)
            # Those that a client of ours sends are the request's alone; sequences and stock clients may share theirs.
            alone = "key" in ours and not ours.get("several")
            params = request.sampling_params if alone else copy.copy(request.sampling_params)
            whole = bool(ours.get("whole")) or (splits and beside.whole)
            params.extra_args = {**(params.extra_args or {}), KEY: {**ours, "edits": beside.keys, "whole": whole}}
            traced = "program" in ours
            if traced or beside.looks:
                # A cached token runs no forward, so no block would see its row.
                params.skip_reading_prefix_cache = True
            request.sampling_params = params
            request.cache_salt = salt_of(request.cache_salt, beside, free=traced and ours.get("writes", True))
            added = add()
            for users in beside.users:
                users.add(added[0])
        return added

    def _beside(self, keys: Iterable[str]) -> Beside:
        """Return what follows from the edits of these keys, told once for the requests that run beside the same."""
        chosen = tuple(keys)
        found = self._known.get(chosen)
        if found is None:
            edits = [self.installed[key] for key in chosen if key in self.installed]
            written = [edit.fingerprint for edit in edits if edit.kind == "every_row"]
            found = self._known[chosen] = Beside(
                keys=chosen,
                users=[self._users[edit.key] for edit in edits],
                whole=any(edit.whole for edit in edits),
                looks=any(edit.kind != "every_row" for edit in edits),
                # An edit that was chosen and is gone ends the request, wherever that gets.
                free=len(edits) < len(chosen) or any(edit.kind == "free" for edit in edits),
                fingerprint=hashlib.sha256("".join(written).encode()).hexdigest() if written else None,
            )
        return found


@dataclass(frozen=True, slots=True)
class Beside:
    """What follows for a request from the edits that it runs beside.

    Attributes:
        keys: Their keys, in order, those of edits that are gone too.
        users: The requests that were given each of them.
        whole: Whether one of them needs a prompt computed in one step.
        looks: Whether one of them does anything but change every row alike, so that it must see each row.
        free: Whether what one of them does to the model is its request's alone.
        fingerprint: The same for edits that change every row in the same way; None where there is none of these.
    """

    keys: tuple[str, ...]
    users: Sequence[WeakSet[Any]]
    whole: bool
    looks: bool
    free: bool
    fingerprint: str | None


def salt_of(given: str | None, beside: Beside, *, free: bool) -> str | None:
    """Return the salt of a request: requests share keys and values of tokens only where they have the same.

    Args:
        given: The salt that its caller gave it.
        beside: The edits that it runs beside.
        free: Whether something else may change the model beside it.
    """
    own = uuid.uuid4().hex if free or beside.free else beside.fingerprint
    if own is None:
        return given
    return f"nnsight:{own}" if given is None else f"nnsight:{own}:{given}"
