"""The process that holds the weights: `python -m nnsight_example_backend.worker SOCKET SEED`.

It answers each batch of requests, `[[ids, steps], ...]` as JSON and one program per request, with one outcome per
request. It ends when the process that started it closes the socket, or is gone.
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
            prompts = [Prompt(ids, steps) for ids, steps in json.loads(channel.receive())]
            programs = [channel.receive() for _ in prompts]
            for outcome in engine.run(prompts, programs):
                channel.send(outcome)
    except EOFError:
        return


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
