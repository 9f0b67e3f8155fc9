#!/usr/bin/env python3
"""Writes the generated parts of the pages: what a program or the API's document tells by itself.

A part stands between `<!-- generated: NAME -->` and `<!-- end of generated -->`. A test compares.

usage: docs/render.py [PRESET]        (release; its cairn-server and cairnctl must be built)
"""

import json
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGES = ["docs/configuration.md", "docs/api.md", "docs/cairnctl.md", "docs/metrics.md", "docs/parts.md"]
PART = re.compile(r"(<!-- generated: ([^>]+) -->\n).*?(<!-- end of generated -->)", re.S)


def table(head, rows):
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) + " |\n"
                   for row in lines)


def settings(programs):
    out = subprocess.run([programs / "cairn-server", "--list-settings"], capture_output=True, text=True, check=True)
    sections = {}
    for setting in json.loads(out.stdout):
        section, dot, _ = setting["field"].partition(".")
        told = re.fullmatch(r"(.*?)(?: \(default:? (.*)\))?", setting["help"])
        flag = f"`--{setting['flag']}`" if setting["flag"] else ""
        sections.setdefault(section if dot else "", []).append(
            [f"`{setting['field']}`", flag, setting["takes"], told[2] or "", told[1]])
    text = ""
    for section, rows in sections.items():
        title = f"Section `{section}`" if section else "At the top of the file"
        text += f"### {title}\n\n" + table(["Setting", "Flag", "Takes", "Default", "What it is"], rows) + "\n"
    return text


def program_help(programs, name):
    out = subprocess.run([programs / name, "--help"], capture_output=True, text=True, check=True)
    return f"```text\n{out.stdout.rstrip()}\n```\n"


# Of /v1/caches/{cache}/WORD; every other route goes by its first word.
TITLES = {"": "Caches", **dict.fromkeys(["match", "allocate", "commit", "slots", "read", "write"], "Blocks"),
          "keys": "One key", **dict.fromkeys(["transfers", "evict", "clear", "blocks"], "Transfers and listing"),
          "tiers": "Memory shared with engines", "snapshots": "Snapshots"}


def title_of(path):
    words = path.strip("/").split("/")
    if words[0] != "v1" or words[1] == "system":
        return "Service"
    if words[1] == "caches":
        word = words[3] if len(words) > 3 else ""
        return TITLES.get(word, word.capitalize())
    return {"transfers": "Transfers and listing"}.get(words[1], words[1].capitalize())


def type_of(schema):
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(type_of(one) for one in schema["anyOf"])
    if "enum" in schema:
        return ", ".join(f"`{word}`" for word in schema["enum"])
    if schema.get("format") == "binary":
        return "bytes"
    kind = schema.get("type", "object")
    if isinstance(kind, list):
        return " or ".join(kind)
    if kind == "array":
        return f"list of {type_of(schema['items'])}"
    if kind == "object" and "properties" in schema:
        return "object with " + ", ".join(f"`{name}` ({type_of(one)})" for name, one in schema["properties"].items())
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        return f"{kind}, {low} to {high}"
    if low is not None:
        return f"{kind}, {low} and more"
    return f"`{schema['pattern']}`" if "pattern" in schema else kind


def meaning(schema):
    parts = [schema.get("description", "")]
    if "default" in schema:
        parts.append(f"Default: `{json.dumps(schema['default'])}`.")
    return " ".join(part for part in parts if part)


def field_rows(schema, prefix=""):
    for part in schema.get("allOf", []):
        yield from field_rows(part, prefix) if "$ref" not in part else [[f"all of {type_of(part)}", "", "", ""]]
    for name, member in schema.get("properties", {}).items():
        needed = "yes" if name in schema.get("required", []) else ""
        inner = member.get("items", member)
        suffix = "[]." if "items" in member else "."
        kind = type_of(member) if "properties" not in inner else ("list of objects" if "items" in member else "object")
        yield [f"`{prefix}{name}`", kind, needed, meaning(member)]
        if "properties" in inner:
            yield from field_rows(inner, f"{prefix}{name}{suffix}")


def roles():
    found = re.findall(r"(?:plain|structured|streamed)\((?:Role::)?(\w+), (\w+), \"([^\"]+)\"",
                       (ROOT / "server/routes/table.cpp").read_text())
    return {(method.rstrip("_"), path): role for role, method, path in found}


