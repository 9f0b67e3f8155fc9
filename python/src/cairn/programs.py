"""Cairn's programs: those of the wheel if it has some, else those in PATH."""

from __future__ import annotations

import os
import pathlib
import shutil
import sys
from collections.abc import Sequence

# Commands of `cairn`, and the programs that they start.
PROGRAMS = {"serve": "cairn-server", "ctl": "cairnctl", "replay": "cairn-replay"}
NOT_FOUND = 127  # as from a shell


def path_of(program: str) -> str | None:
    """The program's file, or None if it is neither in this package nor in PATH."""
    inside = pathlib.Path(__file__).parent / "bin" / program
    return str(inside) if inside.exists() else shutil.which(program)


def become(program: str, arguments: Sequence[str]) -> int:
    """Replaces this process by a program. Returns an exit code only if that cannot be done."""
    path = path_of(program)
    if path is None:
        print(
            f"cairn: there is no {program} here: this package was installed without programs, and PATH has none",
            file=sys.stderr,
        )
        return NOT_FOUND
    sys.stdout.flush()
    try:
        os.execv(path, [program, *arguments])
    except OSError as error:
        print(f"cairn: {path}: {error.strerror}", file=sys.stderr)
        return NOT_FOUND
