"""Where the wire and the learning meet: server and client processes, rounds, launchers."""
