"""The process that holds the weights: `python -m nnsight_example_backend.worker SOCKET SEED`.

It answers each batch of requests, `[[ids, steps, names of edits], ...]` as JSON and for each request the programs of
its edits and its own, with one outcome per request. It ends when the process that started it closes the socket, or is
gone.
"""

from __future__ import annotations

import json
import socket
import sys

from nnsight_example_backend.channel import Channel
from nnsight_example_backend.engine import Engine, Prompt


def main(descriptor: int, seed: int) -> None:
    """Serve batches until the other process is gone.

    Args:
        descriptor: An open socket.
        seed: Which weights the model has.
    """
    channel = Channel(socket.socket(fileno=descriptor))
    engine = Engine(seed)
    try:
        while True:
            batch = json.loads(channel.receive())
            prompts = [Prompt(ids, steps) for ids, steps, _ in batch]
            edits = [{name: channel.receive() for name in names} | {None: channel.receive()} for *_, names in batch]
            for outcome in engine.run(prompts, edits):
                channel.send(outcome)
    except EOFError:
        return


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
