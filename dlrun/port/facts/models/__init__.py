"""What is known of models, and what kind of thing an expression is."""
