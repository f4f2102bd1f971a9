"""The `nnsight` command, and the small model that its demo runs."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

__version__ = "0.1.0"

__all__ = ["__version__", "demo_model_path"]


def demo_model_path() -> Path:
    """Return the folder of the bundled checkpoint: a model of the Qwen3 architecture, small enough for any CPU.

    Raises:
        FileNotFoundError: The installation has no checkpoint.
    """
    folder = Path(str(files("nnsight_cli"))) / "demo_model"
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"{folder} holds no checkpoint; install nnsight-cli again")
    return folder
