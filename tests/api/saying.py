"""A model whose weights say given texts: for what the server makes of an answer, with a family's own chat template.

Tokens are one-hot in the residual stream. One attention head looks at the token before, further ones look for a word anywhere in
the prompt; experts add nothing. So the next token depends on the last two and on which words were said, and an answer is a chain
of tokens: texts are cut into pieces that occur once, each a token. It says the first
text, or the last one whose word is in the prompt."""
import itertools
import json
import pathlib
import struct

import numpy as np

HEAD = 32  # dimensions of a head, and of the code of the token before
THETA = 1e6  # the slowest dimension hardly turns in a whole context
SHARP = 20  # of logits, so that sampling at a temperature of 1 says the same
WEIGHT = {"pair": 0.5, "word": 0.2, "later": 0.05, "start": 0.9}


def write_safetensors(path, tensors):
    header, at = {}, 0
    for name, t in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(t.shape), "data_offsets": [at, at + t.nbytes]}
        at += t.nbytes
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    with path.open("wb") as f:
        f.write(struct.pack("<Q", len(head)) + head)
        for t in tensors.values():
            f.write(np.ascontiguousarray(t, dtype=np.float32).tobytes())


def byte_letters():
    """The printable character that stands for each byte in byte-level vocabularies."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(b) if b in plain else chr(next(others)) for b in range(256)]


class Vocabulary:
    def __init__(self, special, words):
        self.ids = {}  # added tokens: text to id
        self.special = set(special)
        for text in [*special, *words]:
            self.add(text)

    def add(self, text):
        return self.ids.setdefault(text, 256 + len(self.ids))

    def encode(self, text):
        """Added tokens, leftmost and longest, the rest as bytes."""
        ids, longest = [], sorted(self.ids, key=len, reverse=True)
        while text:
            found = next((t for t in longest if text.startswith(t)), None)
            ids += [self.ids[found]] if found else list(text[0].encode())
            text = text[len(found or text[0]):]
        return ids

    def cut(self, text, rng):
        """Ids that say `text`: special tokens, and new pieces for what is between them."""
        ids = []
        while text:
            found = next((s for s in self.special if text.startswith(s)), None)
            if found:
                ids.append(self.ids[found])
                text = text[len(found):]
                continue
            end = min([text.find(s) for s in self.special if s in text] or [len(text)])
            part, text = text[:end], text[end:]
            while part:
                lengths = [n for n in rng.permutation(np.arange(2, 9)) if n <= len(part) and part[:n] not in self.ids]
                n = int(lengths[0]) if lengths else 1
                ids += [self.add(part[:n])] if lengths else list(part[0].encode())
                part = part[n:]
        return ids


def make(folder, template, tails, texts, special=()):
    """As below, with the first cuts of the texts in which two tokens always tell what comes."""
    for seed in range(100):
        if make_cut(folder, template, tails, texts, special, seed):
            return
    raise AssertionError("no cut was found in which two tokens tell what comes")


def make_cut(folder, template, tails, texts, special, seed):
    """Writes a checkpoint into `folder`. template: the text of a chat template; tails: what its prompts may end with; texts: the
    text that is said without any word, and after it pairs of a word and a text; special: tokens that are special."""
    rng = np.random.default_rng(seed)
    words = [word for word, _ in texts[1:]]
    v = Vocabulary([*special, "<|the_end|>"], words)
    chains = [v.cut(text, rng) + [v.ids["<|the_end|>"]] for text in [texts[0], *(text for _, text in texts[1:])]]
    n = 256 + len(v.ids)
    vocab = -(-n // 32) * 32
    hidden = -(-(vocab + HEAD + len(words)) // 64) * 64
    code = rng.standard_normal((vocab, HEAD)).astype(np.float32)
    code /= np.linalg.norm(code, axis=1, keepdims=True)

    head = np.zeros((vocab, hidden), np.float32)
    starts = [tuple(v.encode("\n" + tail)[-2:]) for tail in tails]
    steps = set()  # the token before, the last one, the next one, the text, whether it begins
    for k, chain in enumerate(chains):
        steps |= {(before, last, chain[0], k, True) for before, last in starts}
        steps |= {(last, chain[0], chain[1], k, False) for _, last in starts}
        steps |= {(*three, k, False) for three in zip(chain, chain[1:], chain[2:])}
    for before, last, then, k, begins in sorted(steps):
        head[then, last] = max(head[then, last], WEIGHT["start"] if begins and k else 1)
        head[then, vocab:vocab + HEAD] += WEIGHT["pair"] * code[before]
        if k:
            head[then, vocab + HEAD + k - 1] = WEIGHT["word"] + WEIGHT["later"] * k

    if not says(head, code, chains, starts, vocab):
        return False
    write_model(pathlib.Path(folder), v, n, vocab, hidden, head, code, words)
    pathlib.Path(folder, "chat_template.jinja").write_text(template)
    return True


def says(head, code, chains, starts, vocab):
    """Whether every chain is what the largest products say."""
    for start, (k, chain) in itertools.product(starts, enumerate(chains)):
        before, last = start
        for then in chain:
            x = np.zeros(head.shape[1], np.float32)
            x[last] = 1
            x[vocab:vocab + HEAD] = code[before]
            if k:
                x[vocab + HEAD + k - 1] = 1
            if int(np.argmax(head @ x)) != then:
                return False
            before, last = last, then
    return True


def write_model(folder, v, n, vocab, hidden, head, code, words):
    heads = 1 + len(words)
    scale = np.sqrt(np.float32(hidden))  # of a token behind its norm
    sharp = lambda score: np.sqrt(score * np.sqrt(HEAD)) / scale
    angle = THETA ** -(np.arange(HEAD // 2) / (HEAD // 2))
    q, k, val = (np.zeros((heads * HEAD, hidden), np.float32) for _ in range(3))
    o = np.zeros((hidden, heads * HEAD), np.float32)
    # the token before: a key of angle 0 is seen best from one step on
    q[:HEAD // 2, :vocab] = sharp(50) * np.cos(angle)[:, None]
    q[HEAD // 2:HEAD, :vocab] = -sharp(50) * np.sin(angle)[:, None]
    k[:HEAD // 2, :vocab] = sharp(50)
    val[:HEAD, :vocab] = code.T / scale
    o[vocab:vocab + HEAD, :HEAD] = np.eye(HEAD)
    slow = HEAD // 2 - 1  # hardly turns
    for i, word in enumerate(words, 1):
        q[i * HEAD + slow, :vocab] = sharp(30)
        k[i * HEAD + slow, v.ids[word]] = sharp(30)
        val[i * HEAD, v.ids[word]] = 1 / scale
        o[vocab + HEAD + i - 1, i * HEAD] = 1
    zeros = lambda *shape: np.zeros(shape, np.float32)
    layer = "model.layers.0."
    tensors = {"model.embed_tokens.weight": np.eye(vocab, hidden, dtype=np.float32), "lm_head.weight": head,
               "model.norm.weight": np.full(hidden, SHARP, np.float32),
               layer + "input_layernorm.weight": np.ones(hidden, np.float32),
               layer + "post_attention_layernorm.weight": np.ones(hidden, np.float32),
               layer + "self_attn.q_proj.weight": q, layer + "self_attn.k_proj.weight": k,
               layer + "self_attn.v_proj.weight": val, layer + "self_attn.o_proj.weight": o,
               layer + "block_sparse_moe.gate.weight": zeros(2, hidden)}
    for e in range(2):
        for name, shape in (("w1", (32, hidden)), ("w2", (hidden, 32)), ("w3", (32, hidden))):
            tensors[f"{layer}block_sparse_moe.experts.{e}.{name}.weight"] = zeros(*shape)
    write_safetensors(folder / "model.safetensors", tensors)
    end = v.ids["<|the_end|>"]
    config = {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "hidden_size": hidden, "num_hidden_layers": 1,
              "num_attention_heads": heads, "num_key_value_heads": heads, "head_dim": HEAD, "intermediate_size": 32,
              "num_local_experts": 2, "num_experts_per_tok": 2, "vocab_size": vocab, "max_position_embeddings": 65536,
              "rms_norm_eps": 1e-6, "rope_theta": THETA, "hidden_act": "silu", "tie_word_embeddings": False,
              "bos_token_id": end, "eos_token_id": end, "torch_dtype": "float32", "sliding_window": None}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": end, "do_sample": False}))
    added = [{"id": i, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
              "special": text in v.special} for text, i in v.ids.items()]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    tokenizer = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
                 "pre_tokenizer": level, "post_processor": None, "decoder": level,
                 "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "",
                           "end_of_word_suffix": "", "fuse_unk": False, "byte_fallback": False,
                           "vocab": {c: b for b, c in enumerate(byte_letters())}, "merges": []}}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<|the_end|>", "eos_token": "<|the_end|>"}))
