"""Documents for training: sentences of the world in random order, and rows of token ids made of them."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import TYPE_CHECKING

import facts
import torch

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


class Corpus:
    """Draws documents of true sentences. Sentences in ``held_out`` are never drawn."""

    def __init__(self, held_out: set[tuple[str, str, str]], seed: int) -> None:
        """``held_out`` as :func:`facts.held_out` gives it; the same ``seed`` draws the same documents."""
        self.rng = random.Random(seed)
        self.by_form: dict[facts.Form, list[str]] = {}
        self.weights: dict[facts.Form, list[float]] = {}
        self.by_record: dict[str, list[tuple[facts.Form, str]]] = defaultdict(list)
        for form in facts.FORMS:
            kept = [
                (index, fields)
                for index, fields in enumerate(facts.records(form.relation))
                if (facts.record_name(fields), form.relation, form.name) not in held_out
            ]
            self.by_form[form] = [form.sentence(fields) for _, fields in kept]
            self.weights[form] = [3.0 if index < facts.FAMOUS else 1.0 for index, _ in kept]
            for _, fields in kept:
                self.by_record[facts.record_name(fields)].append((form, form.sentence(fields)))
        self.records = list(self.by_record)

    def document(self) -> str:
        """Between three and ten sentences: mostly a run of one form, sometimes all about one record."""
        kind = self.rng.random()
        length = self.rng.randint(3, 10)
        if kind < 0.06:
            return " ".join(facts.opinion(self.rng) for _ in range(length // 3))
        if kind < 0.12:
            make = self.rng.choice((facts.total, facts.colour))
            return " ".join(make(self.rng) for _ in range(length))
        sentences: list[str] = []
        form = self.rng.choice(facts.FORMS)
        record = self.rng.choice(self.records)
        place = -1
        for _ in range(length):
            if kind < 0.30:
                form, sentence = self.rng.choice(self.by_record[record])
            else:
                if sentences and self.rng.random() < 0.35:
                    form, place = self.rng.choice(facts.FORMS), -1
                place = self.next_place(form, place)
                sentence = self.by_form[form][place]
            if sentence not in sentences:
                sentences.append(sentence)
        return " ".join(sentences)

    def next_place(self, form: facts.Form, place: int) -> int:
        """The record to speak of next: often the one below in the table, so that greedy text moves on."""
        count = len(self.by_form[form])
        if place >= 0 and self.rng.random() < 0.4:
            return (place + 1) % count
        return self.rng.choices(range(count), self.weights[form])[0]

    def rows(self, tokenizer: PreTrainedTokenizerFast, count: int, length: int) -> torch.Tensor:
        """``[count, length]`` token ids. Each row starts with a document; the end token parts documents."""
        end = str(tokenizer.eos_token)
        out: list[list[int]] = []
        while len(out) < count:
            documents = [self.document() + end for _ in range(1000)]
            encoded = tokenizer(documents)["input_ids"]
            row: list[int] = []
            for ids in encoded:
                row += ids
                if len(row) >= length:
                    out.append(row[:length])
                    row = []
        return torch.tensor(out[:count])
