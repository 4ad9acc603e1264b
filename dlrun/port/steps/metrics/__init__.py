"""Step "metrics": what is shown and what decides; numbers go by ``placement``, the rest is here."""
