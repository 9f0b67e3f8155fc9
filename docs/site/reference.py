#!/usr/bin/env python3
"""Prints the reference of the Python package as a page, from its docstrings and signatures.

usage: PYTHONPATH=python/src docs/site/reference.py
"""

import dataclasses
import inspect
import re

import cairn
from cairn import errors, model

CLASSES = [cairn.Client, cairn.AsyncClient, cairn.Cache, cairn.AgentMemory, cairn.TierView]


def signature(function):
    """`f(a, *, b=1) -> T`: a call of the API is named by what it returns."""
    own = inspect.signature(function)
    kept = [one.replace(annotation=plain(one.annotation)) for one in own.parameters.values() if one.name != "self"]
    text = str(own.replace(parameters=kept, return_annotation=plain(own.return_annotation)))
    text = re.sub(r"^\(/, ", "(", text).replace("'", "")
    return text if len(text) < 100 else re.sub(r", (?=\*,|\w+:)", ",\n    ", text)


def plain(annotation):
    if not isinstance(annotation, str):
        return annotation
    return re.sub(r"^Call\[(.*)\]$", r"\1", annotation)


def text_of(thing):
    """The docstring, with its lines `name: what it is` as a list."""
    text = inspect.cleandoc(thing.__doc__ or "")
    listed = re.sub(r"^([a-z_]+): ", r"- `\1`: ", text, flags=re.M)
    return re.sub(r"(?<!\n)\n(?=- `)", "\n\n", listed)


def methods(kind):
    names = [name for base in reversed(kind.__mro__) for name in vars(base)]
    for name in dict.fromkeys(names):
        if not name.startswith("_") and inspect.isfunction(inspect.getattr_static(kind, name)):
            yield name, getattr(kind, name)


def show_class(kind, shown):
    """`shown`: the methods that another class has, by name, are named and not repeated."""
    print(f"## {kind.__name__}\n\n```python\n{kind.__name__}{signature(kind.__init__).replace(' -> None', '')}\n```\n")
    print(text_of(kind) + "\n")
    same = []
    for name, function in methods(kind):
        if shown.get(name) == text_of(function):
            same.append(f"`{name}`")
            continue
        shown.setdefault(name, text_of(function))
        print(f"### {kind.__name__}.{name} {{: #{kind.__name__}-{name} }}\n")
        print(f"```python\n{name}{signature(function)}\n```\n\n{text_of(function)}\n")
    if same:
        print(f"Like `Client`: {', '.join(same)}.\n")


def show_values():
    print("## Values\n\nAnswers, and what calls take. The names of the fields are those of [the API](../docs/api.md).\n")
    for name, kind in vars(model).items():
        if not (dataclasses.is_dataclass(kind) and kind.__module__ == model.__name__):
            continue
        doc = "" if text_of(kind).startswith(f"{name}(") else text_of(kind)
        print(f"### {name}\n\n{doc}\n\n```python")
        for field in dataclasses.fields(kind):
            has_default = field.default is not dataclasses.MISSING
            print(f"{field.name}: {field.type}" + (f" = {field.default!r}" if has_default else ""))
        print("```\n")


def show_errors():
    print("## Errors\n\n| class | base | code | what it means |\n| --- | --- | --- | --- |")
    for name, kind in vars(errors).items():
        if inspect.isclass(kind) and issubclass(kind, errors.CairnError):
            meaning = " ".join(text_of(kind).split()).replace("|", "\\|")
            print(f"| `{name}` | `{kind.__base__.__name__}` | {code_of(kind)} | {meaning} |")


def code_of(kind):
    code = vars(kind).get("code")
    return f"`{code}`" if isinstance(code, str) else ""


def main():
    print(f"# Python's calls\n\n{text_of(cairn)}\n")
    shown = {}
    for kind in CLASSES:
        show_class(kind, shown)
    show_values()
    show_errors()


if __name__ == "__main__":
    main()