def operation(method, path, what, document, role):
    needs = "Needs no token" if role == "none" else f"Role: {role}"
    text = f"#### {method.upper()} {path}\n\n{what['summary']}. {needs}.\n\n"
    if "description" in what:
        text += what["description"] + "\n\n"
    rows = []
    for parameter in what.get("parameters", []):
        if "$ref" in parameter:
            parameter = document["components"]["parameters"][parameter["$ref"].rpartition("/")[2]]
        if parameter["in"] != "path":
            needed = "yes" if parameter.get("required") else ""
            told = " ".join(filter(None, [parameter.get("description", ""), meaning(parameter["schema"])]))
            rows.append([f"`{parameter['name']}`", parameter["in"], type_of(parameter["schema"]), needed, told])
    if rows:
        text += table(["Parameter", "In", "Type", "Needed", "What it is"], rows) + "\n"
    bodies = [(kind, content.get("schema", {})) for kind, content in
              what.get("requestBody", {}).get("content", {}).items()]
    for kind, schema in bodies:
        if kind != "application/msgpack":
            rows = list(field_rows(schema))
            told = "object" if rows else type_of(schema)
            text += f"- Body `{kind}`: {told}. {meaning(schema)}".rstrip() + "\n"
            if rows:
                text += "\n" + table(["Field", "Type", "Needed", "What it is"], rows) + "\n"
    for status, answer in what["responses"].items():
        if status == "default":
            continue
        if "$ref" in answer:
            answer = document["components"]["responses"][answer["$ref"].rpartition("/")[2]]
        types = [type_of(content["schema"]) for kind, content in answer.get("content", {}).items()
                 if "schema" in content and kind not in ("application/msgpack", "application/problem+json")]
        text += f"- {status}: {answer['description']}" + "".join(f" {one}" for one in types) + "\n"
    return text + "\n"


def api(_programs):
    document = json.loads((ROOT / "server/openapi.json").read_text())
    role_of = roles()
    groups = {}
    for path, methods in document["paths"].items():
        for method, what in methods.items():
            role = role_of[(method, path)]
            groups.setdefault(title_of(path), []).append(operation(method, path, what, document, role))
    text = "".join(f"### {title}\n\n" + "".join(operations) for title, operations in groups.items())
    text += "### Schemas\n\n"
    for name, schema in document["components"]["schemas"].items():
        text += f"#### {name}\n\n"
        if "properties" not in schema and "allOf" not in schema:
            text += f"{type_of(schema)}. {meaning(schema)}".rstrip() + "\n\n"
            continue
        if "description" in schema:
            text += schema["description"] + "\n\n"
        text += table(["Field", "Type", "Needed", "What it is"], list(field_rows(schema))) + "\n"
    return text.rstrip() + "\n"


def metrics(programs):
    """What a server tells of that has a cache with every tier and has served a request."""
    sys.path.insert(0, str(ROOT / "tests" / "ops"))
    from support import Folder, Redis, Server, eventually  # noqa: E402
    from workload import make_cache, move, store  # noqa: E402

    with Folder() as folder:
        redis = Redis(folder)
        # A bucket that cannot be reached has all series, too.
        bucket = {"bucket": "blocks", "endpoint": "http://127.0.0.1:9"}
        config = {"caches": [], "shared": {"url": f"redis://{redis.address}", "s3": bucket}}
        (folder / "config.json").write_text(json.dumps(config))
        keys = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret"}
        server = Server(programs / "cairn-server", folder, "--config", folder / "config.json", "--runtime", "host",
                        env={**os.environ, **keys})
        make_cache(server, "a", pinned=4, disk=4, shared={"codec": "bytes"})
        store(server, "a", 1, "pinned")
        move(server, "a", [1], "disk")

        def told():
            text = server.call("GET", "/metrics")[1].decode()
            # A node that was asked nothing has no series.
            return text if f'node="{redis.address}"' in text else None

        def stored_anew():
            """The first may have come before the store was known."""
            server.call("DELETE", "/v1/caches/a/keys/" + f"{1:016x}")
            store(server, "a", 1, "pinned")
            return told()

        text = eventually(stored_anew, "the store to be asked")
        server.stop()
        redis.stop()
    rows = []
    for name, told in re.findall(r"^# HELP (\S+) (.*)$", text, re.M):
        kind = re.search(rf"^# TYPE {name} (\w+)$", text, re.M)[1]
        series = re.search(rf"^{name}(?:_bucket|_count)?\{{(.*)\}} ", text, re.M)
        labels = [label for label in re.findall(r"(\w+)=", series[1] if series else "") if label != "le"]
        rows.append([f"`{name}`", kind, ", ".join(labels), told])
    return table(["Name", "Kind", "Labels", "What it is"], rows)


def parts(_):
    """The table from which GET /v1/system takes the parts, too."""
    def row(part):
        name = part["part"] + (f" (needs: {part['needs']})" if "needs" in part else "")
        code = [f"`{part[field]}`" if field in part else "—" for field in ("metric", "setting", "test")]
        return [name, part["purpose"], *code]

    text = ""
    for section, rows in json.loads((ROOT / "server/assets/parts.json").read_text()).items():
        text += f"## {section}\n\n" + table(["part", "purpose", "metric", "setting", "test"], map(row, rows)) + "\n"
    return text


PARTS = {"settings": settings, "parts": parts, "api": api, "metrics": metrics,
         "cairnctl --help": lambda programs: program_help(programs, "cairnctl"),
         "cairn-replay --help": lambda programs: program_help(programs, "cairn-replay")}


def rendered(page, programs):
    return PART.sub(lambda part: part[1] + "\n" + PARTS[part[2]](programs).rstrip() + "\n\n" + part[3],
                    page.read_text())


def main():
    preset = sys.argv[1] if len(sys.argv) > 1 else "release"
    for path in PAGES:
        page = ROOT / path
        text = rendered(page, ROOT / "build" / preset)
        changed = text != page.read_text()
        page.write_text(text)
        print(f"{path}: {'written' if changed else 'as it was'}")


if __name__ == "__main__":
    main()
