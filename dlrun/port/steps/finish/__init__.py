"""Step "finish": leave together."""
