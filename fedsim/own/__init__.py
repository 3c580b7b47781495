"""A user's own Python code: how it is written, how it is run, and which files of it an experiment means."""
