"""What is known of updates: gradients, losses, rates."""
