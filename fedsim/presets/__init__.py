"""Experiments by name, one TOML file each."""
