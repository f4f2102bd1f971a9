"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

Verbose = Annotated[bool, typer.Option("--verbose", help="Show what the engine prints, and the traceback of an error.")]
Json = Annotated[bool, typer.Option("--json", help="Print the results as JSON, for programs.")]
