#!/usr/bin/env python3
"""Finds habits that make our prose hard to read at first reading, and names a plainer way.

usage: prose.py [ROOT]

It reads the pages, the newest section of CHANGELOG.md, `./run help`, and the comments and test names of CLEAN_CODE.
The help of the programs and the texts of the API are in the generated parts of the pages.
"""

import dataclasses
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Folders whose comments and test names are clean. Add a folder once it is; none leaves the list.
CLEAN_CODE = ["base", "blockmgr", "client", "ctl", "examples", "layouts", "memory", "metrics", "python/src", "replay",
              "server", "tests", "transport"]


@dataclasses.dataclass(frozen=True)
class Habit:
    name: str
    pattern: str  # of a sentence, without inline code
    reason: str
    before: str
    after: str

    def finds(self, sentence):
        return re.search(self.pattern, sentence) is not None


HABITS = [
    Habit("headless who", r"^Who(?:ever)? [^?]*[.;]$",
          "A sentence that begins with `Who` reads as a question. Name who acts.",
          "Who stores the same key again is answered `duplicate`.",
          "Storing an existing key returns `duplicate`."),
    Habit("headless what", r"^What (?:is|was|were|has|had|cannot|nobody|somebody|others|an? \w+) [^?]*[.;]$",
          "A sentence that begins with `What` reads as a question. Begin with the thing itself.",
          "What a match answers stays until the lease ends.",
          "A lease pins the matched blocks until it ends."),
    Habit("of a", r"^Of (?:an?|what|which|whom) ",
          "The subject comes first.",
          "Of a cache with a shared tier, the blocks also lie in the store.",
          "A cache with a shared tier also stores its blocks in the store."),
    Habit("whoever", r"\b[Ww]hoever\b",
          "Name who acts, or write `anyone who`.",
          "Whoever knows the id may join.",
          "Anyone who knows the id may join."),
    Habit("told", r"\b(?:is|are|was|were|be|been) told\b",
          "Say who sends what: gets, receives, returns, reports.",
          "The client is told how many events were lost.",
          "The client gets the number of lost events."),
    Habit("tells of", r"\b(?:[Tt]ells?|[Tt]old|[Tt]elling) of\b",
          "The usual word is report, list, show or name.",
          "It tells of the last 65,536 blocks.",
          "It reports the last 65,536 blocks."),
    Habit("answered", r"\b(?:is|are|was|were) answered\b",
          "A call returns something; a server responds.",
          "The request is answered with 409.",
          "The request returns 409."),
    Habit("is a status", r"(?<![Tt]here )\b(?:is|are) an? [45]\d\d\b",
          "A call returns a status.",
          "An old handle is a 409.",
          "An old handle returns 409."),
    Habit("nothing where", r"\b(?:[Nn]othing|[Nn]one|[Ff]alse|[Tt]rue|[Nn]ull|[Ee]mpty),? where\b",
          "Name the value and the condition: nullopt if, 0 if, returns false if.",
          "Nothing where it is none of this form.",
          "nullopt if malformed."),
    Habit("so many", r"\b[Ss]o many\b(?!.*\bthat\b)",
          "Write `the number of`, or a name for the number.",
          "So many of those are here by now.",
          "How many have arrived."),
    Habit("for so long", r"\bfor so long\b(?!.*\bthat\b)",
          "Name the time.",
          "Says so under each name, for so long.",
          "Registers each name with a TTL."),
    Habit("by and by", r"\b[Bb]y and by\b",
          "The usual word is gradually.",
          "Memory is taken by and by.",
          "Memory is allocated gradually."),
    Habit("for ever", r"\bfor ever\b",
          "Write always, permanently, or that it never changes.",
          "A key names its bytes for ever.",
          "A key always means the same bytes."),
    Habit("anew", r"\banew\b",
          "The usual word is again: restart, reset, make again.",
          "Each use begins the time anew.",
          "Each use restarts the time."),
    Habit("hangs on", r"\bhangs? on (?:how|what|which|whether|who)\b",
          "The usual word is depends.",
          "The time hangs on how far the log goes.",
          "The time depends on the length of the log."),
    Habit("of its own", r"\b(?:thread|process|memory|file|name|cache|lock|connection|folder|table|list|page|server|user"
                        r"|lease|host|buffer|queue|mutex|line|column)s? of (?:its|their|our) own\b",
          "Shorter: its own thread, a separate file.",
          "A thread of its own writes the log.",
          "A separate thread writes the log."),
    Habit("he", r"\b(?:he|him|himself)\b",
          "A thread, a caller and a program are `it`; people are `they`.",
          "The caller queued the waiters, so he finishes serving them.",
          "The caller that queued the waiters finishes serving them."),
    Habit("per", r"\b(?:one|two|\d[\d,.]*) (?:bytes?|bits?|[nµm]s|[KM]iB|regions?|slots?|leases?|lines?|threads?|records?"
                 r"|connections?|copy|lock|mutex|index|table|file|entry|server) an? "
                 r"(?:layer|host|key|block|node|server|token|rank|tier|cache)\b",
          "The usual word is per.",
          "The store has 300 bytes a block.",
          "The store has 300 bytes per block."),
    Habit("nobody's", r"\b(?:is|are|becomes?) nobody's\b",
          "Say that it is free, or that it has no owner.",
          "The slot is nobody's at once.",
          "The slot is free at once."),
    Habit("old words", r"\b(?:[Ww]hereof|[Tt]hereof|[Ww]herein|[Tt]herein|[Ww]hence|[Tt]hrice|[Hh]ereof)\b",
          "Use a word that a reader learnt at school.",
          "The file and the label thereof.",
          "The file and its label."),
]


