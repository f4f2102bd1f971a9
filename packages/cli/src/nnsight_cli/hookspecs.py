"""The hook of the command line, beside those of the core (`nnsight.hookspecs`).

A plugin of nnsight adds commands with it. The hook exists in the `nnsight` command alone, so mark an implementation
as optional:

```python
@nnsight.hookimpl(optionalhook=True)
def register_commands(application):
    @application.command()
    def hello() -> None:
        "Say hello."
```
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nnsight.hookspecs import hookspec

if TYPE_CHECKING:
    from typer import Typer


@hookspec
def register_commands(application: Typer) -> None:
    """Add commands, or groups of them, to the command line. Two commands of one name are refused."""
