"""Counts of batches and steps in callbacks of Keras and in loops around its models."""
