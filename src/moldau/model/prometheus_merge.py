"""Merges the expositions of several processes into one, whose series name their process."""

import asyncio
from collections.abc import Mapping


async def merged(texts: Mapping[str, str], label: str) -> str:
    """`texts` by the value of the label. Type and help of a family are there once, before all its
    series, as the format requires."""
    heads: dict[str, list[str]] = {}
    series: dict[str, list[str]] = {}
    for value, text in texts.items():
        name, pair = "", f'{label}="{value}"'
        # Not splitlines: values of labels may contain what else ends a line in Unicode.
        for line in text.split("\n"):
            if line.startswith("# "):
                name = line.split(" ", 3)[2]
                head = heads.setdefault(name, [])
                if line not in head and len(head) < 2:
                    head.append(line)
            elif line:
                series.setdefault(name, []).append(_labelled(line, pair))
        # Other requests are served meanwhile.
        await asyncio.sleep(0)
    lines = [line for name, found in series.items() for line in (*heads.get(name, ()), *found)]
    return "\n".join([*lines, ""]) if lines else ""


def _labelled(line: str, pair: str) -> str:
    brace, space = line.find("{"), line.find(" ")
    if 0 <= brace < space:
        return f"{line[:brace]}{{{pair},{line[brace + 1 :]}"
    return f"{line[:space]}{{{pair}}}{line[space:]}"
