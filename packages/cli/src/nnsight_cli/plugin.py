"""The commands of the nnsight command line, as a plugin."""
