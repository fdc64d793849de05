"""A Ray cluster of several nodes on this machine, as a process of its own.

    python ray_cluster.py FOLDER NODES

It writes its address into FOLDER/address, removes a node when FOLDER/remove appears, and ends when
FOLDER/end does.
"""

import sys
import time
from pathlib import Path

if __name__ == "__main__":
    from ray.cluster_utils import Cluster

    folder, nodes = Path(sys.argv[1]), int(sys.argv[2])
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
    )
    others = [cluster.add_node(num_cpus=1) for _ in range(nodes - 1)]
    (folder / "new").write_text(cluster.address)
    (folder / "new").replace(folder / "address")
    while not (folder / "end").exists():
        if (folder / "remove").exists() and others:
            cluster.remove_node(others.pop(), allow_graceful=False)
            (folder / "remove").unlink()
        time.sleep(0.2)
    cluster.shutdown()
