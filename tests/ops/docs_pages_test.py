#!/usr/bin/env python3
"""Checks the pages without running them: links work; command blocks are marked and name existing programs, flags,
files and words of ./run; generated parts match their script's output; each alert has a runbook, each error code
an explanation; and the table of parts is complete.

usage: docs_pages_test.py CAIRN_SERVER
"""

import functools
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

from pages import NEEDS, all_pages
from support import ROOT

sys.path.insert(0, str(ROOT / "docs"))
import render  # noqa: E402

PROGRAMS = pathlib.Path(sys.argv[1]).resolve().parent
ALERTS = ROOT / "docker" / "prometheus" / "alerts.yaml"
RUNBOOKS = "docs/operation.md"
# Programs that readers have but this machine may lack.
OUTSIDE = {"docker", "kubectl", "systemctl", "journalctl", "nvidia-smi", "clang-format", "apt-get", "cmake", "ctest",
           "openssl", "install", "pip", "vllm", "lmcache", "helm", "llama-server", "ollama"}
# llama-server's.
FLAGS_OF_OTHERS = """ --slot-save-path --no-kv-unified --kv-unified --cache-type-k --cache-reuse --context-shift
--ctx-checkpoints --checkpoint-min-step"""
SHELL = {"for", "do", "done", "if", "then", "else", "fi", "while", "export", "source", "cd", "set", "echo", "printf",
         "wait", "kill", "."}
failures = []


def check(right, what):
    if not right:
        failures.append(what)


def links_lead_somewhere(pages):
    anchors = {page.path: set(page.anchors()) for page in pages}
    count = 0
    for page in pages:
        for link in page.links():
            if re.match(r"[a-z]+:", link):
                continue
            count += 1
            path, _, anchor = link.partition("#")
            target = (page.path.parent / path).resolve() if path else page.path
            check(target.exists(), f"{page.name} links to {link}, which does not exist")
            if anchor and target in anchors:
                check(anchor in anchors[target], f"{page.name} links to {link}, which has no such heading")
    assert count > 0, "no page has a link"


def blocks_are_marked(pages):
    for page in pages:
        for block in page.blocks:
            where = f"{page.name}:{block.line}"
            check(block.language not in ("bash", "shell", "console", ""), f"{where}: a block of no known language")
            if block.language == "sh":
                check(block.runs + block.serves + bool(block.needs) == 1, f"{where}: not marked; see tests/ops/pages.py")
                done = subprocess.run(["bash", "-n"], input=block.text, capture_output=True, text=True)
                check(done.returncode == 0, f"{where}: {done.stderr}")
            if block.language == "python":
                try:
                    compile(block.text, where, "exec")
                except SyntaxError as wrong:
                    check(False, f"{where}: {wrong}")
            for need in block.needs:
                check(need in NEEDS, f"{where}: needs={need}, but the reasons are {sorted(NEEDS)}")


def parts_name_existing_things(pages):
    """Each row of docs/parts.md names a metric and a setting of the generated tables, and an existing test."""
    text = {page.name: page.text for page in pages}
    rows = re.findall(r"^\| (.+?) \| .+? \| (.+?) \| (.+?) \| (.+?) \|$", text["docs/parts.md"], re.M)
    rows = [row for row in rows if row[0] not in ("part", "---")]
    assert len(rows) > 30, f"docs/parts.md has {len(rows)} parts"
    sources = "".join(path.read_text() for path in (ROOT / "metrics").glob("*.cpp"))
    for part, metric, setting, test in rows:
        if metric != "—":
            check(f'"{metric.strip("`")}"' in sources, f"docs/parts.md: {part}: there is no metric {metric}")
        if setting != "—":
            check(f"| {setting} |" in text["docs/configuration.md"], f"docs/parts.md: {part}: no setting {setting}")
        check((ROOT / test.strip("`")).exists(), f"docs/parts.md: {part}: there is no test {test}")


# Things that need no row in docs/parts.md, and why.
NO_PART = {
    "tests/e2e": {
        "bad_json_test.cpp": "requests that are refused, as in bad_request_test.cpp",
        "mutation_test.cpp": "requests that are refused, as in bad_request_test.cpp",
        "shared_groups_test.cpp": "the shared store with KV groups, as in shared_test.cpp",
        "keys_test.cpp": "one way of several to the life of a block",
        "options_test.cpp": "fields that all ways to store a block have",
        "service_test.cpp": "what a server reports about all its parts",
    },
    "settings": {},
    "metrics": {
        "commits": "of the life of a block, beside cairn_blocks",
        "matches": "of a match, beside cairn_match_blocks_total",
        "lease": "of leases, beside cairn_leases",
        "leased": "of leases, beside cairn_leases",
        "eviction": "of eviction orders, beside cairn_evictions_total",
        "hints": "of eviction orders, beside cairn_evictions_total",
        "remembered": "of the miss ratio, beside cairn_miss_ratio_curve",
        "history": "the memory of the miss ratio",
        "groups": "of groups, beside cairn_group_failures_total",
        "populated": "of pinned memory, while a tier is made",
        "metadata": "the memory of all blocks",
        "lock": "the server's own health",
        "memory": "the server's own health",
    },
}


