"""`nnsight doctor`: check the installation and say what to do about it."""

import dataclasses
import json
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from nnsight.diagnosis import Finding
from nnsight_cli import checks, demo_model_path
from nnsight_cli.commands.options import Json, Verbose
from nnsight_cli.demo_engine import ENGINE_KEYWORDS
from nnsight_cli.terminal import quiet_engine
from nnsight_cli.wording import counted

_MARKS = {"ok": ("✓", "green"), "warning": ("!", "yellow"), "error": ("✗", "bold red")}
Engine = Annotated[bool, typer.Option(help="Start an engine on the bundled model and run a trace in it.")]


def doctor(engine: Engine = True, as_json: Json = False, verbose: Verbose = False) -> None:
    """Check the installation, start a small engine, and say what to do about what is wrong."""
    with quiet_engine(verbose=verbose, for_programs=as_json) as terminal:
        findings = checks.check_installation()
        doing = "starting an engine and running a trace in it (about 30 s)" if engine else "importing the backends"
        with terminal.step(doing, "engine tried" if engine else "backends looked at"):
            findings += checks.check_backends(str(demo_model_path()) if engine else None, dict(ENGINE_KEYWORDS))
        if as_json:
            terminal.output.print_json(json.dumps([dataclasses.asdict(finding) for finding in findings]))
        else:
            _show(terminal.output, findings, engine=engine)
    if any(finding.status == "error" for finding in findings):
        raise typer.Exit(1)


def _show(console: Console, findings: Sequence[Finding], *, engine: bool) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_column()
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        found = Text(finding.found)
        if finding.advice:
            found.append(f"\n→ {finding.advice}", "bold")
        table.add_row(Text(*_MARKS[finding.status]), finding.name, found)
    console.print(table)
    errors = sum(finding.status == "error" for finding in findings)
    warnings = sum(finding.status == "warning" for finding in findings)
    if errors or warnings:
        console.print(f"{counted(errors, 'error')}, {counted(warnings, 'warning')}")
    else:
        console.print("Everything works." if engine else "Nothing wrong was found; no engine was started.")
