#!/usr/bin/env python3
"""That prose.py finds each habit in each kind of text, and leaves ordinary English alone."""

import pathlib
import tempfile
import unittest

import prose

# Plain sentences, some of them close to a habit.
ORDINARY = """
Who may use the socket? The server's user, and the users in `--unix-users`.
The client knows who holds the block. Anyone who knows the lease can end it.
What is a block? A block holds the keys and values of `page_size` tokens.
What follows is a list. What matters is the size. The page says what is measured.
Of 100 requests, 3 failed. Of the three orders, `lru` is the default.
The reader can tell a copy from its source, and the log tells them apart.
So many requests arrive that the queue is full. Too many were open.
It ran for so long that the lease ended. Forever is one word.
The server hangs on a read. The picture hangs on the wall.
The answer comes within 2 ms, and an answer that is late counts as a miss.
The tier has a life of its own. This is one of its own names.
The response is a list of 404 entries. There is a 429 in the log. The call returns 409.
The helper, the caches and the other hosts are here. The header has a field.
Give each client a key. The load found 22.9 through a server. A block takes 300 bytes per node.
Nothing is evicted where a lease holds it. None of the blocks moved. Empty slots come first.
Nobody's blocks are lost.
"""
PLANTED = "Who stores the same key again is answered `duplicate`, and the older block stays."


class Prose(unittest.TestCase):
    def habits_in(self, text):
        return [habit.name for sentence in prose.sentences_of(text, "text") for habit in prose.HABITS
                if habit.finds(sentence.text)]

    def found_in(self, files, clean_code=()):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in files.items():
                path = pathlib.Path(folder) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            return {sentence.place for sentence, _ in prose.findings(pathlib.Path(folder), clean_code)[1]}

    def test_each_habit_is_found_in_its_example_and_not_in_the_better_one(self):
        for habit in prose.HABITS:
            with self.subTest(habit.name):
                self.assertIn(habit.name, self.habits_in(habit.before))
                self.assertEqual([], self.habits_in(habit.after))

    def test_ordinary_english_has_none(self):
        for sentence in prose.sentences_of(ORDINARY, "text"):
            with self.subTest(sentence.text):
                self.assertEqual([], [habit.name for habit in prose.HABITS if habit.finds(sentence.text)])

    def test_a_planted_sentence_is_found_in_a_page(self):
        self.assertEqual({"docs/page.md:3"}, self.found_in({"docs/page.md": f"# Page\n\nPlain. {PLANTED}\n"}))

    def test_a_planted_sentence_is_found_in_a_cell_and_in_an_item(self):
        page = f"# Page\n\n- One thing.\n- {PLANTED}\n\n| a | b |\n|---|---|\n| x | {PLANTED} |\n"
        self.assertEqual({"docs/page.md:4", "docs/page.md:8"}, self.found_in({"docs/page.md": page}))

    def test_code_in_a_page_is_not_read(self):
        page = f"# Page\n\n```sh runs\n# {PLANTED}\n```\n\n    {PLANTED}\n\nThe word `by and by` is old.\n"
        self.assertEqual(set(), self.found_in({"docs/page.md": page}))

    def test_the_newest_section_of_the_changes_is_read_and_no_older_one(self):
        changes = f"# Changes\n\n## [0.2.0]\n\n{PLANTED}\n\n## [0.1.0]\n\n{PLANTED}\n"
        self.assertEqual({"CHANGELOG.md:5"}, self.found_in({"CHANGELOG.md": changes}))

    def test_help_is_read(self):
        run = f"#!/bin/bash\necho '{PLANTED}'\n"
        self.assertEqual({"./run help:1"}, self.found_in({"run": run}))

    def test_comments_and_test_names_are_read_in_clean_folders_only(self):
        source = ("#include <x>\n\n// Who waits here for slots is served in order. It\n// is told when.\nint a;\n"
                  "TEST(Cache, TellsOfEveryBlock) {}\n")
        files = {"clean/a.cpp": source, "other/a.cpp": source}
        self.assertEqual({"clean/a.cpp:3", "clean/a.cpp:6"}, self.found_in(files, ["clean"]))

    def test_a_sentence_over_two_lines_is_one(self):
        self.assertEqual({"docs/page.md:1"}, self.found_in({"docs/page.md": "Memory is taken by\nand by.\n"}))


if __name__ == "__main__":
    unittest.main()
