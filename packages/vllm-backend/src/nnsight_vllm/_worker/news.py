"""Saves that go home while their block goes on, for requests that ask for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nnsight._program.streaming import News, StreamedBook

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nnsight_vllm._mailbox import Postbox
    from nnsight_vllm._worker.outcomes import OutcomeWriter
    from nnsight_vllm.compat.model_access import WorkerModel


class NewsDesk:
    """The requests of one worker whose saves go home as they are made."""

    def __init__(self, model: WorkerModel, writer: OutcomeWriter, postbox: Postbox | None) -> None:
        """Watch no request yet."""
        self._model = model
        self._writer = writer
        self._postbox = postbox if writer.tells else None
        self._watched: dict[str, tuple[str, StreamedBook]] = {}

    def watch(self, request_id: str, key: str) -> StreamedBook | None:
        """Return the book in which a request marks its saves; None where nobody could be told of them."""
        if self._postbox is None:
            return None
        book = StreamedBook()
        self._watched[request_id] = (key, book)
        return book

    def forget(self, request_ids: Iterable[str]) -> None:
        """Watch requests no longer."""
        for request_id in request_ids if self._watched else ():
            self._watched.pop(request_id, None)

    def post(self) -> None:
        """Send home what was saved since the last step."""
        found = [(key, _news_of(book)) for key, book in self._watched.values()]
        news = [(key, each) for key, each in found if each]
        postbox = self._postbox
        if not news or postbox is None:
            return
        settled = self._model.note_progress()

        def make() -> Iterable[tuple[list[str], bytes]]:
            settled()
            try:
                return [self._writer.write_news(news)]
            except Exception:  # noqa: BLE001 - what cannot be read is told of when its request is over
                return []

        postbox.post_each(make)


def _news_of(book: StreamedBook) -> News:
    try:
        return book.take_news()
    except Exception:  # noqa: BLE001 - what cannot be copied comes home, or is refused, when the request is over
        return News()
