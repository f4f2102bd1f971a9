"""The tree of envoys in a worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nnsight._envoy import ModelTree
from nnsight_vllm.compat.model_access import call_ad_hoc, keeps_state, sharded_sides

if TYPE_CHECKING:
    from nnsight_vllm.compat.model_access import WorkerModel

VALUES = ("logits", "samples")


def build_tree(model: WorkerModel) -> ModelTree:
    """Build the tree over the model that a worker holds."""
    root = model.root
    sharded = sharded_sides(root) if model.tensor_parallel_size > 1 else {}
    tree = ModelTree(
        root,
        values=VALUES,
        helpers={"tokenizer": lambda: model.tokenizer},
        call=call_ad_hoc,
        keeps_state=keeps_state,
        sharded=sharded,
    )
    # No hook is called while a forward runs, so the standard names are found before it.
    _ = tree.standard.family
    return tree
