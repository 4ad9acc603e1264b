"""Step "rate": the learning rate follows the global batch."""
