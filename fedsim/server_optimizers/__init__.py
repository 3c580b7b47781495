"""What a server may train: pure, seeded objects with client uploads in and prototypes out.

None of them does I/O or knows about rounds and clients, so each can be used alone, from a notebook too.
"""
