"""`nnsight locations`: what a model lets a block read and change."""

import json
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from nnsight_cli.commands.options import Json, Verbose
from nnsight_cli.standard_listing import StandardLine, standard_listing
from nnsight_cli.terminal import quiet_engine
from nnsight_cli.tree_listing import SIDES, Line, listing
from nnsight_cli.wording import counted

# Modules that hold others and are never called, so they have no input and no output.
_CONTAINERS = ("ModuleList", "ModuleDict")

Model = Annotated[str, typer.Argument(metavar="MODEL", help="Repository id or folder of a checkpoint.")]
Pattern = Annotated[
    str | None,
    typer.Option(
        "--filter",
        metavar="GLOB",
        help="Only these locations; [bold]*[/] matches within one part of a path: 'model.layers.*.mlp.output'.",
    ),
]
Unfolded = Annotated[bool, typer.Option("--all", help="List every layer, not one line for all that are alike.")]


def locations(
    model: Model,
    pattern: Pattern = None,
    unfolded: Unfolded = False,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """List the places of a model that a block can read and change. Starts no engine and needs no weights."""
    from nnsight.backends import module_of
    from nnsight.plugins import find_family, load_backend

    with quiet_engine(verbose=verbose, for_programs=as_json) as terminal:
        with terminal.step("importing vLLM and building the module tree", "module tree built"):
            root = module_of(load_backend("vllm")(model).envoy)
            named = dict(root.named_modules(remove_duplicate=False))
            family = find_family(root)
        kinds = {path: type(module).__name__ for path, module in named.items()}
        modules = [(path, kind) for path, kind in kinds.items() if kind not in _CONTAINERS]
        lines = listing(modules, pattern=pattern, fold=not unfolded)
        names = standard_listing(named, family, pattern=pattern, fold=not unfolded)
        if as_json:
            terminal.output.print_json(json.dumps(_document(lines, names)))
        else:
            if lines:
                _show(terminal.output, lines)
            if names:
                _show_standard(terminal.output, names)
    if not lines and not names:
        raise typer.BadParameter(
            f"{pattern!r} picks none of {counted(len(modules), 'module')}; * matches within one part of a path only, "
            "and without --filter all are listed",
            param_hint="--filter",
        )


def _document(lines: list[Line], names: list[StandardLine]) -> dict[str, Any]:
    return {
        "modules": [{"location": line.location, "kind": line.kind, "modules": line.paths} for line in lines],
        "standard_names": [
            {"location": name.location, "stands_for": name.stands_for, "locations": name.locations} for name in names
        ],
    }


def _show_standard(console: Console, names: list[StandardLine]) -> None:
    folded = any(name.numbers for name in names)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("standard name", overflow="fold")
    if folded:
        table.add_column("*")
    table.add_column("stands for", style="dim", overflow="fold")
    for name in names:
        cells = [Text(name.location), Text(name.numbers), Text(name.stands_for)]
        table.add_row(*(cells if folded else [cells[0], cells[2]]))
    console.print()
    console.print(table)
    console.print(
        f"{counted(len(names), 'standard name')}, the same for every known family. In a block "
        "[bold]layers.0.resid_pre[/] is written [bold]model.layers\\[0].resid_pre[/]."
    )


def _show(console: Console, lines: list[Line]) -> None:
    folded = any(line.numbers for line in lines)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("location", overflow="fold")
    if folded:
        table.add_column("*")
    table.add_column("module", style="dim")
    for line in lines:
        cells = [Text(line.location), Text(line.numbers), Text(line.kind)]
        table.add_row(*(cells if folded else [cells[0], cells[2]]))
    console.print(table)
    count = sum(len(line.paths) for line in lines)
    if any(line.side for line in lines):
        console.print(counted(count, "location"), style="dim")
        return
    sides = ", ".join(f".{side}" for side in SIDES)
    console.print(
        f"{counted(count, 'module')}, each with {sides}. In a block [bold]model.layers.0.mlp.output[/] is written "
        "[bold]model.model.layers\\[0].mlp.output[/]; the request itself has [bold]model.logits[/], "
        "[bold]model.samples[/] and [bold]tracer.result[/]."
    )