def parts_are_complete(pages):
    """Each e2e test, section of settings and family of metrics (cairn_FAMILY_…) belongs to a part or to
    NO_PART."""
    text = {page.name: page.text for page in pages}
    rows = re.findall(r"^\| .+? \| .+? \| (.+?) \| (.+?) \| (.+?) \|$", text["docs/parts.md"], re.M)
    sources = "".join(path.read_text() for path in (ROOT / "metrics").glob("*.cpp"))
    there = {
        "tests/e2e": {path.name for path in (ROOT / "tests" / "e2e").glob("*_test.cpp")},
        "settings": set(re.findall(r"^### Section `(\w+)`", text["docs/configuration.md"], re.M)),
        "metrics": set(re.findall(r'"cairn_([a-z]+)_?[a-z_]*"', sources)),
    }
    named = {
        "tests/e2e": {pathlib.PurePath(test.strip("`")).name for _, _, test in rows},
        "settings": {setting.strip("`").partition(".")[0] for _, setting, _ in rows},
        "metrics": {metric.strip("`").split("_")[1] for metric, _, _ in rows if "_" in metric},
    }
    for kind, found in there.items():
        assert found, f"there are no {kind}"
        excepted = NO_PART[kind].keys()
        for name in sorted(found - named[kind] - excepted):
            check(False, f"docs/parts.md has no row for {name} of {kind}; if it needs none, add it to NO_PART")
        for name in sorted(excepted - (found - named[kind])):
            check(False, f"NO_PART has {name} of {kind}, which does not exist or has a row")


class Names:
    """All names that a page may mention."""

    def __init__(self):
        self.run_help = subprocess.run(["bash", ROOT / "run", "help"], capture_output=True, text=True,
                                       check=True).stdout
        lists = "\n".join(path.read_text() for path in ROOT.glob("*/CMakeLists.txt"))
        self.programs = set(re.findall(r"cairn_program\((\S+)", lists))
        tests = "\n".join(path.read_text() for path in ROOT.glob("tests/*/CMakeLists.txt"))
        self.tests = set(re.findall(r"cairn_test\((\S+)", tests))
        self.flags = {name: self.help_of(PROGRAMS / name) for name in self.programs if (PROGRAMS / name).exists()}
        for name in ("soak", "share", "crash"):
            script = next(ROOT.glob(f"tests/*/{name}.py"))
            self.flags[name] = script.read_text()
        self.all_flags = self.run_help + "".join(self.flags.values()) + self.help_of_cairn("llama") + FLAGS_OF_OTHERS

    @functools.cached_property
    def cairn_help(self):
        return self.help_of_cairn()

    @staticmethod
    def help_of_cairn(*words):
        environment = os.environ | {"PYTHONPATH": str(ROOT / "python/src")}
        command = [sys.executable, "-B", "-m", "cairn", *words, "--help"]
        return subprocess.run(command, capture_output=True, text=True, env=environment, check=True).stdout

    @staticmethod
    def help_of(program):
        done = subprocess.run([program, "--help"], capture_output=True, text=True)
        return done.stdout

    def has_flag(self, program, flag):
        text = self.flags.get(program, self.all_flags)
        return re.search(rf"{flag}\b(?!-)", text) is not None


def names_exist(pages):
    names = Names()
    assert "cairn-server" in names.flags, f"no cairn-server in {PROGRAMS}"
    for page in pages:
        for word in set(re.findall(r"\./run ([a-z]+)", page.text)):
            check(re.search(rf"^  {word}\b", names.run_help, re.M), f"{page.name}: ./run has no word {word}")
        for program in set(re.findall(r"build/release/([\w-]+)", page.text)):
            check(program in names.programs, f"{page.name}: build/release/{program} is not built")
        # One command, up to the next one on its line.
        joined = page.text.replace("\\\n", " ")
        for program, rest in re.findall(r"\b(cairn-server|cairnctl|cairn-replay)\b`? ([^`\n|;&)]*)", joined):
            for flag in re.findall(r"(?<!\S)--[a-z][a-z-]+", rest):
                check(names.has_flag(program, flag), f"{page.name}: {program} has no {flag}")
        for flag in re.findall(r"`(--[a-z][a-z-]+)[^`]*`", page.prose):
            check(names.has_flag(None, flag), f"{page.name}: no program has {flag}")
        for block in page.blocks:
            if block.language == "sh":
                commands_exist(page, block, names)
        for path in re.findall(r"`([\w.-]+/[\w./-]+)`", page.prose):
            if (ROOT / path.split("/")[0]).is_dir() and not path.startswith("build/"):
                # Pages name a module without file extensions.
                check((ROOT / path).exists() or (ROOT / f"{path}.hpp").exists(), f"{page.name}: {path} does not exist")


