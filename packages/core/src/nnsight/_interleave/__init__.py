"""Run blocks beside a forward: each block is a greenlet that waits for the values it names."""

from nnsight._interleave.ahead import ReadAhead
from nnsight._interleave.budget import Budget
from nnsight._interleave.interleaver import Interleaver
from nnsight._interleave.location import Location
from nnsight._interleave.passage import Site
from nnsight._interleave.pieces import Pieces
from nnsight._interleave.receipt import Receipt
from nnsight._interleave.replay import Replay, RowLog, replays
from nnsight._interleave.run import BlockRun
from nnsight._interleave.scope import RowScope, Scope, WholeScope
from nnsight._interleave.turns import current_run

__all__ = [
    "BlockRun",
    "Budget",
    "Interleaver",
    "Location",
    "Pieces",
    "ReadAhead",
    "Receipt",
    "Replay",
    "RowLog",
    "RowScope",
    "Scope",
    "Site",
    "WholeScope",
    "current_run",
    "replays",
]
