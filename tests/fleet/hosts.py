"""A test's own hosts: network namespaces on one bridge, in an outer network namespace that ends with the process.

Nothing outside sees them: `enter` runs the program again in its own namespaces.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ENTERED = "CAIRN_FLEET_ENTERED"
SUBNET = "10.77.0"
SKIPPED = 77


def enter() -> None:
    """Runs this program again with permission to make hosts, or exits with 77 if that is not allowed."""
    if os.environ.get(ENTERED):
        _run("mount", "-t", "tmpfs", "tmpfs", "/run/netns")
        _run("ip", "link", "set", "lo", "up")
        _run("ip", "link", "add", "hosts", "type", "bridge")
        _run("ip", "address", "add", f"{SUBNET}.1/24", "dev", "hosts")
        _run("ip", "link", "set", "hosts", "up")
        return
    for program in ("ip", "unshare", "redis-server", "redis-cli"):
        if shutil.which(program) is None:
            skip(f"{program} is not installed")
    if os.geteuid() != 0:
        skip("only root makes network namespaces")
    alone = [
        "unshare",
        "--net",
        "--mount",
        "--propagation",
        "private",
        "--kill-child",
        "--fork",
        "--pid",
        "--mount-proc",
    ]
    may = [*alone, "ip", "link", "add", "hosts", "type", "bridge"]
    if subprocess.run(may, capture_output=True, check=False).returncode != 0:
        skip("this system does not allow network namespaces and bridges")
    Path("/run/netns").mkdir(exist_ok=True)
    os.environ[ENTERED] = "1"
    os.execvp(alone[0], [*alone, sys.executable, "-B", *sys.argv])


def skip(why: str) -> None:
    print(f"skipped: {why}", file=sys.stderr)
    sys.exit(SKIPPED)


class Host:
    """A network namespace with its own address."""

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.address = f"{SUBNET}.{number}"
        _run("ip", "netns", "add", name)
        _run("ip", "link", "add", f"{name}-0", "type", "veth", "peer", "name", "eth0", "netns", name)
        _run("ip", "link", "set", f"{name}-0", "master", "hosts", "up")
        self.run("ip", "address", "add", f"{self.address}/24", "dev", "eth0")
        for link in ("lo", "eth0"):
            self.run("ip", "link", "set", link, "up")

    def run(self, *command: str) -> None:
        _run("ip", "netns", "exec", self.name, *command)

    def start(self, command: list[str], log: Path) -> subprocess.Popen[bytes]:
        with open(log, "ab") as out:
            return subprocess.Popen(["ip", "netns", "exec", self.name, *command], stdout=out, stderr=out)

    def set_link(self, up: bool) -> None:
        """Disconnects the host from all others, or reconnects it."""
        _run("ip", "link", "set", f"{self.name}-0", "up" if up else "down")

    def set_delay(self, delay_ms: int) -> bool:
        """Delays what the host sends. Returns False if the kernel cannot do that."""
        command = ["tc", "qdisc", "replace", "dev", f"{self.name}-0", "root", "netem", "delay", f"{delay_ms}ms"]
        if delay_ms == 0:
            command = ["tc", "qdisc", "del", "dev", f"{self.name}-0", "root"]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, check=False, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
