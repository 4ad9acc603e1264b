"""Loops over positions, and the orders that they follow."""
