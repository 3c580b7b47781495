"""Where the wire and the learning meet: server and client processes, rounds, launchers."""

import os

# OpenMP threads that spin while they wait for work make a busy machine ten times slower. Those that sleep at once
# leave half of an idle one unused, because each layer of a model has to wake them again. So they spin for some
# microseconds (GNU's library; others know the policy alone), then sleep. The library reads this when it is loaded:
# it must be set before the first import of torch, here, where every node's program begins.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
