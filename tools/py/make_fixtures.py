#!/usr/bin/env python3
"""Makes tests/golden/NAME/: tiny trained MoE checkpoints and what transformers computes with them.

  python make_fixtures.py                       all fixtures: train, store, goldens
  python make_fixtures.py --only mixtral-tiny   one of them
  python make_fixtures.py --goldens-only        goldens again, from the stored weights
  python make_fixtures.py --cache-only          only cache.npy again, from the stored weights
  python make_fixtures.py --mtp-only            the blocks behind the last again, for the stored weights
  python make_fixtures.py --extract-corpus      tests/golden/corpus.txt from its Debian package

Needs the packages of requirements-oracle.txt. CPU, one thread; about four minutes a fixture.
"""

import argparse
import pathlib

import torch

from fixlib import corpus, golden, hard_text, models, mtp, tokenizer_build, train
from tokenizers import Tokenizer

ROOT = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden"


def make_model(fixture, verses, folder):
    tok = tokenizer_build.BUILDERS[fixture.kind](verses, fixture.tokens)
    if tok.get_vocab_size() != fixture.tokens:
        raise SystemExit(
            f"{fixture.name}: tokenizer has {tok.get_vocab_size()} entries, "
            f"{fixture.tokens} wanted"
        )
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer_build.write(tok, folder, fixture.kind, models.CONTEXT, fixture.chat)
    torch.manual_seed(fixture.seed)
    model = train.train(models.create(fixture), fixture, tok, verses)
    size = models.store(model, fixture, folder)
    if fixture.mtp:
        mtp.add(fixture, folder, tok, verses)
    print(f"{fixture.name}: {size} bytes of weights")


def main():
    known, variants = models.fixtures(), models.variants()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=sorted({**known, **variants}), action="append")
    parser.add_argument("--goldens-only", action="store_true")
    parser.add_argument("--cache-only", action="store_true")
    parser.add_argument("--mtp-only", action="store_true")
    parser.add_argument("--extract-corpus", action="store_true")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT, help="default: tests/golden")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.extract_corpus:
        corpus.extract(ROOT / "corpus.txt")
        return
    verses, digest = corpus.load(ROOT / "corpus.txt")
    for name in args.only or [*known, *variants]:
        folder = args.out / (variants[name].source if name in variants else name)
        if args.cache_only:
            if name in known:
                golden.stored_cache(folder)
            continue
        if name in variants:
            tok = Tokenizer.from_file(str(folder / "tokenizer.json"))
            golden.write_variant(variants[name], tok, verses, digest, args.out)
            continue
        fixture = known[name]
        if args.mtp_only:
            if fixture.mtp:
                mtp.add(fixture, folder, Tokenizer.from_file(str(folder / "tokenizer.json")), verses)
                mtp.golden(folder)
                golden.note_files(folder)
            continue
        if not args.goldens_only:
            make_model(fixture, verses, folder)
        tok = Tokenizer.from_file(str(folder / "tokenizer.json"))
        hard_text.write(tok, verses, folder)
        golden.write(fixture, tok, verses, digest, folder)
        if fixture.mtp:
            mtp.golden(folder)


if __name__ == "__main__":
    main()
