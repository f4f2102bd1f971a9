"""What a request's block did, counted where it ran."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Receipt:
    """The account of one request's block.

    Attributes:
        steps: Steps of the request in which the block was present; the prompt is step 0.
        visits: How often the block was served each location.
        edits: How often the block changed each location.
        recomputed: Rows that were computed again, without the block, after the request was preempted.
        recorded: How often each location was recorded by `tracer.cache()`.
        seconds: Time spent in the block's own code, in seconds.
        warnings: What the author of the block should know, one sentence each.
        early_loops: Loops over steps that the request ended before they did, one sentence each.
        details: Facts that the backend adds, such as its version and runner.
    """

    steps: int = 0
    visits: dict[str, int] = field(default_factory=dict)
    edits: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    warnings: list[str] = field(default_factory=list)
    early_loops: list[str] = field(default_factory=list)
    details: dict[str, str] = field(default_factory=dict)
    recorded: dict[str, int] = field(default_factory=dict)
    recomputed: int = 0

    def as_dict(self) -> dict[str, object]:
        """Return the receipt as plain containers."""
        return {
            "steps": self.steps,
            "visits": dict(self.visits),
            "edits": dict(self.edits),
            "seconds": self.seconds,
            "warnings": list(self.warnings),
            "early_loops": list(self.early_loops),
            "details": dict(self.details),
            "recorded": dict(self.recorded),
            "recomputed": self.recomputed,
        }

    def include(self, part: Receipt) -> None:
        """Add what the block did beside a part of the prompt, all of which is step 0."""
        for own, other in ((self.visits, part.visits), (self.edits, part.edits)):
            for where, count in other.items():
                own[where] = own.get(where, 0) + count
        self.seconds += part.seconds
        self.warnings += [warning for warning in part.warnings if warning not in self.warnings]

    @classmethod
    def from_dict(cls, data: dict[str, object]) -> Receipt:
        """Rebuild a receipt from `as_dict`."""
        return cls(**data)  # type: ignore[arg-type]
