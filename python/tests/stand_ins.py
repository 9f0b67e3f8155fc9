"""Stand-ins for the modules of engines that are not installed, and their interfaces as `engines/record.py`
recorded them."""

from __future__ import annotations

import inspect
import json
import sys
import unittest
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

RECORDED = json.loads((Path(__file__).parent / "interfaces.json").read_text())


def stand_in(case: type[unittest.TestCase], modules: Mapping[str, Mapping[str, Any]], *users: str) -> None:
    """Installs modules with these members for the tests of a class. Modules whose names begin with `users` are
    imported again with them."""
    before = dict(sys.modules)
    for name, members in modules.items():
        parts = name.split(".")
        for length in range(1, len(parts) + 1):
            sys.modules.setdefault(".".join(parts[:length]), ModuleType(".".join(parts[:length])))
        vars(sys.modules[name]).update(members)

    def forget() -> None:
        for name in set(sys.modules) - set(before):
            if name.startswith(users) or any(name == part or part.startswith(f"{name}.") for part in modules):
                del sys.modules[name]

    case.addClassCleanup(forget)


def has_the_recorded_interface(case: unittest.TestCase, kind: Any, interface: str, *more: str) -> None:
    """Checks that every abstract method exists, and that every public method is one of the interface, with its
    parameters, or one of `more`."""
    recorded = RECORDED[interface]["methods"]
    own = {name for name in vars(kind) if not name.startswith("_") and callable(getattr(kind, name))} | {
        "__init__"
    }
    for name, facts in recorded.items():
        if facts["abstract"]:
            case.assertIn(name, own)
        if name in own and name != "__init__":
            given = inspect.signature(inspect.unwrap(getattr(kind, name))).parameters.values()
            names = [("**" if one.kind is one.VAR_KEYWORD else "") + one.name for one in given]
            mine = names if inspect.ismethod(getattr(kind, name)) else names[1:]
            case.assertEqual(mine, facts["parameters"], name)
    case.assertEqual(own - {"__init__"} - set(recorded), set(more))
