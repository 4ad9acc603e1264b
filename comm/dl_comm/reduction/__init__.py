"""Values of all ranks made one: sums, means, extremes and gathered entries, of several values in one exchange."""
