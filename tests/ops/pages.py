"""Parses the documentation pages: fenced blocks, headings and links.

The mark of a command block says what a test does with it:

  ```sh runs              run as printed, all of a page in one shell, in order, beside a fresh server
  ```sh serves            starts a server in the foreground; runs in the background until it listens
  ```sh needs=WHAT        cannot run in a test; its syntax and the names in it are checked
  ```python runs          the same as `sh runs`, given to python3
  ```text answers         the output of the block before (or `json answers`); `…` stands for any text on its line
"""

import dataclasses
import re

from support import ROOT

# Reasons why a block of commands is not run.
NEEDS = {
    "docker": "a Docker daemon",
    "kubernetes": "a cluster",
    "systemd": "a service manager, and root",
    "gpu": "a machine with a GPU",
    "minutes": "minutes of building or measuring",
    "terminal": "a person who looks at it or ends it",
    "hosts": "more than one machine",
}
FENCE = re.compile(r"^(`{3,})([^\n`]*)\n(.*?)^\1$", re.M | re.S)


@dataclasses.dataclass
class Block:
    language: str
    words: list  # after the language
    text: str
    line: int

    @property
    def runs(self):
        return "runs" in self.words

    @property
    def serves(self):
        return "serves" in self.words

    @property
    def answers(self):
        return "answers" in self.words

    @property
    def needs(self):
        return [word.removeprefix("needs=") for word in self.words if word.startswith("needs=")]


class Page:
    def __init__(self, path):
        self.path = path
        self.name = str(path.relative_to(ROOT))
        self.text = path.read_text()
        self.blocks = []
        for fence in FENCE.finditer(self.text):
            language, *words = fence[2].split() or [""]
            line = self.text.count("\n", 0, fence.start()) + 1
            self.blocks.append(Block(language, words, fence[3], line))
        # Outside of code: only there a link is a link.
        self.prose = FENCE.sub("", self.text)

    def anchors(self):
        """The anchors that GitHub makes from headings."""
        taken = {}
        for heading in re.findall(r"^#+ +(.*?) *#*$", self.prose, re.M):
            plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
            slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
            count = taken.get(slug, 0)
            taken[slug] = count + 1
            yield f"{slug}-{count}" if count else slug

    def links(self):
        bare = re.sub(r"`[^`\n]*`", "", self.prose)
        yield from re.findall(r"\]\(([^)\s]+)\)", bare)
        yield from re.findall(r"(?:src|href|srcset)=\"([^\"]+)\"", bare)


def all_pages():
    paths = sorted(ROOT.glob("*.md"))
    for folder in ("docs", "examples", "bench", "packaging", "deploy", "python", "docker"):
        paths += sorted((ROOT / folder).rglob("*.md"))
    return [Page(path) for path in paths if "node_modules" not in path.parts]
