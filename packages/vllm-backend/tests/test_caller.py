"""Which processes end with the one that started them: those of an engine, and never the caller's own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import multiprocessing, os, threading
from nnsight_vllm._mailbox import ADDRESS_VARIABLE, Mailbox
from nnsight_vllm.compat.caller import end_with_caller

def child(address, answers):
    mailbox = Mailbox()
    if address is not None:
        os.environ[ADDRESS_VARIABLE] = address or mailbox.address
    end_with_caller()
    answers.put("nnsight-caller-watch" in {thread.name for thread in threading.enumerate()})
    mailbox.close()

def main():
    spawn = multiprocessing.get_context("spawn")
    answers = spawn.SimpleQueue()
    mailbox = Mailbox()
    # No mailbox, one in the very process, which has its engine in it, and one in the process that started it.
    for address in (None, "", mailbox.address):
        process = spawn.Process(target=child, args=(address, answers))
        process.start()
        process.join()
        print(answers.get())
    mailbox.close()

if __name__ == "__main__":
    main()
"""


def test_a_process_ends_with_the_one_that_started_it_where_it_is_part_of_its_engine(tmp_path: Path) -> None:
    script = tmp_path / "processes.py"
    script.write_text(SCRIPT)
    printed = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True, timeout=120)
    assert printed.stdout.split() == ["False", "False", "True"]
