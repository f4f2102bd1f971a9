"""Every touch of vLLM: nothing outside this package imports it."""
