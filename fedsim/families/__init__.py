"""Halves that several methods share. A family knows no method."""
