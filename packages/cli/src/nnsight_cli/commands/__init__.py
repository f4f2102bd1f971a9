"""The commands that `nnsight` brings itself."""
