#!/usr/bin/env python3
"""Every place that states the product's version has the one of CMakeLists.txt.

usage: version_test.py CAIRN_SERVER CAIRNCTL CAIRN_REPLAY CAIRN_CALIBRATE
"""

import pathlib
import re
import subprocess
import sys

from support import ROOT, Folder, Server

PROGRAMS = [pathlib.Path(program) for program in sys.argv[1:]]
VERSION = re.search(r"^project\(cairn VERSION (\d+\.\d+\.\d+)", (ROOT / "CMakeLists.txt").read_text(), re.M).group(1)
failures = []


def check_is_version(found, where):
    if found != VERSION:
        failures.append(f"{where} has {found!r}, CMakeLists.txt has {VERSION!r}")


def programs_print_the_version():
    for program in PROGRAMS:
        done = subprocess.run([program, "--version"], capture_output=True, text=True)
        check_is_version(done.stdout.removeprefix(program.name + " ").removesuffix("\n"), f"{program.name} --version")
        if done.returncode != 0:
            failures.append(f"{program.name} --version exits {done.returncode}: {done.stderr}")


def server_returns_the_version():
    with Folder() as folder:
        server = Server(PROGRAMS[0], folder)
        check_is_version(server.call("GET", "/openapi.json")[1]["info"]["version"], "info.version of /openapi.json")
        check_is_version(server.call("GET", "/v1/system")[1]["version"], "/v1/system")
        server.stop()


def changelog_begins_with_the_version():
    newest = re.search(r"^## \[([^]]+)\]", (ROOT / "CHANGELOG.md").read_text(), re.M)
    check_is_version(newest and newest.group(1), "CHANGELOG.md")


def images_get_the_version_from_their_builder():
    for name in ["docker/Dockerfile", "docker/Dockerfile.cuda"]:
        label = re.search(r"org\.opencontainers\.image\.version=(\S+)", (ROOT / name).read_text())
        if not label or label.group(1) != "$VERSION":
            failures.append(f"{name} has a fixed version: {label and label.group(1)}")
    done = subprocess.run([ROOT / "run", "version"], capture_output=True, text=True)
    check_is_version(done.stdout.strip(), "./run version")


def manifests_pull_the_version():
    for name, suffix in [("base", ""), ("overlays/gpu", "-cuda")]:
        path = f"deploy/kubernetes/{name}/kustomization.yaml"
        tag = re.search(r"newTag: (\S+)", (ROOT / path).read_text()).group(1)
        check_is_version(tag.removesuffix(suffix), path)


def chart_has_the_version():
    chart = (ROOT / "deploy/helm/cairn/Chart.yaml").read_text()
    for field in ["version", "appVersion"]:
        check_is_version(re.search(rf"^{field}: (.*)$", chart, re.M).group(1), f"Chart.yaml's {field}")


def python_package_has_the_version():
    package = (ROOT / "python/src/cairn/__init__.py").read_text()
    check_is_version(re.search(r'^__version__ = "(.*)"$', package, re.M).group(1), "cairn.__version__")


for step in [programs_print_the_version, server_returns_the_version, changelog_begins_with_the_version,
             images_get_the_version_from_their_builder, manifests_pull_the_version, chart_has_the_version, python_package_has_the_version]:
    step()
print(*failures, sep="\n")
sys.exit(1 if failures else 0)
