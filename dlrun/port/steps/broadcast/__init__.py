"""Step "broadcast": all ranks begin from the same weights."""
