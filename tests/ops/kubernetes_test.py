#!/usr/bin/env python3
"""The manifests under deploy/kubernetes fit each other and the server. `./run chart` compares them with the API's
schemas.

usage: kubernetes_test.py CAIRN_SERVER
"""

import json
import os
import pathlib
import re
import subprocess
import sys

from manifests import MANIFESTS, VARIANTS, Variant, load
from support import ROOT, Folder, Server

PROGRAM = sys.argv[1]
UNITS = {"Mi": 1 << 20, "Gi": 1 << 30}
# Memory besides the tiers: buffers, indexes, connections and the program.
SPARE_BYTES = 1 << 30
# The speed of a slow NVMe drive, and the server's defaults for flags that are not given.
DISK_BYTES_PER_S = 512 << 20
DRAIN_TIMEOUT_MS = 10_000
failures = []


def check(right, what):
    if not right:
        failures.append(what)


def selectors_match_their_pods(variant):
    objects = variant.objects
    labels = objects["DaemonSet"]["spec"]["template"]["metadata"]["labels"]
    selectors = {"DaemonSet": objects["DaemonSet"]["spec"]["selector"]["matchLabels"],
                 "Service": objects["Service"]["spec"]["selector"],
                 "PodDisruptionBudget": objects["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
                 "NetworkPolicy": objects["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"]}
    for kind, selector in selectors.items():
        check(selector and selector.items() <= labels.items(), f"{variant.name}: {kind} selects {selector}, pods have {labels}")
    check(variant.pod()["serviceAccountName"] == objects["ServiceAccount"]["metadata"]["name"],
          f"{variant.name}: pods run as an unknown account")
    # For pods without a scale the API refuses anything else in a budget.
    budget = objects["PodDisruptionBudget"]["spec"]
    check(isinstance(budget.get("minAvailable"), int) and "maxUnavailable" not in budget,
          f"{variant.name}: a DaemonSet's budget is a whole minAvailable")


def ports_match(variant):
    ports = {port["name"]: port["containerPort"] for port in variant.server()["ports"]}
    listens_on = int(variant.environment()["CAIRN_LISTEN"].rsplit(":", 1)[1])
    check(list(ports.values()) == [listens_on], f"{variant.name}: listens on {listens_on}, but names {ports}")
    named = [port["targetPort"] for port in variant.objects["Service"]["spec"]["ports"]]
    named += [variant.server()[probe]["httpGet"]["port"] for probe in probes(variant)]
    for rule in variant.objects["NetworkPolicy"]["spec"]["ingress"]:
        named += [port["port"] for port in rule.get("ports", [])]
    for name in named:
        check(name in ports, f"{variant.name}: the port {name} is not one of {ports}")


def probes(variant):
    return [key for key in variant.server() if key.endswith("Probe")]


def volumes_match(variant):
    pod = variant.pod()
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    for container in pod["containers"] + pod["initContainers"]:
        for mount in container["volumeMounts"]:
            check(mount["name"] in volumes, f"{variant.name}: {container['name']} mounts unknown {mount['name']}")
    # Each path in a variable is inside a mounted volume.
    mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in variant.server()["volumeMounts"]}
    for name, value in variant.environment().items():
        if not value.startswith("/"):
            continue
        path = pathlib.PurePosixPath(value)
        volume = mounts.get(str(path)) or mounts.get(str(path.parent))
        check(volume, f"{variant.name}: {name} is {value}, but no volume is mounted there")
        if volume and "configMap" in volume:
            check(path.name in variant.files.get(volume["configMap"]["name"], {}), f"{variant.name}: no file for {name}")
        if volume and "secret" in volume:
            check(path.name in [item["path"] for item in volume["secret"]["items"]], f"{variant.name}: no secret for {name}")


