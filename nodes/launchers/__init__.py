"""Ways to start a server and its clients."""
