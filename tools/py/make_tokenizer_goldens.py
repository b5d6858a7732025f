#!/usr/bin/env python3
"""Small tokenizers with every feature that the model fixtures do not have, and their goldens.

usage: make_tokenizer_goldens.py tests/golden/corpus.txt tests/golden/tokenizers
    pip install tokenizers==0.23.3

triples: digits by up to three, words that skip merges, a beginning-of-text token (Llama 3's shape).
prefix: GPT-2's split alone, with a space put before every word that begins a text, and NFC.
odd: bytes that the vocabulary lacks, an unknown token, splits that drop and invert, literal splits.
Each has added tokens with all flags. Lines: {"text","ids","decoded"}, and "template": true where ids
include what the post-processor adds.
"""

import json
import pathlib
import random
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers, processors, trainers

SEED = 11
LINES = 160
TRIPLES = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
ADDED = (
    AddedToken("<|start|>", special=True, normalized=False),
    AddedToken("<|start|>more", special=True, normalized=False),
    AddedToken("[LEFT]", lstrip=True, normalized=False),
    AddedToken("[RIGHT]", rstrip=True, normalized=False),
    AddedToken("[BOTH]", lstrip=True, rstrip=True, special=True, normalized=False),
    AddedToken("whole", single_word=True, normalized=False),
    AddedToken("café", normalized=True),
    AddedToken("caf", normalized=True, single_word=True),
    AddedToken("é", normalized=False),
)
PIECES = (
    [token.content for token in ADDED]
    + [" ", "  ", "\n", "\r\n", "\t", "\u00a0", "\u2003", "\u180e", "\u200d", "_", "Ⓐ", "\u0301"]
    + ["café", "cafe\u0301", "cafe", "\u212b", "e\u0301", "1", "23", "4567", "½", "'S", "'ll", "'ſ"]
    + ["wholesome", "a-b", "--", "|", "||", "汉字", "ни́", "🇫🇷", "\x00", "\x7f", "\ufeff", "<|", "|>"]
)


def byte_level(regex, prefix=False):
    return pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=regex)


def train(tok, lines, size, alphabet):
    trainer = trainers.BpeTrainer(
        vocab_size=size, min_frequency=2, initial_alphabet=alphabet, show_progress=False
    )
    tok.train_from_iterator(lines, trainer)
    tok.decoder = decoders.ByteLevel()
    tok.add_tokens(list(ADDED))


def triples(lines):
    tok = Tokenizer(models.BPE(ignore_merges=True))
    split = pre_tokenizers.Split(Regex(TRIPLES), "isolated")
    tok.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level(False)])
    train(tok, lines, 420, pre_tokenizers.ByteLevel.alphabet())
    start = tok.token_to_id("<|start|>")
    template = processors.TemplateProcessing(
        single="<|start|> $A [BOTH]",
        special_tokens=[("<|start|>", start), ("[BOTH]", tok.token_to_id("[BOTH]"))],
    )
    tok.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    return tok


def prefix(lines):
    tok = Tokenizer(models.BPE())
    tok.normalizer = normalizers.NFC()
    tok.pre_tokenizer = byte_level(True, prefix=True)
    train(tok, lines, 400, pre_tokenizers.ByteLevel.alphabet())
    tok.post_processor = processors.ByteLevel(trim_offsets=True)
    return tok


def odd(lines):
    tok = Tokenizer(models.BPE(unk_token="?", fuse_unk=True))
    tok.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split("|", "removed"),
            pre_tokenizers.Split("--", "isolated"),
            pre_tokenizers.Split(Regex(r"[^\p{P}]+|\p{P}"), "removed", invert=True),
            pre_tokenizers.Digits(individual_digits=False),
            byte_level(True, prefix=True),
        ]
    )
    train(tok, lines, 200, [])
    return tok


def texts(lines):
    rng = random.Random(SEED)
    yield ""
    for _ in range(LINES):
        out = []
        for _ in range(rng.randint(1, 10)):
            if rng.random() < 0.3:
                line = rng.choice(lines)
                at = rng.randrange(len(line))
                out.append(line[at : at + rng.randint(1, 20)])
            else:
                out.append(rng.choice(PIECES))
        yield "".join(out)


def main():
    text = pathlib.Path(sys.argv[1]).read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line]
    for build in (triples, prefix, odd):
        folder = pathlib.Path(sys.argv[2]) / build.__name__
        folder.mkdir(parents=True, exist_ok=True)
        tok = build(lines)
        doc = json.loads(tok.to_str())
        if build is odd:
            doc["model"]["merges"] = [" ".join(pair) for pair in doc["model"]["merges"]]
        text = json.dumps(doc, ensure_ascii=False, separators=(",", ":"))
        (folder / "tokenizer.json").write_text(text, encoding="utf-8")
        tok = Tokenizer.from_str(text)
        rows = []
        for i, text in enumerate(texts(lines)):
            ids = tok.encode(text, add_special_tokens=i % 2 == 0).ids
            decoded = tok.decode(ids, skip_special_tokens=False)
            rows.append({"text": text, "ids": ids, "template": i % 2 == 0, "decoded": decoded})
        out = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (folder / "tokenizer.jsonl").write_text(out, encoding="utf-8")
        print(f"{folder}: {len(rows)} lines")


main()
