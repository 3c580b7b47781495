"""A Ray cluster of two nodes on this machine, in a process of its own: `add` makes one more, `remove` kills the
oldest but the first.

Prints the address first, then a line for each command that it has carried out; ends with its input.
"""

import sys

from ray.cluster_utils import Cluster

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
others = [cluster.add_node(num_cpus=2)]
cluster.wait_for_nodes()
print(cluster.address, flush=True)
for line in sys.stdin:
    if line.strip() == "remove":
        cluster.remove_node(others.pop(0), allow_graceful=False)
    else:
        others.append(cluster.add_node(num_cpus=2))
    print("done", flush=True)
cluster.shutdown()
