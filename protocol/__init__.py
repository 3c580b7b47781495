"""The wire: messages, frames, limits, keys, and the bytes they cost.

Knows numpy, msgpack and ZeroMQ; nothing of learning, and nothing of processes.
"""
