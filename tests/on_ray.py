"""Runs jobs on a Ray cluster of two simulated nodes of this machine, one CPU each, and prints what came of them: by the
address of the cluster, and by that of a client.

    python tests/on_ray.py SCRIPT ...
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import socket
import sys
from pathlib import Path

from foretell import api, gpus
from foretell.jobs import CaptureOptions, Job
from foretell.runs import Pool, Warm

# Ray itself takes a loopback address for this machine only on systems it knows no clusters of.
LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}
# Ray's proxy forks a server for each client while its gRPC threads run; gRPC's own handlers of forks can kill the fork.
LOOPBACK["GRPC_ENABLE_FORK_SUPPORT"] = "0"
# Limits that a busy machine may reach, of 5 to 30 seconds.
LOOPBACK |= dict.fromkeys(
    (
        "RAY_gcs_server_port_wait_time_s", "RAY_CLIENT_SERVER_CHECK_CHANNEL_TIMEOUT_S",
        "RAY_CLIENT_INITIAL_CONNECTION_TIMEOUT_S", "RAY_CLIENT_MAX_CONNECTION_TIMEOUT_S",
    ),
    "1800",
)  # fmt: skip
NODE = {"num_cpus": 1, "object_store_memory": 80 << 20, "node_ip_address": "127.0.0.1"}


def work(job: Job, warm: Warm) -> tuple[str, str]:
    import ray

    return api.run(job, warm=warm).estimate.to_json(), str(ray.get_runtime_context().get_node_id())


class Tally:
    """What a worker may hold instead of warm processes."""

    def __init__(self) -> None:
        self.num = 0

    def close(self) -> None:
        pass


def count(item: int, held: Tally) -> int:
    held.num += 1
    return held.num


def job_of(script: str) -> Job:
    return Job(
        command=(script,), gpu=gpus.find("rtx-3060"), cwd=Path(script).parent,
        options=CaptureOptions(steps="all", timeout_seconds=1800),
    )  # fmt: skip


def free_port() -> int:
    """Below those that Linux hands out, and above Ray's own: a cluster opens dozens of sockets before this one."""
    for port in itertools.count(25_000 + os.getpid() % 7_000):
        with socket.socket() as asked, contextlib.suppress(OSError):
            asked.bind(("127.0.0.1", port))
            return port
    raise AssertionError


def main(scripts: list[str]) -> None:
    os.environ |= LOOPBACK
    from ray.cluster_utils import Cluster

    port = free_port()
    head = {**NODE, "ray_client_server_port": port, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args={**head, "wait": False})
    try:
        cluster.add_node(**NODE, wait=False)
        cluster.wait_for_nodes(timeout=1800)
        os.environ["RAY_ADDRESS"] = cluster.address
        with Pool("ray", holds=Tally) as pool:
            tallies = [tally for _, tally in pool.map(count, range(8))]
        results = {}
        for how, address in {"ray": "ray", "client": f"ray://127.0.0.1:{port}"}.items():
            with Pool(address) as pool:
                found = {job.command[0]: result for job, result in pool.map(work, [job_of(each) for each in scripts])}
                results[how] = {"num_workers": pool.num_workers, "found": found}
        print("RESULT", json.dumps({**results, "tallies": tallies}))
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main(sys.argv[1:])
