"""The errors of a block that asks for what it cannot have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nnsight.errors import OutOfOrderError, ReadOnlyError, UnsupportedFeatureError

if TYPE_CHECKING:
    from nnsight._interleave.location import Location


def read_only(location: Location | str) -> ReadOnlyError:
    """Describe a change by a program that promised none."""
    return ReadOnlyError(
        f"the program changed {location}, but it was sent as read-only because its source shows no write there; "
        "write `envoy.output[...] = value` or assign the value, so that the edit can be seen in the source"
    )


def not_by_row(location: Location | str, what: str) -> UnsupportedFeatureError:
    """Describe a change by a program whose source seemed to change all rows of tokens alike."""
    return UnsupportedFeatureError(
        f"the source of the block changes {location} by constants that are the same for every row, but {what}, so the "
        "change would differ from row to row; change all rows of a tensor that has one for each token: "
        "`envoy.output[:] += vector`, or `envoy.output[0][:] += vector` where the output is a tuple"
    )


def out_of_order(wait: Location, last: Location | None, step: int, *, over: bool) -> OutOfOrderError:
    """Describe a wait that a step ended without serving, or that came when the request was over."""
    if over:
        steps = "1 step" if step == 0 else f"{step + 1} steps"
        return OutOfOrderError(
            f"{wait} was asked for, but the request is over after {steps}: the model computes nothing more for it; ask "
            "for values within the steps of the request, such as in the body of a loop over tracer.iter, and keep what "
            "you need afterwards in a variable"
        )
    after = f"after {last}" if last is not None else "after the block began"
    return OutOfOrderError(
        f"{wait} was asked for {after}, but step {step} ended without reaching it: the model had passed it "
        "already, or does not compute it in this step; read values in the order in which the model computes them, "
        "and keep what you need again in a variable"
    )


def never_served(times: int, step: int) -> OutOfOrderError:
    """Describe a block that answers every refusal with another wait."""
    return OutOfOrderError(
        f"the block went on to ask for values that step {step} does not reach, {times} times in a row; ask only for "
        "what the model computes"
    )
