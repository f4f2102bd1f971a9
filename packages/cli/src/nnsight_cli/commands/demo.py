"""`nnsight demo`: read and steer a small model inside a real vLLM engine."""

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer

from nnsight_cli import demo_model_path
from nnsight_cli.commands.options import Json, Verbose
from nnsight_cli.demo_engine import running_model
from nnsight_cli.terminal import Terminal, quiet_engine

Image = Annotated[Path, typer.Option("--image", dir_okay=False, help="Where the picture of the layers is written.")]


def demo(
    image: Image = Path("nnsight-demo-lens.png"),
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Read and steer a small bundled model inside a real vLLM engine: no GPU and no download needed."""
    if not image.absolute().parent.is_dir():
        raise typer.BadParameter(f"the folder {image.absolute().parent} does not exist", param_hint="--image")
    with quiet_engine(verbose=verbose, for_programs=as_json) as terminal:
        _run(terminal, image, as_json=as_json)


def _run(terminal: Terminal, image: Path, *, as_json: bool) -> None:
    from nnsight_cli import demo_report, demonstration
    from nnsight_cli.lens_image import draw_lens

    with running_model(terminal, str(demo_model_path())) as model:
        with terminal.step("reading every layer", "every layer read in one trace"):
            reading, read_receipt = demonstration.read(model)
        with terminal.step("steering", "vector measured in one trace of two prompts, and added in another"):
            steering, steer_receipt = demonstration.steer(model)
    draw_lens(reading, image)
    results = demonstration.Demonstration(reading, steering, {"reading": read_receipt, "steering": steer_receipt})
    if as_json:
        document = {**dataclasses.asdict(results), "image": str(image.absolute())}
        terminal.output.print_json(json.dumps(document))
    else:
        demo_report.show(terminal.output, results, image)
