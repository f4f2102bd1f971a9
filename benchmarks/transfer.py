"""What bringing saved values home costs, without an engine: encoding, writing, and reading them in blocks.

    python -m benchmarks.transfer [--rounds 15] [--device cpu|cuda] [--cpu-time] [--json FILE]

Beside our path, by turns, runs the least that any path must do with the same tensors: copy each to the CPU, join their
bytes in one piece, and make one tensor of each part of it. That baseline checks nothing, keeps no names, and leaves
every value sharing one piece of memory.

The costs per tensor are those of small ones, whose bytes hardly count; the rates those of large ones. `--cpu-time`
counts the CPU time of all threads instead of the time on the wall, for a machine that does other things as well.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from benchmarks.pairing import Interval, interval
from benchmarks.report import Report
from nnsight._trace.messages import decode_values, encode_values
from nnsight_vllm._transfer import read_shared, write_shared

Tensors = Sequence[torch.Tensor]
SMALL = (2048, (1, 128))
LARGE = (16, (512, 4096))
EVERY_LAYER = (32 * 32, (1, 4096))


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    clock = time.process_time if options.cpu_time else time.perf_counter

    report = Report(f"values on their way home, tensors of bfloat16 on {options.device}", options.json)
    for name, (count, shape) in (("small", SMALL), ("one row of 4096", EVERY_LAYER)):
        tensors = _tensors(count, shape, options.device)
        seconds = _measure((_encode, _write, _read, _baseline), tensors, options.rounds, clock)
        for what, series in zip(("encode", "write", "read"), seconds, strict=False):
            report.add(f"{what}, {name}", _scaled(series, 1e6 / count), "us/tensor")
        total = [sum(parts) for parts in zip(*seconds[:3], strict=True)]
        report.add(f"all of it, {name}", _scaled(total, 1e6 / count), "us/tensor", "<= 10" if name == "small" else "")
        report.add(f"the least that can be done, {name}", _scaled(seconds[3], 1e6 / count), "us/tensor")
    count, shape = LARGE
    tensors = _tensors(count, shape, options.device)
    size = sum(tensor.nbytes for tensor in tensors) / 1e9
    seconds = _measure((_encode, _write, _read, _baseline), tensors, options.rounds, clock)
    for what, series in zip(("write", "read"), seconds[1:3], strict=True):
        report.add(f"{what}, 4 MiB each", interval([size / one for one in series]), "GB/s")
    total = [sum(parts) for parts in zip(*seconds[:3], strict=True)]
    report.add("all of it, 4 MiB each", interval([size / one for one in total]), "GB/s")
    report.add("the least that can be done, 4 MiB each", interval([size / one for one in seconds[3]]), "GB/s")


class _Trip:
    """The tensors of a round on their way."""

    def __init__(self, tensors: Tensors) -> None:
        self.tensors = tensors
        self.state: object = {"kept": list(tensors)}


def _encode(trip: _Trip) -> None:
    trip.state = encode_values(trip.state)  # type: ignore[arg-type]


def _write(trip: _Trip) -> None:
    trip.state = write_shared(trip.state)  # type: ignore[arg-type]


def _read(trip: _Trip) -> None:
    path = trip.state
    assert isinstance(path, str)
    trip.state = read_shared(path, lambda data, fetch: decode_values(data, fetch=fetch))


def _baseline(trip: _Trip) -> None:
    joined = torch.cat([tensor.reshape(-1) for tensor in trip.tensors]).cpu()
    trip.state = [
        part.view(tensor.shape)
        for part, tensor in zip(joined.split([tensor.numel() for tensor in trip.tensors]), trip.tensors, strict=True)
    ]


def _measure(
    steps: Sequence[Callable[[_Trip], None]], tensors: Tensors, rounds: int, clock: Callable[[], float]
) -> list[list[float]]:
    """Return the seconds of each step, one per round, after one unmeasured round; all but the last make one trip."""
    seconds: list[list[float]] = [[] for _ in steps]
    for number in range(rounds + 1):
        trip = _Trip(tensors)
        for index, step in enumerate(steps):
            began = clock()
            step(trip)
            if number:
                seconds[index].append(clock() - began)
    return seconds


def _tensors(count: int, shape: tuple[int, ...], device: str) -> list[torch.Tensor]:
    return [torch.randn(shape, device=device).to(torch.bfloat16) for _ in range(count)]


def _scaled(series: Sequence[float], factor: float) -> Interval:
    return interval([one * factor for one in series])


if __name__ == "__main__":
    main()
