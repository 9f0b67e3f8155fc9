#!/usr/bin/env python3
"""Checks the systemd unit, the image's build context and the compose files, as far as possible without running
them.

usage: packaging_test.py CAIRN_SERVER
"""

import json
import os
import pathlib
import re
import subprocess
import sys

from support import ROOT, Folder, Process, Server, eventually, find_tool, free_port

PROGRAM = sys.argv[1]
failures = []


def check(right, what):
    if not right:
        failures.append(what)


def variables_of_flags():
    text = subprocess.run([PROGRAM, "--help"], capture_output=True, text=True, check=True).stdout
    return {"CAIRN_" + flag.upper().replace("-", "_") for flag in re.findall(r"^ +--([a-z-]+)", text, re.M)}


def variables_exist():
    known = variables_of_flags()
    for name in ["packaging/cairn-server.service", "docker/Dockerfile", "docker/Dockerfile.cuda",
                 "docker/compose.yaml", "docker/compose.gpu.yaml", "docker/compose.cluster.yaml",
                 "docker/compose.llama.yaml"]:
        text = (ROOT / name).read_text()
        used = set(re.findall(r"\b(CAIRN_[A-Z_]+)(?:=|: )", text))
        check(used, f"{name} sets no variable")
        for variable in used - known:
            check(False, f"{name} sets {variable}, which the server does not read")


def image_context_is_complete():
    layers = set(re.findall(r"^add_subdirectory\((\w+)\)", (ROOT / "CMakeLists.txt").read_text(), re.M))
    of_bench = {"tests", "bench", "examples", "python"}
    for name, needed in [(".dockerignore", layers), ("docker/Dockerfile.cuda.dockerignore", layers | of_bench)]:
        kept = set(re.findall(r"^!(\S+)", (ROOT / name).read_text(), re.M))
        for folder in sorted(needed - kept):
            check(False, f"{name} leaves out {folder}, which the build needs")
        for path in kept:
            check((ROOT / path).exists(), f"{name} names {path}, which does not exist")


def configuration_is_accepted():
    with Folder() as folder:
        server = Server(PROGRAM, folder, "--config", ROOT / "docker" / "cairn.json")
        status, caches = server.call("GET", "/v1/caches")
        check(status == 200 and "default" in json.dumps(caches), f"docker/cairn.json made {caches}")
        check(server.stop() == 0, server.text())
    with Folder() as folder:
        (folder / "peer.token").write_text("peer-token\n")
        text = (ROOT / "docker" / "cairn-cluster.json").read_text()
        text = text.replace("/var/lib/cairn-tokens", str(folder))
        (folder / "config.json").write_text(re.sub(r'"num_blocks": \d+', '"num_blocks": 4', text))
        server = Server(PROGRAM, folder, "--config", folder / "config.json", "--advertise", "http://cairn-1:7070")
        status, cache = server.call("GET", "/v1/caches/held")
        check(status == 200 and cache["shared"]["placement"] == "holders", f"docker/cairn-cluster.json made {cache}")
        status, _ = server.call("GET", "/readyz", headers={"Host": "cairn-1:7070"})
        check(status == 200, "a server refuses its own advertised name")
        check(server.stop() == 0, server.text())


def unit_is_valid():
    if not find_tool("systemd-analyze"):
        print("no systemd-analyze: the unit is not verified")
        return
    unit = (ROOT / "packaging" / "cairn-server.service").read_text()
    with Folder() as folder:
        path = folder / "cairn-server.service"
        path.write_text(unit.replace("/usr/local/bin/cairn-server", PROGRAM))
        for command in [["verify", "--man=no", path], ["security", "--offline=true", "--threshold=25", path]]:
            done = subprocess.run(["systemd-analyze", *map(str, command)], capture_output=True, text=True)
            check(done.returncode == 0, f"systemd-analyze {command[0]}: {done.stdout[-600:]}{done.stderr}")


def server_with_tls(folder, *flags):
    """Returns (process, port), or None if no certificate can be made here."""
    if not find_tool("openssl"):
        return None
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                    "-subj", "/CN=cairn.example", "-days", "1", "-keyout", folder / "key", "-out", folder / "cert"],
                   check=True, capture_output=True)
    port = free_port()
    (folder / "config.json").write_text('{"caches": []}')
    server = Process([PROGRAM, "--listen", f"127.0.0.1:{port}", "--data-dir", folder / "data", "--config",
                      folder / "config.json", "--tls-cert", folder / "cert", "--tls-key", folder / "key", *flags],
                     folder / "server.log")
    eventually(lambda: "listening on https" in server.text(), "the server to listen")
    return server, port


