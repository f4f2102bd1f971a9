"""The HTTP server of nnsight: reserved in this release, which brings no server yet."""

__version__ = "0.1.0"

__all__ = ["__version__"]
