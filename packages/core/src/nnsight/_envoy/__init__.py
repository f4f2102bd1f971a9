"""The tree of envoys: one stand-in per module, the same paths on every side."""

from nnsight._envoy.envoy import Envoy, module_of, read_item
from nnsight._envoy.source import Source, SourceOp
from nnsight._envoy.tree import ModelTree

__all__ = ["Envoy", "ModelTree", "Source", "SourceOp", "module_of", "read_item"]
