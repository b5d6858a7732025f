#!/usr/bin/env python3
"""Items of the task `endings` (tests/scores), from the verses of tests/golden/corpus.txt: which of four endings is a verse's own?

    make_scores_items.py [OUT]      default: tests/scores/endings.jsonl

An item is a line {"context", "endings", "answer"}: up to CONTEXT_WORDS words of a verse before its last ENDING_WORDS
words, those words, and the same number of last words of three other verses; `answer` is the place of the right ending.
Everything is drawn from SEED, so two runs write the same bytes. Standard library only."""
import json
import pathlib
import random
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
CORPUS = ROOT / "tests" / "golden" / "corpus.txt"
OUT = ROOT / "tests" / "scores" / "endings.jsonl"
SEED = 15
ITEMS = 80
CHOICES = 4
CONTEXT_WORDS = 14
LEAST_CONTEXT_WORDS = 10
ENDING_WORDS = 3
# No quotation mark may betray an ending: all are words with commas or semicolons between them, and a full stop.
PLAIN = re.compile(r"[A-Za-z’,; ]+\.")


def cut(verse):
    """(context, ending), or None: too short, or an ending of another shape."""
    words = verse.split()
    ending = " ".join(words[-ENDING_WORDS:])
    if len(words) < LEAST_CONTEXT_WORDS + ENDING_WORDS or not PLAIN.fullmatch(ending):
        return None
    return " ".join(words[:-ENDING_WORDS][-CONTEXT_WORDS:]), ending


def items():
    rng = random.Random(SEED)
    pieces, endings = [], set()
    for verse in CORPUS.read_text(encoding="utf-8").splitlines():
        piece = cut(verse)
        if piece and piece[1].lower() not in endings:
            endings.add(piece[1].lower())
            pieces.append(piece)
    for context, ending in rng.sample(pieces, ITEMS):
        others = rng.sample([e for c, e in pieces if e != ending and e not in context], CHOICES - 1)
        answer = rng.randrange(CHOICES)
        yield {"context": context, "endings": others[:answer] + [ending] + others[answer:], "answer": answer}


def main():
    out = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else OUT
    out.write_text("".join(json.dumps(item, ensure_ascii=False) + "\n" for item in items()), encoding="utf-8")
    print(f"{out}: {ITEMS} items")


if __name__ == "__main__":
    main()
