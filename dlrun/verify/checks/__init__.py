"""What is asked of the runs: each module turns traces into ``Check`` values, and starts nothing."""
