"""Where the wire and the learning meet: server and client processes, rounds, launchers."""

import os

# OpenMP threads that spin while they wait for work make a busy machine ten times slower. The library reads this
# when it is loaded, so it must be set before the first import of torch: here, where every node's program begins.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
