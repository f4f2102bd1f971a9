"""The command line as a whole: one Typer application, filled by plugins."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

import pluggy
import typer
from typer.main import get_command_name

from nnsight.errors import PluginLoadError
from nnsight.plugins import plugin_manager
from nnsight_cli import __version__, hookspecs


def build_application(manager: pluggy.PluginManager | None = None) -> typer.Typer:
    """Build the command line from what the plugins register.

    Args:
        manager: Where the plugins are; by default those of this process.

    Raises:
        PluginLoadError: A plugin implements a hook that does not exist, or two add a command of one name.
    """
    manager = plugin_manager() if manager is None else manager
    application = typer.Typer(
        help="Look inside a model while vLLM runs it, and change what it does.",
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    application.callback(invoke_without_command=True)(_root)
    if not hasattr(manager.hook, "register_commands") or not manager.hook.register_commands.has_spec():
        manager.add_hookspecs(hookspecs)
    try:
        manager.check_pending()
    except pluggy.PluginValidationError as error:
        raise PluginLoadError(
            f"{error}; correct the hook's name, or mark it with hookimpl(optionalhook=True) if another program calls it"
        ) from error
    manager.hook.register_commands(application=application)
    _refuse_duplicates(application)
    return application


def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        typer.echo(f"nnsight {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def _refuse_duplicates(application: typer.Typer) -> None:
    names = [
        command.name or get_command_name(command.callback.__name__)
        for command in application.registered_commands
        if command.callback is not None
    ]
    names += [group.name for group in application.registered_groups if isinstance(group.name, str)]
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise PluginLoadError(
            f"more than one plugin adds the command {', '.join(map(repr, twice))}; leave one of them out with "
            "NNSIGHT_PLUGINS, which lists the plugins to load"
        )
