"""The operator process: observe, plan (by `paddock.core`), apply."""
