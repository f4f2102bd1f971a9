"""The faults that are planted: a piece of source that must occur once, what takes its place, and who must see it."""

from __future__ import annotations

from dataclasses import dataclass

CORE = "packages/core/src/nnsight"
VLLM = "packages/vllm-backend/src/nnsight_vllm"
TORCH = "packages/core/tests/conformance/test_torch_conformance.py"
VALUES = "packages/core/tests/interleave/test_values.py"
ROWS = "packages/core/tests/source/test_rows_and_skips.py"
MODEL = "packages/core/tests/trace/test_torch_model.py"
BUDGETS = "packages/core/tests/trace/test_budgets.py"
ENGINE = "packages/vllm-backend/tests/test_values.py"


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        name: What goes wrong.
        file: Where, from the root of the repository.
        found: The text that is replaced.
        planted: What takes its place.
        tests: Arguments of pytest: the smallest selection that must fail.
        runner: The model runner of vLLM that the tests need, or None for those without an engine.
    """

    name: str
    file: str
    found: str
    planted: str
    tests: tuple[str, ...]
    runner: str | None = None


FAULTS = (
    Fault(
        "wrong visit counted",
        f"{CORE}/_interleave/run.py",
        "visits[where] = visits.get(where, 0) + 1\n        self._last = location\n        self._was_read",
        "visits[where] = 1\n        self._last = location\n        self._was_read",
        (TORCH, "-k", "receipt_counts"),
    ),
    Fault(
        "edit dropped",
        f"{CORE}/_interleave/visit.py",
        "            if own._version != version:\n                return False\n",
        "            if own is version:\n                return False\n",
        (TORCH, "-k", "edit"),
    ),
    Fault(
        "view leaked instead of a copy, in-process",
        f"{CORE}/_interleave/scope.py",
        'of the same autograd graph."""\n        return live.clone()\n',
        'of the same autograd graph."""\n        return live.view_as(live)\n',
        (MODEL, "-k", "works_in_place"),
    ),
    Fault(
        "view leaked instead of a copy of the rows",
        f"{CORE}/_interleave/scope.py",
        "            return live[self.start : self.stop].clone()\n",
        "            return live[self.start : self.stop]\n",
        (MODEL, VALUES),
    ),
    Fault(
        "error swallowed",
        f"{CORE}/_interleave/turns.py",
        "ends that request, not the worker\n            self.error = error\n",
        "ends that request, not the worker\n            del error\n",
        (TORCH, "-k", "error"),
    ),
    Fault(
        "replacement not checked where it is assigned",
        f"{CORE}/_interleave/visit.py",
        "        checking.land(self.live, value, location.name)\n",
        "",
        ("packages/core/tests/interleave/test_visits.py", "-k", "does_not_fit"),
    ),
    Fault(
        "replacement of another shape let through",
        f"{CORE}/_interleave/scope.py",
        "        if own.shape != live.shape:\n            raise _misfit(where, live.shape, own.shape)\n",
        "",
        (TORCH, "-k", "another_shape"),
    ),
    Fault(
        "rows off by one",
        f"{CORE}/_interleave/scope.py",
        "            rows = live[self.start : self.stop]\n",
        "            rows = live[self.start - 1 : self.stop - 1]\n",
        (VALUES, MODEL),
    ),
    Fault(
        "step miscounted",
        f"{CORE}/_torch/model.py",
        "            self._step += 1\n",
        "            self._step += 2\n",
        (TORCH, "-k", "iter"),
    ),
    Fault(
        "save lost on error",
        f"{CORE}/_program/program.py",
        "    finally:\n        found = {**values, **variables}\n",
        "    else:\n        found = {**values, **variables}\n",
        (TORCH, "-k", "error or refused"),
    ),
    Fault(
        "variables lost on error",
        f"{CORE}/_program/program.py",
        "        variables = variables_of(error, function)\n",
        "        variables = {}\n",
        (MODEL, "-k", "with_an_error"),
    ),
    Fault(
        "saves of a name mixed between invokes",
        f"{CORE}/_trace/deliver.py",
        "            found.setdefault(name, []).append(value)\n",
        "            found.setdefault(name, []).insert(0, value)\n",
        (TORCH, "-k", "several_invokes"),
    ),
    Fault(
        "late edit not noticed",
        f"{CORE}/_interleave/late.py",
        "            if probe._version != version:\n",
        "            if probe is None:\n",
        (TORCH, "-k", "late_edit"),
    ),
    Fault(
        "read-only not enforced on edits",
        f"{CORE}/_interleave/visit.py",
        "            if read_only:\n",
        "            if read_only and assigned:\n",
        (MODEL, "-k", "read_only"),
    ),
    Fault(
        "read-only not enforced on assignments",
        f"{CORE}/_interleave/run.py",
        "        visit = self._visit_of(location, writes=True)\n        if self._read_only:\n",
        "        visit = self._visit_of(location, writes=True)\n        if self._read_only is None:\n",
        (VALUES, "-k", "read_only"),
    ),
    Fault(
        "read-only not enforced on skips",
        f"{CORE}/_interleave/run.py",
        "        if self._read_only:\n            raise read_only(location)\n        self._asked",
        "        self._asked",
        (VALUES, "-k", "read_only"),
    ),
    Fault(
        "helper taken for harmless",
        f"{CORE}/_program/effects.py",
        '        if not safe:\n            self._note(function, f"calls {name}")\n',
        "        if not safe:\n            pass\n",
        ("packages/core/tests/program/test_effects.py",),
    ),
    Fault(
        "flag for a change in place overlooked",
        f"{CORE}/_program/harmless.py",
        '    return parameters.index("inplace") if "inplace" in parameters else None\n',
        "    return None\n",
        ("packages/core/tests/properties/test_effect_summaries.py",),
    ),
    Fault(
        "one value decoded as two",
        f"{CORE}/_wire/decoder.py",
        "                value = self._values.setdefault(index, value)\n",
        "                pass\n",
        ("packages/core/tests/wire/test_wire_aliasing.py",),
    ),
    Fault(
        "changes of a container merged in reverse",
        f"{CORE}/_trace/deliver.py",
        "        for change in of_blocks:\n            _change(container, change)\n",
        "        for change in reversed(of_blocks):\n            _change(container, change)\n",
        (TORCH, MODEL, "packages/core/tests/trace/test_saves.py"),
    ),
    Fault(
        "exception type lost on the way home",
        f"{CORE}/_program/failures.py",
        "    error = _rebuild(data) or RequestFailedError(",
        "    error = RequestFailedError(",
        ("packages/core/tests/program/test_failures.py",),
    ),
    Fault(
        "exception type lost in-process",
        f"{CORE}/_trace/deliver.py",
        "    if acts_on_its_process(type(error)) and not isinstance(error, KeyboardInterrupt):\n",
        "    if not isinstance(error, KeyboardInterrupt):\n",
        (TORCH, "-k", "error"),
    ),
    Fault(
        "grad mode of the block leaked into the model",
        f"{CORE}/_interleave/modes.py",
        "            torch._C._set_grad_enabled(self._model_grad)\n",
        "            pass\n",
        (MODEL, "-k", "grad"),
    ),
    Fault(
        "hook left armed",
        f"{CORE}/_interleave/interleaver.py",
        "        for site in self._armed:\n            site.disarm()\n",
        "",
        (MODEL, "-k", "modules_are_as_before"),
    ),
    Fault(
        "circle left behind by a forward",
        f"{CORE}/_interleave/interleaver.py",
        "        self._after_turn = None\n        self._sites.clear()\n",
        "",
        ("packages/core/tests/trace/test_garbage.py",),
    ),
    Fault(
        "circle left behind by a capture",
        f"{CORE}/_program/effects.py",
        "        del self._reached\n",
        "        del self\n",
        ("packages/core/tests/trace/test_garbage.py",),
    ),
    Fault(
        "values read ahead in any order",
        f"{CORE}/_interleave/ahead.py",
        "            for number in range(self._next, len(self._kept)):\n",
        "            for number in range(len(self._kept)):\n",
        ("packages/core/tests/interleave/test_ahead.py",),
    ),
    Fault(
        "change of a copy not looked for where a turn goes on",
        f"{CORE}/_interleave/run.py",
        "                if not visit.is_untouched():\n                    visit.land(read_only=self._read_only)\n",
        "",
        ("packages/core/tests/interleave/test_ahead.py",),
    ),
    Fault(
        "value read ahead by reference",
        f"{CORE}/_interleave/ahead.py",
        "                    [map_tensors(item, scope.take) if index in items else None",
        "                    [item if index in items else None",
        ("packages/core/tests/interleave/test_ahead.py",),
    ),
    Fault(
        "memory of a copy used for two",
        f"{CORE}/_interleave/ahead.py",
        "                self._target = None\n                ahead = self._ahead\n",
        "                ahead = self._ahead\n",
        ("packages/core/tests/interleave/test_ahead.py",),
    ),
    Fault(
        "skip applied to the rows of all",
        f"{CORE}/_interleave/skips.py",
        "    spared = len(due) == 1 and scopes[0].alone and not",
        "    spared = len(due) == 1 and not",
        (ROWS,),
    ),
    Fault(
        "module shared by parents not told apart",
        f"{CORE}/_interleave/interleaver.py",
        "        return gate is None or (gate[0].depth > 0 and not any(site.depth for site in gate[1]))\n",
        "        return True\n",
        (MODEL, "-k", "shared or tied"),
    ),
    Fault(
        "ad hoc call taken for a visit",
        f"{CORE}/_interleave/passage.py",
        "        if getcurrent() is not self.hub.turn:\n            return original(*args, **kwargs)\n",
        "",
        ("packages/core/tests/interleave/test_visits.py", "-k", "no_visit_of_its_neighbours"),
    ),
    Fault(
        "prefix-cache salt missing",
        f"{VLLM}/compat/admission.py",
        "    own = uuid.uuid4().hex if free or beside.free else beside.fingerprint\n",
        "    own = beside.fingerprint\n",
        (ENGINE, "-k", "prefix_cache"),
        "v1",
    ),
    Fault(
        "request not ended when its block stops",
        f"{VLLM}/compat/engine_core.py",
        "            if not stopped and request.request_id in self.nnsight_ended:\n",
        "            if not stopped and request is None:\n",
        (ENGINE, "-k", "stopped_block"),
        "v1",
    ),
    Fault(
        "samples and logits of a neighbour served",
        f"{VLLM}/_worker/share.py",
        "RowScope(index, index + 1, num_requests)",
        "RowScope(0, 1, num_requests)",
        (ENGINE, "-k", "whoever_shares"),
        "v1",
    ),
    Fault(
        "request kept after its caller is gone",
        f"{VLLM}/_client/eager.py",
        '            self._call("nnsight_discard", msgspec.msgpack.encode(list(keys)))\n',
        "            pass\n",
        (ENGINE, "-k", "interrupted"),
        "v1",
    ),
    Fault(
        "file of a large value left behind",
        f"{VLLM}/_transfer.py",
        "    finally:\n        remove_shared(path)\n    for copy",
        "    finally:\n        pass\n    for copy",
        (ENGINE, "-k", "leave_no_file"),
        "v1",
    ),
    Fault(
        "phantom step served",
        f"{VLLM}/compat/runners.py",
        "[span for span in spans if not self._nnsight_is_phantom(span)]",
        "list(spans)",
        (ENGINE, "-k", "no_step_beyond"),
        "v2-async",
    ),
    Fault(
        "a loop not counted",
        f"{CORE}/_capture/counting.py",
        "        node.iter = _counted(node.iter)\n        return node\n\n    def visit_AsyncFor",
        "        return node\n\n    def visit_AsyncFor",
        (BUDGETS, "-k", "of_one_step"),
    ),
    Fault(
        "a copy that was let go of counted",
        f"{CORE}/_interleave/budget.py",
        "        self._charged = held.total\n",
        "        held.total = self._charged\n",
        (BUDGETS, "-k", "lets_go"),
    ),
    Fault(
        "a token that the grammar does not allow let through",
        f"{VLLM}/_worker/tokens.py",
        "        for token in tokens:\n",
        "        for token in ():\n",
        ("packages/vllm-backend/tests/test_stop_and_failure.py", "-k", "grammar"),
        "v1",
    ),
)
