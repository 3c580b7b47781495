"""Where the wire and the learning meet: server and client processes, rounds, launchers."""

import os
import sys
from pathlib import Path

# OpenMP threads that spin while they wait for work make a busy machine ten times slower. Those that sleep at once
# leave half of an idle one unused, because each layer of a model has to wake them again. So they spin for some
# microseconds (GNU's library; others know the policy alone), then sleep. The library reads this when it is loaded:
# it must be set before the first import of torch, here, where every node's program begins.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")

# `python -m nodes.client` looks for modules in the working folder first. A user's copy.py or random.py there must
# not stand in for Python's own: of a user's files only those are run that are named, however we are started. With
# -P the working folder is not there, and what is first is of PYTHONPATH: the user has named it.
if sys.argv[:1] == ["-m"] and not sys.flags.safe_path and sys.path[0] != str(Path(__file__).parents[1]):
    del sys.path[0]