def pods_have_no_unneeded_rights(variant):
    pod, container = variant.pod(), variant.server()
    uid = int(re.search(r"^USER (\d+):", (ROOT / "docker" / "Dockerfile").read_text(), re.M).group(1))
    check(pod["securityContext"]["runAsUser"] == uid and pod["securityContext"]["runAsNonRoot"],
          f"{variant.name}: the image's user is {uid}")
    check(pod["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault", f"{variant.name}: no seccomp profile")
    for one in pod["containers"] + pod["initContainers"]:
        context = one["securityContext"]
        check(context["readOnlyRootFilesystem"] and not context["allowPrivilegeEscalation"]
              and context["capabilities"]["drop"] == ["ALL"], f"{variant.name}: {one['name']} is not confined: {context}")
        check(one["image"] in variant.tags, f"{variant.name}: no tag for the image {one['image']}")
    check("add" not in container["securityContext"]["capabilities"], f"{variant.name}: the server has capabilities")


def block_bytes_of(cache):
    layout = cache["layout"]
    return (layout["num_layers"] * layout["outer_dim"] * layout["page_size"] * layout["inner_dim"]
            * layout["dtype_width_bytes"])


def time_to_stop_suffices(variant):
    """The server has time to write its memory to disk before the kubelet kills it."""
    settings, environment = variant.settings(), variant.environment()
    check(settings["disk"]["offload_at_stop"], f"{variant.name}: blocks in memory are lost with the pod")
    needed_s = (int(environment["CAIRN_DRAIN_DELAY_MS"]) + DRAIN_TIMEOUT_MS) / 1000
    for cache in settings["caches"]:
        blocks = sum(cache["tiers"].get(tier, {}).get("num_blocks", 0) for tier in ("device", "pinned"))
        needed_s += blocks * block_bytes_of(cache) / DISK_BYTES_PER_S
    given_s = variant.pod()["terminationGracePeriodSeconds"]
    check(given_s > needed_s, f"{variant.name}: the server has {given_s} s to stop and needs {needed_s:.0f} s")


def memory_suffices(variant):
    """The host tiers and the spare bytes fit into the memory request, which equals the limit."""
    resources = variant.server()["resources"]
    asked = resources["requests"]["memory"]
    check(asked == resources["limits"]["memory"], f"{variant.name}: the memory request is not the limit")
    asked_bytes = int(asked[:-2]) * UNITS[asked[-2:]]
    on_gpu = variant.environment().get("CAIRN_RUNTIME") == "cuda"
    needed = SPARE_BYTES
    for cache in variant.settings()["caches"]:
        block_bytes = block_bytes_of(cache)
        for tier, body in cache["tiers"].items():
            if tier == "pinned" or (tier == "device" and not on_gpu):
                needed += body["num_blocks"] * block_bytes
    check(needed <= asked_bytes, f"{variant.name}: {needed} bytes are needed, {asked_bytes} requested")


def server_accepts_the_settings(variant):
    """The real server starts with the manifest's settings (fewer blocks, this machine's paths) and answers its
    probes."""
    known = subprocess.run([PROGRAM, "--help"], capture_output=True, text=True, check=True).stdout
    environment = variant.environment()
    for name in environment:
        flag = "--" + name.removeprefix("CAIRN_").lower().replace("_", "-")
        check(not name.startswith("CAIRN_") or flag + " " in known, f"{variant.name}: the server does not read {name}")
    service = variant.objects["Service"]["metadata"]["name"]
    for end in ["", ".cairn", ".cairn.svc", ".cairn.svc.cluster.local"]:
        check(service + end in environment["CAIRN_ALLOWED_HOSTS"].split(","), f"{variant.name}: refuses {service + end}")
    # The others are paths in the container, its port and its runtime.
    environment = {name: value for name, value in environment.items() if name.startswith("CAIRN_")
                   and not value.startswith("/") and name not in ["CAIRN_LISTEN", "CAIRN_RUNTIME"]}
    settings = variant.settings()
    for cache in settings["caches"]:
        for tier in cache["tiers"].values():
            tier["num_blocks"] = 8
    with Folder() as folder:
        (folder / "cairn.json").write_text(json.dumps(settings))
        tokens = {"tokens": [{"name": "one", "role": "read", "sha256": "0" * 64}]}
        (folder / "tokens.json").write_text(json.dumps(tokens))
        server = Server(PROGRAM, folder, "--config", folder / "cairn.json", "--tokens", folder / "tokens.json",
                        "--unix", folder / "cairn.sock", "--runtime", "host", env={**os.environ, **environment})
        for probe in probes(variant):
            path = variant.server()[probe]["httpGet"]["path"]
            status, _ = server.call("GET", path)
            check(status == 200, f"{variant.name}: {path} of the {probe} returns {status} without a token")
        check(server.stop() == 0, server.text())


def monitoring_finds_the_service():
    folder = MANIFESTS / "components" / "monitoring"
    monitor = load(folder / "servicemonitor.yaml")["spec"]
    service = Variant(MANIFESTS / "base").objects["Service"]
    check(monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items(),
          "the ServiceMonitor does not select the Service")
    names = [port["name"] for port in service["spec"]["ports"]]
    check(all(endpoint["port"] in names for endpoint in monitor["endpoints"]), "the ServiceMonitor asks an unknown port")
    label = service["metadata"]["labels"][monitor["jobLabel"]]
    check(label == "cairn", f"the alerts know the job as cairn, not as {label}")


variants = [Variant(MANIFESTS / name) for name in VARIANTS]
for variant in variants:
    for path in variant.unlisted:
        check(False, f"{path}: its kustomization.yaml does not name it")
    for step in [selectors_match_their_pods, ports_match, volumes_match, pods_have_no_unneeded_rights, memory_suffices,
                 time_to_stop_suffices, server_accepts_the_settings]:
        step(variant)
monitoring_finds_the_service()
print(*failures, sep="\n")
sys.exit(1 if failures else 0)
