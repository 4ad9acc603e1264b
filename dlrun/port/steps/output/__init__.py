"""Step "output": files are written, and lines printed, by rank 0 alone."""
