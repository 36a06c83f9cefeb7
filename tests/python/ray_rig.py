"""A Ray cluster on this machine, bound to 127.0.0.1, and requests to an application on it."""
import contextlib
import json
import os
import re
import socket
import urllib.request

# before Ray reads them; a loaded machine is slow to start processes
os.environ.update(RAY_DEDUP_LOGS="0", RAY_USAGE_STATS_ENABLED="0", RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S="120",
                  RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S="120",
                  RAY_worker_niceness="0")  # Ray's 15 gives replicas next to nothing beside other work

import ray  # noqa: E402
from ray import serve  # noqa: E402
from ray._private import services  # noqa: E402
from ray.cluster_utils import Cluster  # noqa: E402

services.resolve_ip_for_localhost = lambda host: host  # a driver would look for the cluster at another address

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
MODEL = os.path.realpath(os.path.join(ROOT, "models", "bundled", "recall-4m-f16.gguf"))
MINE = {"max_tokens": 8, "temperature": 0}


def user(text):
    return {"role": "user", "content": text}


@contextlib.contextmanager
def ray_cluster(nodes=2):
    cluster = Cluster(initialize_head=True,
                      head_node_args={"num_cpus": 4, "node_ip_address": "127.0.0.1", "include_dashboard": False})
    try:
        for _ in range(nodes):
            cluster.add_node(num_cpus=2, resources={"vulkan_device": 1}, node_ip_address="127.0.0.1")
        ray.init(address=cluster.address, _node_ip_address="127.0.0.1", log_to_driver=False)
        yield cluster
    finally:
        with contextlib.suppress(Exception):
            serve.shutdown()
        ray.shutdown()
        cluster.shutdown()


def start_proxy():
    """The address at which the applications of the cluster answer."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    for _ in range(8):  # it waits a minute each time, and a loaded machine takes longer
        with contextlib.suppress(TimeoutError):
            serve.start(http_options={"host": "127.0.0.1", "port": port, "location": "HeadOnly"})
            break
    return f"http://127.0.0.1:{port}"


def ask(url, body, path="/v1/chat/completions", timeout=240):
    request = urllib.request.Request(url + path, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=timeout) as r:
        return r.read()


def said(data):
    return json.loads(data)["choices"][0]["message"]["content"]


def servers():
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            with open(f"/proc/{pid}/cmdline", "rb") as f:
                words = f.read().split(b"\0")
            if b"serve" in words[1:2] and b"--unix" in words and MODEL.encode() in words:
                with open(f"/proc/{pid}/stat") as f:
                    found[int(pid)] = int(re.sub(r"\(.*\)", "x", f.read()).split()[3])
    return found