@dataclasses.dataclass(frozen=True)
class Sentence:
    place: str
    text: str


def sentences_of(text, place, first_line=1):
    """Sentences of running text. A blank line, a table's cell and an item of a list end one."""
    text = re.sub(r"^(#+ .*)$", r"\1\0", text, flags=re.M)  # a heading ends with its line
    text = re.sub(r"`[^`\n]*`", "code", text)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    blocks = re.split(r"(\0|\n\s*\n|\n\s*(?:[-*]|\d+\.) |\s*\|\s*|\n(?=#))", text)
    line = first_line
    for i, block in enumerate(blocks):
        if i % 2 == 0:
            at = line
            for part in re.split(r"(?<=[.!?])\s+|(?<=;)\s+", block):
                plain = re.sub(r"\s+", " ", part.replace("**", "")).strip(" -*#>_")
                if plain:
                    yield Sentence(f"{place}:{at}", plain)
                at += part.count("\n")
        line += block.count("\n")


def prose_of_page(text):
    """A page without its fenced blocks of code; `text` blocks that a program printed stay."""
    def blank(fence):
        return fence[0] if fence[1].strip() == "text" else "\n" * fence[0].count("\n")

    text = re.sub(r"^```([^\n]*)\n.*?^```$", blank, text, flags=re.M | re.S)
    # Four spaces begin a block of code.
    return re.sub(r"^ {4}.*$", "", text, flags=re.M)


def newest_section(text):
    sections = re.split(r"^(?=## \[)", text, flags=re.M)
    return "".join(sections[:2])


def comments_of(source, marker):
    """Comments, each with the number of its first line. Lines of comment that follow each other are one."""
    pattern = rf"(?:^|(?<=\s)){re.escape(marker)}+[!/]? ?(.*)$"
    found, last = [], None
    for number, line in enumerate(source.split("\n"), 1):
        comment = re.search(pattern, line)
        if not comment:
            continue
        if found and last == number - 1 and line.lstrip().startswith(marker):
            found[-1][1] += "\n" + comment[1]
        else:
            found.append([number, comment[1]])
        last = number
    return found


def test_names_of(source):
    """The names of GoogleTest's tests, in words."""
    for name in re.finditer(r"^TEST(?:_F|_P)?\(\s*\w+,\s*(\w+)\s*\)", source, re.M):
        words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name[1])
        yield source.count("\n", 0, name.start()) + 1, words[:1] + words[1:].lower()


def code_sentences(root, folder):
    for path in sorted((root / folder).rglob("*")):
        marker = {".cpp": "//", ".hpp": "//", ".cu": "//", ".py": "#", ".txt": "#"}.get(path.suffix)
        # This file and its test hold the examples.
        if not marker or path.name in ("prose.py", "prose_test.py"):
            continue
        place, source = str(path.relative_to(root)), path.read_text()
        for line, comment in comments_of(source, marker):
            yield from sentences_of(comment, place, line)
        for line, name in test_names_of(source):
            yield Sentence(f"{place}:{line}", name)


def all_sentences(root, clean_code):
    pages = sorted(root.glob("*.md"))
    for folder in ("docs", "examples", "bench", "python", "packaging", "docker", "deploy"):
        pages += sorted((root / folder).rglob("*.md"))
    for page in pages:
        place = str(page.relative_to(root))
        text = page.read_text()
        yield from sentences_of(prose_of_page(newest_section(text) if place == "CHANGELOG.md" else text), place)
    if (root / "run").exists():
        text = subprocess.run(["bash", root / "run", "help"], capture_output=True, text=True, check=True).stdout
        yield from sentences_of(text, "./run help")
    for folder in clean_code:
        yield from code_sentences(root, folder)


def findings(root, clean_code):
    """How many sentences there are, and those with a habit."""
    count, found = 0, []
    for sentence in all_sentences(root, clean_code):
        count += 1
        found += [(sentence, habit) for habit in HABITS if habit.finds(sentence.text)]
    return count, found


def main():
    root = pathlib.Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT
    count, found = findings(root, CLEAN_CODE)
    for sentence, habit in found:
        print(f"{sentence.place}: {sentence.text}\n  {habit.name}: {habit.reason}\n"
              f"  before: {habit.before}\n  after:  {habit.after}")
    print(f"{count} sentences, {len(found)} to rewrite")
    return 1 if found or count == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
