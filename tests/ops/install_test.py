#!/usr/bin/env python3
"""`cmake --install` is complete: a program outside the tree finds the library, builds with it and works.

usage: install_test.py CMAKE BUILD_FOLDER CXX_COMPILER
"""

import gzip
import os
import pathlib
import subprocess
import sys

from support import ROOT, Folder, Server

CMAKE, BUILD, COMPILER = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3]
PROGRAMS = ["cairn-server", "cairnctl", "cairn-replay", "cairn-calibrate"]
SECTIONS = {"cairn-server": 8}  # manual sections; the others are commands, section 1


def run(*command, env=None):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, env=env)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} exits {done.returncode}:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
    return done.stdout


def setting(name):
    lines = (BUILD / "CMakeCache.txt").read_text().splitlines()
    return next((line.split("=", 1)[1] for line in lines if line.startswith(name + ":")), "")


def install(stage):
    run(CMAKE, "--install", BUILD, env={**os.environ, "DESTDIR": str(stage)})
    return stage / setting("CMAKE_INSTALL_PREFIX").lstrip("/")


def is_whole(prefix):
    expected = [f"bin/{program}" for program in PROGRAMS]
    expected += ["lib/systemd/system/cairn-server.service", "lib/sysusers.d/cairn.conf", "share/doc/cairn/LICENSE",
                 "share/doc/cairn/examples/cairn.json", "share/bash-completion/completions/cairnctl"]
    if setting("HELP2MAN_PROGRAM").startswith("/"):
        for program in PROGRAMS:
            section = SECTIONS.get(program, 1)
            expected.append(f"share/man/man{section}/{program}.{section}.gz")
    else:
        print("no help2man: the manual pages are not checked")
    for path in expected:
        if not (prefix / path).is_file():
            sys.exit(f"{path} is not installed")
    unit = (prefix / "lib/systemd/system/cairn-server.service").read_text()
    binary = setting("CMAKE_INSTALL_PREFIX") + "/bin/cairn-server"
    if f"ExecStart={binary}\n" not in unit:
        sys.exit(f"the unit does not start {binary}")


def manual_pages_list_every_flag(prefix):
    for program in PROGRAMS:
        section = SECTIONS.get(program, 1)
        page = prefix / "share" / "man" / f"man{section}" / f"{program}.{section}.gz"
        if not page.exists():
            continue
        text = gzip.decompress(page.read_bytes()).decode().replace("\\-", "-")
        help_text = run(prefix / "bin" / program, "--help")
        flags = [line.split()[0] for line in help_text.splitlines() if line.startswith("  --")]
        for flag in flags:
            if flag not in text:
                sys.exit(f"{page.name} does not list {flag}")
        if not flags:
            sys.exit(f"{program} --help names no flag")


def outsider_works(prefix, folder, server):
    run(CMAKE, "-G", "Ninja", "-S", ROOT / "tests" / "install", "-B", folder / "outside",
        f"-DCMAKE_MODULE_PATH={ROOT / 'tests' / 'ops' / 'cmake_of_debian'}",
        f"-DCMAKE_PREFIX_PATH={prefix}", f"-DCMAKE_CXX_COMPILER={COMPILER}",
        f"-DCMAKE_BUILD_TYPE={setting('CMAKE_BUILD_TYPE')}")
    run(CMAKE, "--build", folder / "outside")
    print(run(folder / "outside" / "consumer", f"http://{server.address}"))


with Folder() as folder:
    prefix = install(folder / "stage")
    is_whole(prefix)
    manual_pages_list_every_flag(prefix)
    (folder / "server").mkdir()
    server = Server(prefix / "bin" / "cairn-server", folder / "server", "--config",
                    prefix / "share" / "doc" / "cairn" / "examples" / "cairn.json")
    outsider_works(prefix, folder, server)
    if server.stop() != 0:
        sys.exit(server.text())
