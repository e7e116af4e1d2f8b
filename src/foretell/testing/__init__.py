"""The pytest plugin: tests that run on a virtual GPU and fail if they need too much of its memory (docs/ci.md)."""
