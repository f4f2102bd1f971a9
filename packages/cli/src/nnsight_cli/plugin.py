"""The commands of nnsight as a plugin. Imports no command before one is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nnsight.hookspecs import hookimpl

if TYPE_CHECKING:
    from typer import Typer


@hookimpl(optionalhook=True)
def register_commands(application: Typer) -> None:
    """Add `demo`, `doctor` and `locations`."""
    from nnsight_cli.commands.demo import demo
    from nnsight_cli.commands.doctor import doctor
    from nnsight_cli.commands.locations import locations

    for command in (demo, doctor, locations):
        application.command()(command)
