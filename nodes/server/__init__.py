"""The server: its program, its loop, and what the loop is made of."""
