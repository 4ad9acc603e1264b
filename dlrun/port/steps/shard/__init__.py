"""Step "shard": each rank trains on its shard of the samples."""
