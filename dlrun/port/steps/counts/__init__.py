"""Step "steps": n ranks take 1/n of the steps, so what counts steps is divided, or made serial where it is read."""
