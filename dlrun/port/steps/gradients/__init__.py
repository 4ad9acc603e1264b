"""Step "gradients": the mean over the ranks, before anything reads the gradients."""
