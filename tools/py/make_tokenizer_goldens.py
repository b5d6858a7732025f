#!/usr/bin/env python3
"""Small tokenizers with every feature that the model fixtures do not have, and their goldens.

usage: make_tokenizer_goldens.py tests/golden/corpus.txt tests/golden/tokenizers
    pip install tokenizers==0.23.3

triples: digits by up to three, words that skip merges, a beginning-of-text token (Llama 3's shape).
prefix: GPT-2's split alone, with a space put before every word that begins a text, and NFC.
odd: bytes that the vocabulary lacks, an unknown token, splits that drop and invert, literal splits.
Each has added tokens with all flags. Lines: {"text","ids","decoded"}, and "template": true where ids
include what the post-processor adds.

The spm_* tokenizers have SentencePiece's shape, trained on the corpus and fixlib/multilingual.txt and
written as Mixtral's tokenizer.json is: <unk> <s> </s>, 256 byte tokens, pieces in order of merging,
then single characters; merges are all pairs that make a piece, in the order of the pieces.
spm_legacy: Mixtral-8x7B's normalizer (Prepend, Replace) without a pre-tokenizer.
spm_metaspace: a Metaspace step, "first" and without a split; normalized added tokens, a template.
spm_holes: Metaspace "always" with a split; the vocabulary lacks bytes, so that unknown tokens come.
spm_patterns: spm_legacy with holes, unknown tokens not fused, added tokens looked for in marked text.
decode.jsonl: ids that no text has. The library replaces every byte of a run of byte tokens that is not
UTF-8 as a whole; runs in which whole characters stand beside broken ones are left out.

usage for more lines, elsewhere: make_tokenizer_goldens.py CORPUS FOLDER LINES SEED NAME...
"""

import collections
import json
import pathlib
import random
import re
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers, processors, trainers

SEED = 11
LINES = 160
SPM_LINES = 320
SPM_SIZE = 1000
SPM_ALPHABET = 180
SPM_HOLES = (0xC3, 0xE6, 0xF0)
MARK = "\u2581"
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


SPM_PIECES = (
    ["<s>", "</s>", "<unk>", "[INST]", "[/INST]", "[INST] ", " [/INST]", "<s>[INST] ", "[LEFT]"]
    + ["[RIGHT]", "whole", "wholesome", "word", "wording", "[BOTH]", "<0x41>", "<0xE4>", "<0x0a>"]
    + [" ", "  ", "   ", " " * 9, "\n", "\n\n", "\r\n", "\t", "\u00a0", "\u2003", "\u3000", "\u200d", "_"]
    + [MARK, MARK + MARK, " " + MARK, MARK + " ", "a" + MARK, MARK + "the", " the", "the", "'s", "n't"]
    + ["café", "cafe\u0301", "\u212b", "1", "23", "4567", "½", "汉字", "天气", "水", "ни́", "नदी", "한국"]
    + ["🇫🇷", "👩\u200d🚀", "😀", "\U0010ffff", "\x00", "\x7f", "\ufeff", "\ufffd", "\u0085", "\u2028"]
    + ["if (x == 0) {\n    return;\n}", "https://a.b/c?d=e&f", "\\", "{", "}", '"', "ﷺ", "ß", "ﬁ", "Ⅷ"]
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


def spm_added(normalized):
    flags = {"normalized": normalized}
    return [
        AddedToken("[INST]", special=True, normalized=False),
        AddedToken("[/INST]", special=True, normalized=False),
        AddedToken("[LEFT]", lstrip=True, **flags),
        AddedToken("[RIGHT]", rstrip=True, **flags),
        AddedToken("whole", single_word=True, **flags),
        AddedToken("two  words", **flags),
    ]


def spm_vocab(lines, holes):
    """Pieces and merges of a BPE trained on marked words, in the published order."""
    extra = pathlib.Path(__file__).with_name("fixlib") / "multilingual.txt"
    lines = lines + 2 * extra.read_text(encoding="utf-8").splitlines()
    counts = collections.Counter("".join(lines))
    kept = set(sorted(counts, key=lambda c: (-counts[c], c))[:SPM_ALPHABET])
    lines = ["".join(c for c in line if c in kept) for line in lines]
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.Metaspace(MARK, prepend_scheme="always")
    trainer = trainers.BpeTrainer(vocab_size=SPM_SIZE - 259, show_progress=False)
    tok.train_from_iterator(lines, trainer)
    by_id = sorted(tok.get_vocab().items(), key=lambda item: item[1])
    long = [piece for piece, _ in by_id if len(piece) > 1]
    pieces = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256) if b not in holes]
    pieces += long + sorted(piece for piece, _ in by_id if len(piece) == 1)
    vocab = {piece: i for i, piece in enumerate(pieces)}
    merges = []
    for piece in long:
        pairs = [(piece[:i], piece[i:]) for i in range(1, len(piece))]
        pairs = [pair for pair in pairs if pair[0] in vocab and pair[1] in vocab]
        merges += sorted(pairs, key=lambda pair: (vocab[pair[0]], vocab[pair[1]]))
    return vocab, merges


