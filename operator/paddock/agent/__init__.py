"""The node agent: tells which devices ggml and the driver report on its node."""
