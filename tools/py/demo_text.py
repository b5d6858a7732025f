"""The demo model's small files: tokenizer and generation settings from the GGUF's metadata.

Each function takes the metadata dict of gguf_read.GgufFile and returns what belongs in the JSON
file of its name. The GGUF names the splitter only ("smollm"): single digits first, then the
byte-level split of GPT-2, without a prefix space.
"""
from gguf_read import GgufError

TYPE_NORMAL, TYPE_CONTROL = 1, 3

LICENSE_NOTE = """\
This checkpoint is a derived work of SmolLM2-135M-Instruct.

Source:   SmolLM2-135M-Instruct by Hugging Face (HuggingFaceTB), Apache License 2.0,
          as the Q4_1 GGUF file carried by the Python package %s %s.
          SHA-256 of that file: %s
Changes:  dequantised; q and k rows put back into the Hugging Face rotary order; every
          feed-forward block copied into 8 experts, each multiplied by seeded noise; an untrained
          seeded router added (top 2 of 8); stored as bfloat16 under Mixtral's tensor names.
Licence:  Apache License 2.0, see the file LICENSE.

The model is a demonstration of serving, not an improvement of the original.
"""


def _special(meta):
    """Ids and texts of the control tokens, in id order."""
    tokens = meta["tokenizer.ggml.tokens"]
    types = meta["tokenizer.ggml.token_type"]
    if len(types) != len(tokens):
        raise GgufError("tokenizer.ggml.token_type has %d items, the tokens are %d"
                        % (len(types), len(tokens)))
    for i, kind in enumerate(types):
        if kind not in (TYPE_NORMAL, TYPE_CONTROL):
            raise GgufError("tokenizer.ggml.token_type[%d] is %d, known are %d and %d"
                            % (i, kind, TYPE_NORMAL, TYPE_CONTROL))
    return [(i, tokens[i]) for i, kind in enumerate(types) if kind == TYPE_CONTROL]


def _added(text):
    return {"content": text, "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": False, "special": True}


def tokenizer_json(meta):
    for key, want in (("model", "gpt2"), ("pre", "smollm")):
        have = meta.get("tokenizer.ggml." + key)
        if have != want:
            raise GgufError("tokenizer.ggml.%s is %r, expected %r" % (key, have, want))
    tokens = meta["tokenizer.ggml.tokens"]
    vocab = {text: i for i, text in enumerate(tokens)}
    if len(vocab) != len(tokens):
        raise GgufError("tokenizer.ggml.tokens: %d texts for %d ids" % (len(vocab), len(tokens)))
    byte_level = {"type": "ByteLevel", "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, **_added(text)} for i, text in _special(meta)],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Digits", "individual_digits": True},
            {**byte_level, "add_prefix_space": False}]},
        "post_processor": None,
        "decoder": {**byte_level, "add_prefix_space": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None,
                  "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": vocab, "merges": meta["tokenizer.ggml.merges"]},
    }


def tokenizer_config(meta):
    tokens = meta["tokenizer.ggml.tokens"]
    bos, eos, unk, pad = (tokens[meta["tokenizer.ggml.%s_token_id" % k]]
                          for k in ("bos", "eos", "unknown", "padding"))
    return {
        "add_prefix_space": False,
        "added_tokens_decoder": {str(i): _added(text) for i, text in _special(meta)},
        "additional_special_tokens": [bos, eos],
        "bos_token": bos,
        "chat_template": meta["tokenizer.chat_template"],
        "clean_up_tokenization_spaces": False,
        "eos_token": eos,
        "model_max_length": meta["llama.context_length"],
        "pad_token": pad,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": unk,
    }


def generation_config(meta):
    return {"bos_token_id": meta["tokenizer.ggml.bos_token_id"],
            "eos_token_id": meta["tokenizer.ggml.eos_token_id"],
            "pad_token_id": meta["tokenizer.ggml.padding_token_id"],
            "do_sample": False}
