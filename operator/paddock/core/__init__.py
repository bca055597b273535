"""What Paddock thinks: pure functions on frozen values. No I/O, no clock."""
