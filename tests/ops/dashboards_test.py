#!/usr/bin/env python3
"""Every expression of every dashboard has data in a real Prometheus that scrapes a busy real server. The inputs of
every alert exist, a panel that shows a share shows 0 for events that never happened, and promtool accepts metrics
and rules.

usage: dashboards_test.py CAIRN_SERVER CAIRN_REPLAY
"""

import json
import re
import subprocess
import sys

from support import ROOT, Folder, Prometheus, Redis, Server, eventually, find_tool, skip
from workload import Traffic, replay

RULES = ROOT / "docker" / "prometheus" / "alerts.yaml"
DASHBOARDS = ROOT / "docker" / "grafana"
# The shortest windows that contain a few scrapes.
RATE_WINDOW = "5s"


def expressions():
    """Returns [(where, expression)] with the variables set as Grafana does for `All`."""
    found = []
    for path in sorted((DASHBOARDS / "dashboards").glob("*.json")):
        board = json.loads(path.read_text())
        for panel in board["panels"]:
            for target in panel.get("targets", []):
                expression = target["expr"].replace("$__rate_interval", RATE_WINDOW)
                for name in [each["name"] for each in board["templating"]["list"]]:
                    expression = expression.replace(f"${name}", ".*")
                assert "$" not in expression, f"{path.name}: {panel['title']}: no such variable: {expression}"
                found.append((f"{path.name}: {panel['title']}", expression))
            for counter in re.findall(r"(?<!rate\()\bcairn_\w+_total\b", json.dumps(panel.get("targets", []))):
                assert panel["title"] == "Wrong checksums", f"{path.name}: {panel['title']}: {counter} without rate()"
    return found


def variable_queries():
    for path in sorted((DASHBOARDS / "dashboards").glob("*.json")):
        for each in json.loads(path.read_text())["templating"]["list"]:
            query = re.fullmatch(r"label_values\((.*), (\w+)\)", each.get("definition", ""))
            if query:
                yield f"{path.name}: ${each['name']}", re.sub(r"\$\w+", ".*", query[1]), query[2]


def alert_inputs(promtool):
    """Returns [(metric, label matchers)] of every selector in the rules."""
    expressions = re.findall(r"expr: (?:>-\n)?((?:.|\n)*?)\n +(?:for|labels):", RULES.read_text())
    text = "\n".join(expressions)
    return re.findall(r"\b(up|cairn_[a-z_]+)(\{(?:[^{}\"]|\"[^\"]*\")*\})?", text)


def main():
    server_program, replay_program = sys.argv[1:]
    prometheus_program, promtool = find_tool("prometheus"), find_tool("promtool")
    if not prometheus_program or not promtool:
        skip("no prometheus here; ./run test downloads it if possible")
    failures = []
    if subprocess.run([sys.executable, DASHBOARDS / "dashboards.py", "--check"]).returncode != 0:
        failures.append("docker/grafana/dashboards.py was changed and not run")

    with Folder() as folder:
        redis = Redis(folder)
        (folder / "config.json").write_text(f'{{"caches": [], "shared": {{"url": "redis://{redis.address}"}}}}')
        server = Server(server_program, folder, "--config", folder / "config.json", "--runtime", "host")
        prometheus = Prometheus(prometheus_program, folder, server.address, RULES)
        # Before any refusal, when such a status has no series yet.
        refused = next(expression for where, expression in expressions() if "Refused with 5xx" in where)
        eventually(lambda: [sample["value"][1] for sample in prometheus.query(refused)] == ["0"],
                   f"0 of {refused}")
        traffic = Traffic(server, shared={})
        replayed = replay(replay_program, server)

        boards = expressions()
        for where, expression in boards:
            try:
                eventually(lambda: any(sample["value"][1] not in ("NaN", "+Inf") for sample in
                                       prometheus.query(expression)), "data")
            except AssertionError as failure:
                failures.append(f"{where}: {failure}\n  {expression}")
        for where, selector, label in variable_queries():
            if not any(label in series["metric"] for series in prometheus.query(selector)):
                failures.append(f"{where} has no values")
        inputs = alert_inputs(promtool)
        for metric, matchers in inputs:
            # A status or reason that never occurred has no series, but its metric and labels exist.
            labels = re.findall(r"(\w+)=", re.sub(r"\"[^\"]*\"", "", matchers))
            if not any(all(label in series["metric"] for label in labels) for series in prometheus.query(metric)):
                failures.append(f"alerts.yaml: {metric} has no series with {labels}")
        traffic.stop()

        text = server.call("GET", "/metrics")[1]
        for command, stdin in [(["check", "metrics"], text), (["check", "rules", str(RULES)], None)]:
            done = subprocess.run([promtool, *command], input=stdin, capture_output=True)
            if done.returncode != 0 or done.stderr:
                failures.append(f"promtool {command[1]}: {done.stdout.decode()}{done.stderr.decode()}")
        assert prometheus.stop() is not None
        if server.stop() != 0:
            failures.append(server.text())
        redis.stop()
    print(*failures, sep="\n")
    print(f"{len(boards)} expressions, {len(inputs)} inputs of alerts, replay: {replayed.get('requests', replayed)}")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
