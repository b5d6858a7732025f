#!/usr/bin/env python3
"""Renderings of chat templates by jinja2, the oracle of src/jinja and src/text/chat.c.

usage: make_chat_goldens.py CHAT_DIR
    pip install jinja2

CHAT_DIR/templates/NAME.jinja are the templates; CHAT_DIR/cases.json gets the conversations of
chat_cases.py, CHAT_DIR/NAME.json what jinja2, set up as transformers does, makes of each: a text, or
null where the template raises an error. Everything is deterministic.
"""

import hashlib
import json
import pathlib
import sys

import chat_cases


def write(path, doc):
    text = json.dumps(doc, ensure_ascii=False, indent=0)
    path.write_text(text + "\n", encoding="utf-8")
    return len(text)


def text_of(template, case):
    try:
        return chat_cases.render(template, case)
    except Exception:  # whatever Python raises refuses the conversation
        return None


def main():
    out = pathlib.Path(sys.argv[1])
    cases = list(chat_cases.cases())
    write(out / "cases.json", {"tokens": chat_cases.TOKENS, "now_s": 1700000000, "cases": cases})
    for path in sorted((out / "templates").glob("*.jinja")):
        template = path.read_bytes().decode("utf-8")
        texts = [text_of(template, case) for case in cases]
        doc = {"sha256": hashlib.sha256(template.encode()).hexdigest(), "texts": texts}
        size = write(out / f"{path.stem}.json", doc)
        refused = sum(text is None for text in texts)
        print(f"{path.stem}: {len(texts)} cases, {refused} refused, {size} bytes, {doc['sha256']}")


main()
