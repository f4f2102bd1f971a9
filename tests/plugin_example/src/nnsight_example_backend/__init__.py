"""A backend for nnsight-core: a small language model in a process of its own.

Nothing is imported here, because nnsight imports the plugin module in every process that uses it.
"""
