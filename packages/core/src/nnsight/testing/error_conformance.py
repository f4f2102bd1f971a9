"""What every backend promises about errors, and what it says of a request."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch

from nnsight.errors import BlockEscapeError, NNsightError, OutOfOrderError, UnknownLocationError

if TYPE_CHECKING:
    from nnsight.testing.subject import Subject


class ErrorConformance:
    """Errors, threads and receipts."""

    def test_an_unknown_location_offers_the_nearest_names(self, subject: Subject) -> None:
        model, layer = subject.model, subject.layers[0]
        wrong = layer[:-1] + "99"
        with (
            pytest.raises(UnknownLocationError, match=r"nearest|has"),
            model.trace(*subject.prompts[0], **subject.keywords(1)),
        ):
            model.get(wrong).output.save()

    def test_a_read_after_the_model_moved_on_names_both_locations(self, subject: Subject) -> None:
        model, layers = subject.model, subject.layers
        with pytest.raises(OutOfOrderError) as raised, model.trace(*subject.prompts[0], **subject.keywords(2)):
            late = model.get(layers[2]).output.save()  # noqa: F841 - comes home with the error
            model.get(layers[0]).output.save()
        assert f"{layers[0]}.output" in str(raised.value)
        assert f"{layers[2]}.output" in str(raised.value)
        assert set(raised.value.saves) == {"late"}

    def test_a_traceback_ends_on_the_line_of_the_block(self, subject: Subject) -> None:
        model, layer = subject.model, subject.layers[0]
        with (
            pytest.raises(ValueError, match="of my own") as raised,
            model.trace(*subject.prompts[0], **subject.keywords(1)),
        ):
            model.get(layer).output
            raise ValueError("of my own", 7)
        assert raised.value.args == ("of my own", 7)
        traceback = raised.value.__traceback__
        while traceback is not None and traceback.tb_next is not None:
            traceback = traceback.tb_next
        assert traceback is not None
        assert traceback.tb_frame.f_code.co_filename == __file__
        with open(__file__, encoding="utf-8") as file:
            assert "raise ValueError" in file.read().splitlines()[traceback.tb_lineno - 1]

    def test_a_return_across_the_edge_of_a_block_is_refused_with_its_line(self, subject: Subject) -> None:
        model = subject.model

        def escaping() -> None:
            with model.trace(*subject.prompts[0], **subject.keywords(1)):
                return

        with pytest.raises(BlockEscapeError, match="return"):
            escaping()

    def test_the_engine_serves_on_after_errors(self, subject: Subject) -> None:
        model, layer = subject.model, subject.layers[0]
        with pytest.raises(NNsightError), model.trace(*subject.prompts[0], **subject.keywords(1)):
            model.get(layer).output = torch.zeros(1, 1)
        reference = subject.reference(subject.prompts[0], 2, {})
        with model.trace(*subject.prompts[0], **subject.keywords(2)) as tracer:
            result = tracer.result.save()
        assert subject.tokens(result) == list(reference.tokens)

    def test_two_threads_trace_one_model_at_once(self, subject: Subject) -> None:
        found: dict[int, Any] = {}

        def work(index: int) -> None:
            model, stream, layer = subject.model, subject.stream, subject.layers[0]
            with model.trace(*subject.prompts[index], **subject.keywords(2)):
                states = stream(model.get(layer).output).save()
            found[index] = states

        threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [found[index].shape[0] for index in range(2)] == list(subject.lengths[:2])

    def test_a_receipt_counts_visits_and_edits(self, subject: Subject) -> None:
        model, add, layers = subject.model, subject.add, subject.layers
        vector = torch.ones(subject.hidden_size)
        with model.trace(*subject.prompts[0], **subject.keywords(3)) as tracer:
            for _ in tracer.iter[:3]:
                add(model.get(layers[0]), vector)
                model.get(layers[1]).output
        receipt = tracer.receipt
        assert receipt.steps == 3
        assert receipt.visits == {f"{layers[0]}.output": 3, f"{layers[1]}.output": 3}
        assert receipt.edits == {f"{layers[0]}.output": 3}
        assert sum(receipt.tiers.values()) == 3
        # A backend that tells rows apart has served the prompt and one row for each step after it.
        assert receipt.rows in (None, subject.lengths[0] + 2)
        assert receipt.untouched == ()

    def test_a_receipt_names_what_was_asked_for_and_never_reached(self, subject: Subject) -> None:
        model, layers = subject.model, subject.layers
        with model.trace(*subject.prompts[0], **subject.keywords(1)) as tracer:
            model.get(layers[2]).output
            try:
                model.get(layers[1]).output
            except OutOfOrderError:
                kept = "caught".save()
        assert kept == "caught"
        assert tracer.receipt.untouched == (f"{layers[1]}.output",)
        assert f"{layers[1]}.output" in str(tracer.receipt)
        assert "1 untouched" in repr(tracer.receipt)
