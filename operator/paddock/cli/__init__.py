"""The command line: `paddock`, also `kubectl paddock`."""
