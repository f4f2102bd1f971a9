"""What a request's block did, counted where it ran."""

from __future__ import annotations

from typing import Any

import msgspec

from nnsight.errors import WireError


# There is one for each request and block, and it holds nothing that could refer back to it.
class Receipt(msgspec.Struct, omit_defaults=True, gc=False):
    """The account of one request's block; `print(receipt)` shows it as a table.

    Attributes:
        steps: Steps of the request in which the block was present; the prompt is step 0.
        tiers: How many of these steps ran in each tier, such as `{"eager": 4}`.
        rows: Token rows of the request that were computed in these steps, each once; None where the backend does not
            tell rows apart.
        visits: How often the block was served each location.
        edits: How often the block changed each location.
        untouched: Locations that the block asked for and that were never reached then.
        recomputed: Rows that were computed again, without the block, after the request was preempted.
        recorded: How often each location was recorded by `tracer.cache()`.
        seconds: Time spent in the block's own code, in seconds.
        bytes_home: Bytes of what was saved, as written to travel; 0 in the caller's own process.
        warnings: What the author of the block should know, one sentence each.
        early_loops: Loops over steps that the request ended before they did, one sentence each.
        details: Facts that the backend adds, such as its version and runner.
    """

    steps: int = 0
    visits: dict[str, int] = {}
    edits: dict[str, int] = {}
    seconds: float = 0.0
    warnings: tuple[str, ...] = ()
    early_loops: tuple[str, ...] = ()
    details: dict[str, str] = {}
    recorded: dict[str, int] = {}
    recomputed: int = 0
    tiers: dict[str, int] = {}
    rows: int | None = None
    untouched: tuple[str, ...] = ()
    bytes_home: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Return the receipt as plain containers."""
        values = {name: getattr(self, name) for name in self.__struct_fields__}
        return {name: _plain(value) for name, value in values.items()}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Receipt:
        """Rebuild a receipt from `as_dict`.

        Raises:
            WireError: The data are none of a receipt.
        """
        try:
            return msgspec.convert(data, cls)
        except msgspec.ValidationError as error:
            raise WireError(f"the data are no receipt: {error}") from error

    def include(self, part: Receipt) -> None:
        """Add what the block did beside a part of the prompt, all of which is step 0."""
        for own, other in ((self.visits, part.visits), (self.edits, part.edits)):
            for where, count in other.items():
                own[where] = own.get(where, 0) + count
        self.rows = None if self.rows is None and part.rows is None else (self.rows or 0) + (part.rows or 0)
        for location in part.untouched:
            self.note_untouched(location)
        self.seconds += part.seconds
        for remark in part.warnings:
            if remark not in self.warnings:
                self.warn(remark)

    def warn(self, remark: str) -> None:
        """Add what the author of the block should know."""
        self.warnings = (*self.warnings, remark)

    def note_early_loop(self, remark: str) -> None:
        """Add a loop over steps that the request ended before it did."""
        self.early_loops = (*self.early_loops, remark)

    def note_untouched(self, location: str) -> None:
        """Note that the block asked for a location which was not reached."""
        if location not in self.untouched:
            self.untouched = (*self.untouched, location)

    def __repr__(self) -> str:
        """Say the most in one line."""
        said = [
            _count(self.steps, "step"),
            f"{_count(sum(self.visits.values()), 'visit')} of {_count(len(self.visits), 'location')}",
            _count(sum(self.edits.values()), "edit"),
        ]
        said += [f"{len(self.untouched)} untouched"] if self.untouched else []
        said += [_count(len(self._remarks), "remark")] if self._remarks else []
        return f"<{type(self).__name__}: {', '.join(said)}, {_duration(self.seconds)} in the block>"

    def __str__(self) -> str:
        """Show everything as a table."""
        tiers = ", ".join(f"{count} {tier}" for tier, count in self.tiers.items())
        rows = [
            ("steps", f"{self.steps}" + (f" ({tiers})" if tiers else "")),
            ("rows", "" if self.rows is None else str(self.rows)),
            ("recomputed", str(self.recomputed or "")),
            ("in the block", _duration(self.seconds)),
            ("bytes home", str(self.bytes_home)),
            *(("never reached", location) for location in self.untouched),
            *(("remark", text) for text in self._remarks),
            *self.details.items(),
        ]
        lines = [f"{name:15}{value}" for name, value in rows if value]
        names = list(dict.fromkeys([*self.visits, *self.edits, *self.recorded]))
        if names:
            width = max(len("location"), *map(len, names))
            lines += ["", f"{'location':{width}}  {'visits':>8}{'edits':>8}{'recorded':>10}"]
            for name in names:
                visits, edits, recorded = (each.get(name, 0) for each in (self.visits, self.edits, self.recorded))
                lines.append(f"{name:{width}}  {visits:8}{edits:8}{recorded:10}")
        return "\n".join(lines)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Show the table in a notebook."""
        printer.text(str(self))

    @property
    def _remarks(self) -> list[str]:
        return [*self.warnings, *self.early_loops]


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    return value.copy() if isinstance(value, dict) else value


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _duration(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1000:.3g} ms"