def commands_exist(page, block, names):
    where = f"{page.name}:{block.line}"
    text = re.sub(r"<<'?(\w+)'?\n.*?\n\1$", "", block.text.replace("\\\n", " "), flags=re.M | re.S)
    # Quoted text of several lines is data.
    text = re.sub(r"'[^']*'", lambda quoted: "''" if "\n" in quoted[0] else quoted[0], text)
    for line in text.split("\n"):
        # A variable's value may be the output of a command.
        first = re.match(r"(?:\w+=\$\(|(?:\w+=[^\s$]\S* )*)([\w./-]+)(?=\s|$)", line)
        if not first or "=" in first[1]:
            continue
        program = first[1]
        folder = program.partition("/")[0]
        if folder == "build":
            name = program.rpartition("/")[2]
            check(name in names.programs | names.tests, f"{where}: {program} is not built")
        elif "/" in program:
            # A file of the repository, or in a folder that an earlier line made.
            made = re.search(rf" {folder}$", text, re.M)
            check((ROOT / program).exists() or made, f"{where}: {program} does not exist")
        else:
            if program == "cairn":
                word = line.removeprefix("cairn ").split()[0]
                check(word in names.cairn_help.split(), f"{where}: cairn has no command {word}")
                continue
            own = set(re.findall(r"^(\w+)\(\) ", page.text, re.M))
            check(program in OUTSIDE | SHELL | own or shutil.which(program), f"{where}: no program {program}")
        for path in re.findall(r"(?<![\w/.:-])((?:docker|deploy|packaging|examples|tests|bench|docs)/[\w./-]+)", line):
            check((ROOT / path).exists(), f"{where}: {path} does not exist")


def generated_parts_are_current():
    for path in render.PAGES:
        page = ROOT / path
        check(page.read_text() == render.rendered(page, PROGRAMS),
              f"{path} is out of date: run docs/render.py {PROGRAMS.parent.name}")


def every_alert_has_a_runbook(pages):
    runbooks = next(page for page in pages if page.name == RUNBOOKS)
    text = ALERTS.read_text()
    rules = re.split(r"^ +- alert: ", text, flags=re.M)[1:]
    assert rules, "no alerts"
    for rule in rules:
        name = rule.split("\n")[0]
        check(re.search(rf"^### {name}$", runbooks.prose, re.M), f"{RUNBOOKS} has no runbook for {name}")
        check(f'runbook_url: "http://{{{{ $labels.instance }}}}/runbooks/{name}"\n' in rule,
              f"{name} does not link to its runbook")
    known = {rule.split("\n")[0] for rule in rules}
    document = json.loads((ROOT / "server" / "openapi.json").read_text())
    documented = document["paths"]["/runbooks/{name}"]["get"]["parameters"][0]["schema"]["enum"]
    check(set(documented) == known, f"server/openapi.json: the runbooks of {sorted(set(documented) ^ known)}")
    for name in re.findall(r"^### (Cairn\w+)$", runbooks.prose, re.M):
        check(name in known, f"{RUNBOOKS} has a runbook for {name}, which is no alert")


def the_readme_is_short(pages):
    readme = next(page for page in pages if page.name == "README.md")
    check(readme.text.count("\n") <= 120, f"README.md has {readme.text.count(chr(10))} lines; 120 are a minute")


def every_page_is_in_the_index(pages):
    index = next(page for page in pages if page.name == "docs/README.md")
    linked = {(index.path.parent / link.partition("#")[0]).resolve() for link in index.links()}
    for page in pages:
        if page.name.startswith("docs/") and page.path != index.path:
            check(page.path in linked, f"docs/README.md does not link to {page.name}")


def every_error_code_is_explained(pages):
    page = next(page for page in pages if page.name == "docs/troubleshooting.md")
    explained = {}
    for row in re.finditer(r"^\| (`.*?) \| (\d+) \|", page.text, re.M):
        explained.update({code: row[2] for code in re.findall(r"`(\w+)`", row[1])})
    source = (ROOT / "server" / "routes" / "problem.cpp").read_text()
    codes = {}
    for group in re.finditer(r"((?:\s+case ErrorCode::\w+:)+)\s+return (\d+);", source):
        codes.update({code: group[2] for code in re.findall(r"ErrorCode::(\w+)", group[1])})
    assert codes, "no error codes in problem.cpp"
    for code in sorted(codes.keys() | explained.keys()):
        check(codes.get(code) == explained.get(code),
              f"{page.name} gives {code} the status {explained.get(code)}, the server {codes.get(code)}")


def main():
    pages = all_pages()
    links_lead_somewhere(pages)
    blocks_are_marked(pages)
    names_exist(pages)
    parts_name_existing_things(pages)
    parts_are_complete(pages)
    generated_parts_are_current()
    every_alert_has_a_runbook(pages)
    the_readme_is_short(pages)
    every_page_is_in_the_index(pages)
    every_error_code_is_explained(pages)
    print(*failures, sep="\n")
    print(f"{len(pages)} pages, {len(failures)} wrong")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