def spm(lines, holes=(), normalized=False, fuse=True):
    vocab, merges = spm_vocab(lines, holes)
    tok = Tokenizer(
        models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=fuse, byte_fallback=True)
    )
    for name in ("<unk>", "<s>", "</s>"):
        tok.add_special_tokens([AddedToken(name, normalized=False)])
    tok.add_tokens(spm_added(normalized))
    tok.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", vocab["<s>"])]
    )
    steps = [decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    tok.decoder = decoders.Sequence(steps + [decoders.Strip(" ", 1, 0)])
    return tok


def spm_legacy(lines):
    tok = spm(lines)
    tok.normalizer = normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)])
    return tok


def spm_metaspace(lines):
    tok = spm(lines, normalized=True)
    tok.pre_tokenizer = pre_tokenizers.Metaspace(MARK, prepend_scheme="first", split=False)
    return tok


def spm_holes(lines):
    tok = spm(lines, holes=SPM_HOLES)
    tok.pre_tokenizer = pre_tokenizers.Metaspace(MARK, prepend_scheme="always", split=True)
    return tok


def spm_patterns(lines):
    """Added tokens looked for in marked text, an unknown token for each character."""
    tok = spm(lines, holes=SPM_HOLES, normalized=True, fuse=False)
    tok.normalizer = normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)])
    tok.add_tokens(spm_added(True))
    return tok


def clean_runs(tokens):
    """False when a run of byte tokens holds whole characters beside broken ones."""
    run = b""
    for token in tokens + [""]:
        if re.fullmatch("<0x[0-9A-F]{2}>", token):
            run += bytes([int(token[3:5], 16)])
            continue
        whole = run.decode("utf-8", "ignore")
        if whole and whole.encode() != run:
            return False
        run = b""
    return True


def spm_decodes(tok):
    rng = random.Random(SEED)
    rows = []
    while len(rows) < LINES // 2:
        ids = []
        for _ in range(rng.randint(1, 8)):
            kind = rng.random()
            if kind < 0.4:
                ids.append(rng.randrange(tok.get_vocab_size()))
            elif kind < 0.7:
                ids += [rng.randrange(3, 240) for _ in range(rng.randint(1, 4))]
            else:
                char = rng.choice("水é😀 \n")
                ids += [tok.token_to_id(f"<0x{b:02X}>") or 0 for b in char.encode()]
        tokens = [tok.id_to_token(i) for i in ids]
        if clean_runs(tokens):
            decoded = tok.decode(ids, skip_special_tokens=False)
            rows.append(json.dumps({"ids": ids, "decoded": decoded}, ensure_ascii=False))
    return "\n".join(rows) + "\n"


def texts(lines, pieces, count, seed):
    rng = random.Random(seed)
    yield ""
    for _ in range(count):
        out = []
        for _ in range(rng.randint(1, 10)):
            if rng.random() < 0.3:
                line = rng.choice(lines)
                at = rng.randrange(len(line))
                out.append(line[at : at + rng.randint(1, 20)])
            else:
                out.append(rng.choice(pieces))
        yield "".join(out)


BUILDS = (triples, prefix, odd, spm_legacy, spm_metaspace, spm_holes, spm_patterns)


def as_written(doc):
    """The same tokenizer, whose added tokens decode to what the file says: from 0.23 on, the library
    decodes normalized ones to their normalized form, which 0.22 did not."""
    doc = json.loads(json.dumps(doc))
    for token in doc["added_tokens"]:
        token["normalized"] = False
    return Tokenizer.from_str(json.dumps(doc))


def main():
    text = pathlib.Path(sys.argv[1]).read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line]
    every = {build.__name__: build for build in BUILDS}
    more = int(sys.argv[3]) if len(sys.argv) > 3 else 0
    seed = int(sys.argv[4]) if more else SEED
    for build in [every[name] for name in sys.argv[5:]] or BUILDS:
        is_spm = build.__name__.startswith("spm")
        count = more or (SPM_LINES if is_spm else LINES)
        folder = pathlib.Path(sys.argv[2]) / build.__name__
        folder.mkdir(parents=True, exist_ok=True)
        tok = build(lines)
        doc = json.loads(tok.to_str())
        if build is odd:
            doc["model"]["merges"] = [" ".join(pair) for pair in doc["model"]["merges"]]
        text = json.dumps(doc, ensure_ascii=False, separators=(",", ":"))
        (folder / "tokenizer.json").write_text(text, encoding="utf-8")
        tok = Tokenizer.from_str(text)
        plain = as_written(doc)
        rows = []
        for i, text in enumerate(texts(lines, SPM_PIECES if is_spm else PIECES, count, seed)):
            ids = tok.encode(text, add_special_tokens=i % 2 == 0).ids
            decoded = plain.decode(ids, skip_special_tokens=False)
            rows.append({"text": text, "ids": ids, "template": i % 2 == 0, "decoded": decoded})
        out = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (folder / "tokenizer.jsonl").write_text(out, encoding="utf-8")
        if is_spm:
            (folder / "decode.jsonl").write_text(spm_decodes(plain), encoding="utf-8")
        print(f"{folder}: {len(rows)} lines")


main()
