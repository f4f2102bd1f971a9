"""Models by backend."""
