"""A Ray cluster of several nodes on this machine, in a process of its own:

    python -m tests.e2e.ray_nodes NUM_NODES CPUS_OF_EACH

It prints the address of its head, which has no room for engines. Then it reads commands, each on a
line, and answers each with a line: ``lose NODE_ID`` kills all processes of a node, ``add`` starts
one. It ends with its input.
"""

from __future__ import annotations

import sys


def main() -> None:
    from ray.cluster_utils import Cluster

    num_nodes, num_cpus = map(int, sys.argv[1:])
    small = {"object_store_memory": 80 * 2**20, "include_dashboard": False}
    cluster = Cluster()
    cluster.add_node(num_cpus=0, **small)
    nodes = [cluster.add_node(num_cpus=num_cpus, **small) for _ in range(num_nodes)]
    print(cluster.address, flush=True)
    for line in sys.stdin:
        command, _, node_id = line.strip().partition(" ")
        if command == "add":
            nodes.append(cluster.add_node(num_cpus=num_cpus, **small))
        else:
            (lost,) = [node for node in nodes if node.node_id.startswith(node_id)]
            nodes.remove(lost)
            cluster.remove_node(lost, allow_graceful=False)
        print("done", flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    main()
