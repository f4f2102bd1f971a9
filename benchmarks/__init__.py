"""Benchmarks: every figure of speed that the project states comes from here."""
