"""Errors of a user's own, which both the caller and the processes of an engine can import."""

from __future__ import annotations


class Enough(BaseException):
    """An exception that no `except Exception` catches."""
