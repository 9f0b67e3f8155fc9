#!/usr/bin/env python3
"""The unit, the image's context and the compose files, as far as they can be checked without running them.

usage: packaging_test.py CAIRN_SERVER
"""

import json
import re
import subprocess
import sys

from support import ROOT, Folder, Server, find_tool

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
                 "docker/compose.yaml", "docker/compose.gpu.yaml"]:
        text = (ROOT / name).read_text()
        used = set(re.findall(r"\b(CAIRN_[A-Z_]+)(?:=|: )", text))
        check(used, f"{name} sets no variable")
        for variable in used - known:
            check(False, f"{name} sets {variable}, which the server does not read")


def image_context_is_whole():
    kept = set(re.findall(r"^!(\S+)", (ROOT / ".dockerignore").read_text(), re.M))
    layers = set(re.findall(r"^add_subdirectory\((\w+)\)", (ROOT / "CMakeLists.txt").read_text(), re.M))
    for folder in sorted(layers - kept):
        check(False, f".dockerignore leaves out {folder}, which CMakeLists.txt builds")
    for path in kept:
        check((ROOT / path).exists(), f".dockerignore names {path}, which is not there")


def configuration_is_taken():
    with Folder() as folder:
        server = Server(PROGRAM, folder, "--config", ROOT / "docker" / "cairn.json")
        status, caches = server.call("GET", "/v1/caches")
        check(status == 200 and "default" in json.dumps(caches), f"docker/cairn.json made {caches}")
        check(server.stop() == 0, server.text())


def unit_is_sound():
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


def compose_files_are_sound():
    compose = find_tool("docker-compose")
    if not compose:
        print("no docker-compose: the compose files are not checked")
        return
    base, gpu = ROOT / "docker" / "compose.yaml", ROOT / "docker" / "compose.gpu.yaml"
    for files in [["-f", base], ["-f", base, "-f", gpu]]:
        done = subprocess.run([compose, *map(str, files), "config", "-q"], capture_output=True, text=True)
        check(done.returncode == 0, f"{files}: {done.stderr}")


for step in [variables_exist, image_context_is_whole, configuration_is_taken, unit_is_sound,
             compose_files_are_sound]:
    step()
print(*failures, sep="\n")
sys.exit(1 if failures else 0)
