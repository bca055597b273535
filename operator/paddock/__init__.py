"""Paddock: each GGUF model whole on the one right GPU, for a stated reason, and proven to be there."""

__version__ = "0.1.0"
