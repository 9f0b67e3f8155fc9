#!/usr/bin/env python3
"""Every alert fires: in promtool's simulation (alerts_test.yaml), and, if its fault can be produced in seconds, in
a real Prometheus that watches a real server with that fault. Waiting times are removed from the rules.

usage: alerts_test.py CAIRN_SERVER
"""

import re
import signal
import subprocess
import sys
import urllib.parse

from support import ROOT, Folder, Prometheus, Server, eventually, find_tool, skip
from workload import make_cache, move, store

RULES = ROOT / "docker" / "prometheus" / "alerts.yaml"
SIMULATION = ROOT / "docker" / "prometheus" / "alerts_test.yaml"


def alert_names():
    return re.findall(r"- alert: (\w+)", RULES.read_text())


def simulate(promtool):
    tested = re.findall(r"alertname: (\w+)", SIMULATION.read_text())
    missing = sorted(set(alert_names()) - set(tested))
    assert not missing, f"alerts_test.yaml fires no {missing}"
    done = subprocess.run([promtool, "test", "rules", SIMULATION], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def impatient(folder):
    text = re.sub(r"^ +for: .*\n", "", RULES.read_text(), flags=re.M)
    path = folder / "rules.yaml"
    path.write_text(re.sub(r"\[\d+m\]", "[4s]", text))
    return path


def lease_all(server):
    """Leases all blocks, so that none is free or can be evicted."""
    make_cache(server, "full", pinned=4)
    status, lease = server.call("POST", "/v1/caches/full/allocate", {"count": 4, "lease_ms": 600000})
    assert status == 200, lease


def ask_for_too_much(server):
    server.call("POST", "/v1/caches/full/allocate", {"count": 1, "lease_ms": 1000})


def forget_leases(server):
    server.call("POST", "/v1/caches/full/match", {"keys": ["01"], "lease_ms": 0})
    for key in range(4):
        store(server, "roomy", key, "pinned")
    server.call("POST", "/v1/caches/roomy/match", {"keys": [f"{0:016x}"], "lease_ms": 20})


def cut_the_disk(server):
    """Truncates the disk tier's files, as after a file system error."""
    keys = range(100, 104)
    for key in keys:
        store(server, "roomy", key, "disk")
    for path in (server.folder / "data").rglob("*"):
        # The index and its log stay in the server's mapped memory: a disk does not lose only those.
        if path.is_file() and path.stat().st_size >= 4096 and not re.search(r"~(index|log)", path.name):
            with open(path, "r+b") as file:
                file.truncate(0)
    move(server, "roomy", keys, "pinned")


def wait_for_nobody(server):
    """Creates a group whose other rank never comes, and waits for its failure."""
    server.call("POST", "/v1/groups", {"name": "lonely", "rank": 0, "world_size": 2, "device_id": 0})
    eventually(lambda: server.call("GET", "/v1/groups/lonely")[1]["state"] == "failed", "the group's end")
    server.call("DELETE", "/v1/groups/lonely")


def follow(server, alert, url):
    """Checks that a firing alert's link leads to its own runbook."""
    link = urllib.parse.urlsplit(url)
    assert (link.scheme, link.netloc) == ("http", server.address), link
    status, text = server.call("GET", link.path)
    assert status == 200 and text.startswith(f"### {alert}\n".encode()) and b"\n#" not in text, text


def main():
    prometheus_program, promtool = find_tool("prometheus"), find_tool("promtool")
    if not prometheus_program or not promtool:
        skip("no prometheus here; ./run test downloads it if possible")
    simulate(promtool)
    with Folder() as folder:
        (folder / "config.json").write_text('{"caches": [], "groups": {"join_timeout_ms": 200}}')
        server = Server(sys.argv[1], folder, "--config", folder / "config.json", "--runtime", "host")
        prometheus = Prometheus(prometheus_program, folder, server.address, impatient(folder))
        eventually(lambda: prometheus.query("cairn_ready"), "the first scrape")
        assert not prometheus.firing(), f"{prometheus.firing()} fire without a fault"

        lease_all(server)
        make_cache(server, "roomy", pinned=8, disk=8)
        for alert, fault in {"CairnOutOfMemory": None, "CairnBlocksHeld": None, "CairnNoCapacity": ask_for_too_much,
                             "CairnLeasesRunOut": forget_leases, "CairnTransfersFail": cut_the_disk,
                             "CairnCopiesLost": cut_the_disk, "CairnGroupsFail": wait_for_nobody}.items():
            def fires():
                if fault:
                    fault(server)
                return prometheus.firing().get(alert)
            annotations = eventually(fires, f"{alert} ({sorted(prometheus.firing())} fire)")
            follow(server, alert, annotations["runbook_url"])
            print(f"{alert} fires")
        server.stop(signal.SIGKILL)
        eventually(lambda: "CairnDown" in prometheus.firing(), "CairnDown")
        print("CairnDown fires")
        prometheus.stop()


if __name__ == "__main__":
    main()
