"""The same block as a script and in a notebook, on the engine of a fresh process."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

pytestmark = pytest.mark.slow

BLOCK = """
with model.trace("w1 w2 w3", temperature=0.0, max_tokens=1):
    logits = model.logits.save()
with model.trace("w1 w2 w3", temperature=0.0, max_tokens=3, ignore_eos=True) as tracer:
    hs = list().save()
    for _ in tracer.iter[:3]:
        model.model.layers[1].output[0][:] += 0.5
        hs.append(sum(model.model.layers[2].output)[-1])
    out = tracer.result.save()
print("shapes", tuple(logits.shape), len(hs), tuple(hs[0].shape), len(out.outputs[0].token_ids))
print("token", repr(model.tokenizer.decode(logits.argmax(-1))))
"""
EXPECTED = "shapes (1, 512) 3 (128,) 3"


def run_script(folder: Path, checkpoint: Path, body: str, **environment: str) -> str:
    """Run a body in the main function of a script, after a model was built, and return what it printed."""
    script = folder / "script.py"
    script.write_text(
        "from nnsight.modeling.vllm import VLLM\n\n\ndef main():\n"
        f"    model = VLLM({str(checkpoint)!r}, dispatch=True, dtype='float32', max_model_len=64)\n"
        f"{textwrap.indent(body, '    ')}\n\nif __name__ == '__main__':\n    main()\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=200,
        cwd=folder,
        check=False,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    # The engine goes with its process, without a call of shutdown.
    assert "leaked" not in done.stderr
    return done.stdout


def test_a_block_in_a_script_with_a_main_guard(tmp_path: Path, tiny_qwen3: Path) -> None:
    assert EXPECTED in run_script(tmp_path, tiny_qwen3, BLOCK)


def test_a_flat_script_in_ipython_which_ends_with_its_engine(tmp_path: Path, tiny_qwen3: Path) -> None:
    # IPython makes the process's first finalizer, which puts all later ones behind multiprocessing's wait for its
    # processes: an engine that only a finalizer ended kept the session open for ever.
    build = (
        "from nnsight.modeling.vllm import VLLM\n"
        f"model = VLLM({str(tiny_qwen3)!r}, dispatch=True, dtype='float32', max_model_len=64)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "IPython", "--quick", "--colors=NoColor", "-c", build + BLOCK],
        capture_output=True,
        text=True,
        timeout=200,
        cwd=tmp_path,
        check=False,
        env={**os.environ, "IPYTHONDIR": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert EXPECTED in done.stdout
    assert "leaked" not in done.stderr


INVOKES = """
def final(tracer):
    return tracer.result

with model.trace("w1 w2 w3", temperature=0.0, max_tokens=2, ignore_eos=True) as tracer:
    ids = len(final(tracer).outputs[0].token_ids).save()
print("ids", ids)
with model.trace(temperature=0.0, ignore_eos=True) as tracer:
    for steps in (1, 4):
        with tracer.invoke("w1 w2 w3", max_tokens=steps):
            logits = model.logits.save()
print("posts", model._engine.posts, "invokes", len(logits), "steps", [receipt.steps for receipt in tracer.receipt])
model.shutdown()
"""


def test_blocks_beside_an_engine_in_the_callers_own_process(tmp_path: Path, tiny_qwen3: Path) -> None:
    printed = run_script(tmp_path, tiny_qwen3, BLOCK + INVOKES, VLLM_ENABLE_V1_MULTIPROCESSING="0")
    assert EXPECTED in printed
    assert "ids 2" in printed
    # It takes no step that would tell it of a request's end, so it is asked.
    assert "posts False invokes 2 steps [1, 1]" in printed


def test_a_block_in_the_cells_of_a_notebook(tmp_path: Path, tiny_qwen3: Path) -> None:
    cells = [
        f"""
        from nnsight.modeling.vllm import VLLM

        model = VLLM({str(tiny_qwen3)!r}, dispatch=True, dtype="float32", max_model_len=64)
        """,
        BLOCK,
        BLOCK.replace("shapes", "again"),
        """
        try:
            with model.trace("w1 w2 w3", temperature=0.0, max_tokens=1, ignore_eos=True):
                kept = model.logits.save()
                model.model.layers[1].output
        except Exception as error:
            get_ipython().showtraceback()
            print(type(error).__name__, list(error.saves))
        """,
        "model.shutdown()",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(textwrap.dedent(cell)) for cell in cells])
    environment = {**os.environ, "PYDEVD_DISABLE_FILE_VALIDATION": "1"}
    NotebookClient(notebook, timeout=200, kernel_name="python3").execute(cwd=str(tmp_path), env=environment)
    printed = "".join(
        output.get("text", "") for cell in notebook.cells for output in cell.outputs if output.get("name") == "stdout"
    )
    assert EXPECTED in printed
    assert EXPECTED.replace("shapes", "again") in printed
    # IPython shows an error of the block, which ran in another process, and goes on.
    assert "OutOfOrderError ['kept']" in printed
