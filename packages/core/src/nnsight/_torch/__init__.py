"""The in-process backend: any PyTorch module, traced in the caller's own process."""
