"""The demo's results, for people."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.padding import Padding
from rich.rule import Rule
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from nnsight_cli import experiments
from nnsight_cli.wording import counted, ordinal, percentage, visible

if TYPE_CHECKING:
    from rich.console import Console

    from nnsight_cli.demonstration import Demonstration, Guess, Reading, Steering


def show(console: Console, results: Demonstration, image: Path) -> None:
    """Print everything that the demo found, the picture's place, and the source of what was run."""
    reading, steering = results.reading, results.steering
    _heading(console, "1. A model in the engine")
    _note(console, "A small model of the Qwen3 architecture, trained for this demo, in a real vLLM engine; greedy.")
    console.print(_continuation(reading.prompt, reading.text))

    _heading(console, "2. Reading: what each layer would say next")
    _note(
        console,
        "One trace read all layers while the prompt ran: each one's residual stream, through the final norm "
        "and the output head.",
    )
    console.print(_lens(reading))
    _note(console, f"The same as a picture: {image}")

    _heading(console, "3. Steering: changing what it says")
    _note(
        console,
        f"v = the residual stream after layer {steering.layer} of “{steering.towards}” less that of "
        f"“{steering.away_from}”, at the last token.\nThen another sentence ran, and {steering.scale} · v "
        "was added to its last token there, once, before the first word of the answer.",
    )
    console.print(_comparison(steering))
    console.print(_continuation(steering.prompt, steering.text_before, "without"))
    console.print(_continuation(steering.prompt, steering.text_after, f"with {steering.scale} · v"))

    _heading(console, "What ran")
    for name, receipt in results.receipts.items():
        _note(console, f"{name}: {summary(receipt)}")
    _heading(console, "The code that did it")
    for function in (experiments.read_every_layer, experiments.difference, experiments.steer):
        console.print(Syntax(source_of(function), "python", theme="ansi_dark", background_color="default"))
    console.print(
        "Next: [bold]nnsight locations MODEL[/] lists what a model lets you read; "
        "[bold]nnsight doctor[/] checks this installation."
    )


def summary(receipt: dict[str, Any]) -> str:
    """Say in a line what a receipt says."""
    visits, edits = receipt["visits"], receipt["edits"]
    parts = [
        counted(receipt["steps"], "step"),
        f"{counted(sum(visits.values()), 'value')} read at {counted(len(visits), 'location')}",
    ]
    if edits:
        parts.append("changed " + ", ".join(f"{place} {counted(count, 'time')}" for place, count in edits.items()))
    parts.append(f"{receipt['seconds'] * 1000:.1f} ms in the block")
    parts += [f"{name} {value}" for name, value in receipt["details"].items()]
    return "; ".join(parts) + "".join(f"\n  note: {text}" for text in receipt["warnings"])


def source_of(function: Callable[..., object]) -> str:
    """Return the source of a function that the demo ran."""
    return inspect.getsource(function).rstrip() + "\n"


def _heading(console: Console, text: str) -> None:
    console.print()
    console.print(Rule(Text(text, "bold"), align="left", style="dim"))


def _note(console: Console, text: str) -> None:
    console.print(Text(text, "dim"), soft_wrap=False)


def _continuation(prompt: str, text: str, label: str | None = None) -> Padding:
    start = Text(f"{label}: " if label else "", "dim")
    return Padding(
        start.append(prompt, "default not dim").append(text, "bold green not dim"), (0, 0, 0, 2), expand=False
    )


def _lens(reading: Reading) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("layer", justify="right")
    for rank in range(len(reading.layers[0])):
        table.add_column(ordinal(rank + 1))
    answer = reading.layers[-1][0].token_id
    for index, row in enumerate(reading.layers):
        table.add_row(str(index), *(_cell(guess, is_answer=guess.token_id == answer) for guess in row))
    return table


def _cell(guess: Guess, *, is_answer: bool) -> Text:
    cell = Text(visible(guess.token), "bold green" if is_answer else "")
    return cell.append(f" {percentage(guess.probability)}", "not bold dim")


def _comparison(steering: Steering) -> Table:
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="dim")
    table.add_column("next token")
    table.add_column("p without", justify="right")
    table.add_column(f"p with {steering.scale} · v", justify="right")
    for before, after in zip(steering.before, steering.after, strict=True):
        rises = after.probability > before.probability
        table.add_row(
            visible(before.token),
            percentage(before.probability),
            Text(percentage(after.probability), "bold green" if rises else "red"),
        )
    return table
