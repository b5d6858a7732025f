"""Byte-level BPE tokenizers in four published shapes, trained on the corpus.

cl100k: digits by up to three, the rest as qwen's split, written as a pattern of what is kept, as DBRX's
tokenizer.json. qwen: NFC, split by one regular expression, then ByteLevel without its own regex; special tokens
after the vocabulary, as in Qwen3's tokenizer.json. smollm: single digits, then ByteLevel with the
GPT-2 regex; special tokens first, as in SmolLM2's. harmony: no normalizer, split by the expression
of o200k (cased runs, up to three digits), then ByteLevel; special tokens last, as in gpt-oss's.
"""

import json
import pathlib

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers, processors, trainers

QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CL100K_SPLIT = QWEN_SPLIT.replace(r"\p{N}|", r"\p{N}{1,3}|")
QWEN_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
QWEN_ADDED = ("<think>", "</think>")  # added tokens that are not special, as Qwen3 has
O200K_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
O200K_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
O200K_TAIL = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
O200K_SPLIT = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{O200K_UPPER}*{O200K_LOWER}+{O200K_TAIL}"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{O200K_UPPER}+{O200K_LOWER}*{O200K_TAIL}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
HARMONY_SPECIAL = (
    "<|startoftext|>",
    "<|endoftext|>",
    "<|return|>",
    "<|constrain|>",
    "<|channel|>",
    "<|start|>",
    "<|end|>",
    "<|message|>",
    "<|call|>",
)
SMOLLM_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>", "<file_sep>")
MULTILINGUAL = pathlib.Path(__file__).with_name("multilingual.txt")
CHATML = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)

HARMONY = (
    "{%- for message in messages %}"
    "{{- '<|start|>' + message['role'] }}"
    "{%- if message['role'] == 'assistant' %}{{- '<|channel|>final' }}{%- endif %}"
    "{{- '<|message|>' + message['content'] + '<|end|>' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|start|>assistant' }}{%- endif %}"
)


def training_lines(verses):
    """The corpus once and the multilingual sample four times, so that its scripts get merges."""
    sample = MULTILINGUAL.read_text(encoding="utf-8").splitlines()
    return list(verses) + sample * 4


def train(tok, verses, size, special):
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=2,
        special_tokens=list(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tok.train_from_iterator(training_lines(verses), trainer)


def build_qwen(verses, size):
    tok = Tokenizer(models.BPE())
    tok.normalizer = normalizers.NFC()
    byte_level = {"add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    tok.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(**byte_level),
        ]
    )
    tok.decoder = decoders.ByteLevel(**byte_level)
    tok.post_processor = processors.ByteLevel(**byte_level)
    train(tok, verses, size - len(QWEN_SPECIAL) - len(QWEN_ADDED), ())
    tok.add_special_tokens([AddedToken(s, normalized=False, special=True) for s in QWEN_SPECIAL])
    tok.add_tokens([AddedToken(s, normalized=False, special=False) for s in QWEN_ADDED])
    return tok


def build_cl100k(verses, size):
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(CL100K_SPLIT), "removed", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=False),
        ]
    )
    tok.decoder = decoders.ByteLevel(add_prefix_space=True, trim_offsets=True, use_regex=True)
    train(tok, verses, size - len(QWEN_SPECIAL) - len(QWEN_ADDED), ())
    tok.add_special_tokens([AddedToken(s, normalized=False, special=True) for s in QWEN_SPECIAL])
    tok.add_tokens([AddedToken(s, normalized=False, special=False) for s in QWEN_ADDED])
    return tok


def build_harmony(verses, size):
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(O200K_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=False),
        ]
    )
    tok.decoder = decoders.ByteLevel(add_prefix_space=True, trim_offsets=True, use_regex=True)
    train(tok, verses, size - len(HARMONY_SPECIAL), ())
    tok.add_special_tokens([AddedToken(s, normalized=False, special=True) for s in HARMONY_SPECIAL])
    return tok


def build_smollm(verses, size):
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=True),
        ]
    )
    tok.decoder = decoders.ByteLevel(add_prefix_space=True, trim_offsets=True, use_regex=True)
    train(tok, verses, size, SMOLLM_SPECIAL)
    return tok


BUILDERS = {
    "qwen": build_qwen,
    "cl100k": build_cl100k,
    "smollm": build_smollm,
    "harmony": build_harmony,
}


def write(tok, folder, kind, context, chat):
    """Writes tokenizer.json, tokenizer_config.json and special_tokens_map.json.

    Merges are written as "a b" strings for qwen (as Qwen3 publishes them) and as pairs for smollm
    (as tokenizers >= 0.20 writes them), so that both spellings are read.
    """
    doc = json.loads(tok.to_str())
    if kind == "qwen":
        doc["model"]["merges"] = [" ".join(pair) for pair in doc["model"]["merges"]]
        doc["model"]["continuing_subword_prefix"] = ""
        doc["model"]["end_of_word_suffix"] = ""
    dump(folder / "tokenizer.json", doc)
    if kind == "harmony":
        write_harmony(doc, folder, context)
        return
    added = {str(t["id"]): {k: t[k] for k in t if k != "id"} for t in doc["added_tokens"]}
    names = SMOLLM_SPECIAL if kind == "smollm" else QWEN_SPECIAL
    config = {
        "add_prefix_space": False,
        "added_tokens_decoder": added,
        "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
        "bos_token": "<|im_start|>" if kind == "smollm" else None,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "model_max_length": context,
        "pad_token": "<|endoftext|>",
        "tokenizer_class": "Qwen2Tokenizer" if kind == "qwen" else "GPT2Tokenizer",
        "unk_token": "<|endoftext|>" if kind == "smollm" else None,
    }
    if chat:
        config["chat_template"] = CHATML
    dump(folder / "tokenizer_config.json", config)
    assert names[2] == "<|im_end|>"
    special = {
        "additional_special_tokens": list(names[1:3]),
        "eos_token": names[2],
        "pad_token": names[0],
    }
    dump(folder / "special_tokens_map.json", special)


def write_harmony(doc, folder, context):
    names = {"bos_token": "<|startoftext|>", "eos_token": "<|return|>", "pad_token": "<|endoftext|>"}
    config = {
        "added_tokens_decoder": {
            str(t["id"]): {k: t[k] for k in t if k != "id"} for t in doc["added_tokens"]
        },
        "chat_template": HARMONY,
        "clean_up_tokenization_spaces": False,
        "model_max_length": context,
        "tokenizer_class": "PreTrainedTokenizerFast",
        **names,
    }
    dump(folder / "tokenizer_config.json", config)
    dump(folder / "special_tokens_map.json", names)


def dump(path, doc):
    path.write_text(json.dumps(doc, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
