"""Data that are gone through in order, while a state is handed on."""
