"""Full batches: loops that compute with all samples in every step."""
