"""Draws the spans of a trace as a picture (SVG), each as a bar below its parent."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Span = Mapping[str, Any]  # in OTLP's JSON form

WIDTH, TEXT, ROW, TOP = 960, 330, 26, 34
COLOURS = {"vllm": "#8a63d2", "cairn-server": "#1f7a5c"}
DETAILS = ("cairn.matched", "cairn.blocks", "cairn.bytes", "http.response.status_code")


def drawn(spans: Sequence[tuple[str, Span]], title: str) -> str:
    """spans: each with the name of its service."""
    rows = list(_in_order(spans))
    begin = min(int(span["startTimeUnixNano"]) for _, _, span in rows)
    length = max(int(span["endTimeUnixNano"]) for _, _, span in rows) - begin
    height = TOP + ROW * len(rows) + 8
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
        f'font-size="12" role="img"><title>{html.escape(title)}</title>',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="10" y="20" font-size="14">{html.escape(title)}: {length / 1e6:.1f} ms</text>',
    ]
    for row, (depth, service, span) in enumerate(rows):
        y = TOP + ROW * row
        scale = (WIDTH - TEXT - 90) / length
        x = TEXT + (int(span["startTimeUnixNano"]) - begin) * scale
        took = int(span["endTimeUnixNano"]) - int(span["startTimeUnixNano"])
        width = max(took * scale, 2.0)
        lines += [
            f'<text x="{10 + 14 * depth}" y="{y + 16}">{html.escape(_named(span))}</text>',
            f'<rect x="{x:.1f}" y="{y + 4}" width="{width:.1f}" height="16" rx="2" fill="{COLOURS[service]}"/>',
            f'<text x="{x + width + 5:.1f}" y="{y + 16}" fill="#444444">{took / 1e6:.2f} ms</text>',
        ]
    return "\n".join([*lines, "</svg>"]) + "\n"


def _in_order(spans: Sequence[tuple[str, Span]]) -> Iterator[tuple[int, str, Span]]:
    known = {span["spanId"] for _, span in spans}
    begun = sorted(spans, key=lambda one: int(one[1]["startTimeUnixNano"]))

    def below(parent: str | None, depth: int) -> Iterator[tuple[int, str, Span]]:
        for service, span in begun:
            above = span.get("parentSpanId")
            if (above if above in known else None) == parent:
                yield depth, service, span
                yield from below(span["spanId"], depth + 1)

    yield from below(None, 0)


def _named(span: Span) -> str:
    values = {one["key"]: next(iter(one["value"].values())) for one in span.get("attributes", ())}
    shown = [f"{name.split('.')[-1]} {values[name]}" for name in DETAILS[:3] if name in values]
    name = span["name"].replace("/v1/caches/{cache}/", "…/")
    return f"{name} ({', '.join(shown)})" if shown else name