def healthy(**variables):
    """Whether the image's health check succeeds, with this build's programs and only these variables."""
    path = f"{pathlib.Path(PROGRAM).parent}:/usr/bin:/bin"
    return subprocess.run([ROOT / "docker" / "healthcheck"], env={"PATH": path, **variables},
                          capture_output=True).returncode == 0


def health_check_works():
    with Folder() as folder:
        (folder / "config.json").write_text('{"caches": []}')
        server = Server(PROGRAM, folder, "--config", folder / "config.json")
        check(healthy(CAIRN_LISTEN=server.address), "docker/healthcheck fails for a server that speaks HTTP")
        check(server.stop() == 0, server.text())
        check(not healthy(CAIRN_LISTEN=server.address), "docker/healthcheck succeeds without a server")
    with Folder() as folder:
        started = server_with_tls(folder)
        if not started:
            print("no openssl: the health check over TLS is not tested")
            return
        server, port = started
        check(healthy(CAIRN_LISTEN=f"0.0.0.0:{port}"), "docker/healthcheck fails for a server that speaks TLS")
        server.stop()
    # The health check of a server that requires client certificates uses its Unix socket.
    with Folder() as folder:
        socket = folder / "socket"
        server, port = server_with_tls(folder, "--unix", socket, "--tls-client-ca", folder / "cert")
        check(healthy(CAIRN_LISTEN=f"0.0.0.0:{port}", CAIRN_UNIX=str(socket)),
              "docker/healthcheck fails over a Unix socket")
        server.stop()


def tokens_are_separate():
    """Prometheus gets a folder with only its own token, and that token reads only the metrics."""
    with Folder() as folder:
        tokens, metrics = folder / "tokens", folder / "metrics"
        tokens.mkdir()
        metrics.mkdir()
        path = f"{pathlib.Path(PROGRAM).parent}:/usr/bin:/bin"
        subprocess.run(["sh", ROOT / "docker" / "make-tokens", tokens, metrics], env={"PATH": path}, check=True)
        check([file.name for file in metrics.iterdir()] == ["prometheus.token"], "make-tokens shows more to Prometheus")
        check((tokens / "admin.token").stat().st_mode & 0o077 == 0, "others may read the operator's token")
        (folder / "config.json").write_text('{"caches": []}')
        server = Server(PROGRAM, folder, "--config", folder / "config.json", "--tokens", tokens / "tokens.json")

        def status_as(token, target):
            bearer = {"Authorization": "Bearer " + token.read_text()}
            return server.call("GET", target, headers=bearer)[0]

        check(status_as(metrics / "prometheus.token", "/metrics") == 200, "Prometheus may not read metrics")
        check(status_as(metrics / "prometheus.token", "/v1/caches") == 403, "Prometheus may read more than metrics")
        check(status_as(tokens / "admin.token", "/v1/caches") == 200, "the operator's token is refused")
        server.stop()
    compose = (ROOT / "docker" / "compose.yaml").read_text()
    prometheus = compose[compose.index("  prometheus:"):compose.index("  grafana:")]
    check("cairn-tokens" not in prometheus, "compose.yaml shows Prometheus the operator's token")


def compose_files_are_valid():
    compose = find_tool("docker-compose")
    if not compose:
        print("no docker-compose: the compose files are not checked")
        return
    base, gpu = ROOT / "docker" / "compose.yaml", ROOT / "docker" / "compose.gpu.yaml"
    cluster = ROOT / "docker" / "compose.cluster.yaml"
    llama = ROOT / "docker" / "compose.llama.yaml"
    variables = {**os.environ, "MODEL": "/model.gguf"}
    for files in [["-f", base], ["-f", base, "-f", gpu], ["-f", cluster], ["-f", llama]]:
        command = [compose, *map(str, files), "config", "-q"]
        done = subprocess.run(command, capture_output=True, text=True, env=variables)
        check(done.returncode == 0, f"{files}: {done.stderr}")


for step in [variables_exist, image_context_is_complete, configuration_is_accepted, unit_is_valid,
             compose_files_are_valid, health_check_works, tokens_are_separate]:
    step()
print(*failures, sep="\n")
sys.exit(1 if failures else 0)
