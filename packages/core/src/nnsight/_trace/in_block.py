"""What a tracer offers inside a block, which is run by another object of the same shape there."""

from __future__ import annotations

from typing import Any

from nnsight._trace.block_tracer import BlockTracer, in_block
from nnsight.errors import OutsideTraceError


class InBlock:
    """Steps, records and the end of the request: names that mean something inside a block alone."""

    @property
    def iter(self) -> Any:
        """Select steps, inside a block.

        Raises:
            OutsideTraceError: No block is running here.
        """
        return _block_tracer("tracer.iter counts the steps of a request").iter

    def all(self) -> Any:
        """Iterate over every step, inside a block.

        Raises:
            OutsideTraceError: No block is running here.
        """
        return _block_tracer("tracer.all() counts the steps of a request").all()

    def cache(self, *args: Any, **kwargs: Any) -> Any:
        """Record every call of modules, inside a block; see `BlockTracer.cache`.

        Raises:
            OutsideTraceError: No block is running here.
        """
        return _block_tracer("tracer.cache() records for a request").cache(*args, **kwargs)

    def stop(self) -> None:
        """End the request, inside a block.

        Raises:
            OutsideTraceError: No block is running here.
        """
        _block_tracer("tracer.stop() ends a request").stop()


def _block_tracer(what: str) -> BlockTracer:
    if in_block():
        return BlockTracer()
    raise OutsideTraceError(f"{what}: use it in the block of a trace, an invoke or an edit")
