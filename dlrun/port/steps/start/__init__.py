"""Step "start": join the other ranks, each on a GPU of its own."""
