"""The caller's side of the backend: prompts, keywords, the engine, and the way home."""
