#!/usr/bin/env python3
"""A recorded terminal session as a picture that plays it.

    terminal_svg.py SESSION.cast OUT.svg [--from TEXT] [--until TEXT] [--columns 100]

Reads a recording in the format asciicast v2 (`asciinema rec`): lines of [seconds, "o", text]. Lines before the first one
that begins with the first TEXT, and from the one on that begins with the second, are left out. Understands what our own programs print: text, new lines, bold (1), reverse (7) and their
end (0); anything else that begins with an escape is left out. Long lines are broken as a terminal breaks them. Each piece of
text appears when it was printed; pauses of more than 2 s are shortened to that. Who does not play it shows the whole session."""

import argparse
import html
import json
import re

CELL_W, LINE_H, PAD, LONGEST_PAUSE_S = 8.4, 20, 16, 2.0
TOKEN = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|\x1b\][^\x07]*\x07|([\r\n])|([^\x1b\r\n]+)")
STYLE = {"1": "bold", "7": "reverse", "": "", "0": ""}


def output(path):
    """(seconds, text) of a recording, with pauses shortened."""
    with open(path, encoding="utf-8") as f:
        if json.loads(next(f)).get("version") != 2:
            raise SystemExit(f"{path}: not an asciicast of version 2")
        now = last = 0.0
        for line in f:
            at, kind, text = json.loads(line)
            now += min(at - last, LONGEST_PAUSE_S)
            last = at
            if kind == "o":
                yield now, text


def cells(events, columns):
    """Rows of (second, style, text) as a terminal of so many columns shows them."""
    rows, used, style = [[]], 0, ""
    for at, text in events:
        for codes, kind, end, word in TOKEN.findall(text):
            if kind == "m":
                style = STYLE.get(codes, style)
            elif end == "\n":
                rows.append([])
                used = 0
            while word:
                if used == columns:
                    rows.append([])
                    used = 0
                piece, word = word[: columns - used], word[columns - used :]
                rows[-1].append((at, used, style, piece))
                used += len(piece)
    return rows


def words(row):
    return "".join(piece for _, _, _, piece in row)


def draw(rows, columns):
    begin = min((at for row in rows for at, *_ in row), default=0)
    width, height = columns * CELL_W + 2 * PAD, len(rows) * LINE_H + 2 * PAD
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" xml:space="preserve" viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="A recorded terminal session">',
        "<style>text{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;fill:#d7dde4;white-space:pre}"
        ".bold{font-weight:700;fill:#fff}.reverse{fill:#14181d;font-weight:700}</style>",
        f'<rect width="{width:.0f}" height="{height:.0f}" rx="8" fill="#14181d"/>',
    ]
    for n, row in enumerate(rows):
        for at, column, style, piece in row:
            x, y = PAD + column * CELL_W, PAD + (n + 0.72) * LINE_H
            hidden = f'<set attributeName="visibility" to="hidden" begin="0s" end="{at - begin:.2f}s"/>' if at > begin else ""
            if style == "reverse":
                out.append(f'<rect x="{x:.1f}" y="{PAD + n * LINE_H:.1f}" width="{len(piece) * CELL_W:.1f}" height="{LINE_H}" fill="#f2b84b">{hidden}</rect>')
            name = f' class="{style}"' if style else ""
            out.append(
                f'<text x="{x:.1f}" y="{y:.1f}"{name} textLength="{len(piece) * CELL_W:.1f}" lengthAdjust="spacingAndGlyphs">{html.escape(piece)}{hidden}</text>'
            )
    return "\n".join(out) + "\n</svg>\n"


def main():
    p = argparse.ArgumentParser()
    p.add_argument("session")
    p.add_argument("out")
    p.add_argument("--from", dest="first", default="")
    p.add_argument("--until")
    p.add_argument("--columns", type=int, default=100)
    a = p.parse_args()
    rows = cells(output(a.session), a.columns)
    first = next((n for n, row in enumerate(rows) if words(row).startswith(a.first)), 0)
    last = next((n for n, row in enumerate(rows) if a.until and words(row).startswith(a.until)), len(rows))
    rows = rows[first:last]
    while rows and not words(rows[-1]).strip():
        rows.pop()
    with open(a.out, "w", encoding="utf-8") as f:
        f.write(draw(rows, a.columns))


main()
