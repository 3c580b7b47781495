"""A client's process."""
