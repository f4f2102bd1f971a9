"""The codecs of the types that every message may hold."""

from __future__ import annotations

from nnsight._wire.codecs.defaults import default_codecs

__all__ = ["default_codecs"]
