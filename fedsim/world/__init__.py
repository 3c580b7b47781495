"""The world that clients live in: their links, their devices, and a clock that knows both."""
