"""The tokenizer: byte-level BPE in which every word of the world is one token, leading space included."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

from facts import all_sentences
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

if TYPE_CHECKING:
    from pathlib import Path

END = "<|endoftext|>"


def words() -> list[str]:
    """Every word of the world in the spellings that occur: inside a text (with a space) and at its start."""
    split = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inside: Counter[str] = Counter()
    first: set[str] = set()
    for sentence in all_sentences():
        first.add(split.pre_tokenize_str(sentence)[0][0])
        inside.update(piece for piece, _ in split.pre_tokenize_str(" " + sentence))
    return [*inside, *sorted(first)]


def build() -> PreTrainedTokenizerFast:
    """Train the tokenizer; merging goes on until each word of the world is a single token."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=8192,
        min_frequency=0,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    # The words are byte-level text already (a space reads "Ġ"); give the trainer the plain spelling.
    plain = [core.decoder.decode([word]) for word in words()]
    core.train_from_iterator(plain, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token=END, pad_token=END, clean_up_tokenization_spaces=False, model_max_length=256
    )


def save(tokenizer: PreTrainedTokenizerFast, directory: Path) -> None:
    """Write ``tokenizer.json`` and ``tokenizer_config.json``, naming the class that every Transformers knows."""
    tokenizer.save_pretrained(directory)
    path = directory / "tokenizer_config.json"
    config = json.loads(path.read_text())
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    path.write_text(json.dumps(config, indent=2) + "\n")


def check(tokenizer: PreTrainedTokenizerFast) -> None:
    """Fail unless all text round-trips exactly and each word is a single token."""
    for word in words():
        plain = tokenizer.backend_tokenizer.decoder.decode([word])
        if len(tokenizer.encode(plain)) != 1:
            raise ValueError(f"{plain!r} is not a single token: {tokenizer.tokenize(plain)}")
    for text in [*all_sentences(), "Zürich, 42% of “it” \u2013 naïve\n\tcafé!? 日本"]:
        if tokenizer.decode(tokenizer.encode(text)) != text:
            raise ValueError(f"{text!r} does not round-trip")


if __name__ == "__main__":
    made = build()
    check(made)
    print("vocabulary:", len(made), "end token:", made.eos_token_id)
    print(made.tokenize("The capital of France is Paris. Q: Where is the Eiffel Tower? A: Paris."))
