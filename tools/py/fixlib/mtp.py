"""The block behind the last, which predicts a further token, of the fixtures that store one: trained, and its golden.

Written from DeepSeek-V3 (arXiv:2412.19437, 2.2) with transformers' own decoder layer for the block; transformers itself
does not read such blocks. Of position i, whose state behind the final norm is h_i, with the token behind it:

  x_i = W_in [norm_e(embedding of token i+1); norm_h(h_i)]    y_i = Block(x)_i    logits of token i+2 = head(norm_s(y_i))

To guess a token further, y_i is taken for h_(i+1); by Qwen3-Next norm_s(y_i), as vLLM's model of that block has it.

Trained to say what the model says, on the corpus and on the model's own greedy answers; the model itself stays as it is.
"""

import dataclasses
import json
import random
import time

import numpy
import safetensors.torch
import torch
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3DecoderLayer, DeepseekV3RMSNorm
from transformers.models.glm4_moe.modeling_glm4_moe import Glm4MoeDecoderLayer, Glm4MoeRMSNorm
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextDecoderLayer, Qwen3NextRMSNorm

from . import models, train

STEPS = 400
BATCH = 16
OWN = 48  # answers of the model among what is trained on...
OWN_TOKENS = 200  # ...of so many tokens
CASE = "line"  # of the golden: logits of every STEP-th position of prompt and answer
STEP = 5
FURTHER = 4  # tokens that the block guesses from its own results
MARGIN = 1e-3  # of its router, at the positions of the golden


@dataclasses.dataclass
class Family:
    """What the block is made of, and what published files call its parts: {N} is the number of the model's layers."""

    layer: type
    norm: type
    number: object  # of the layer that it is made as, of the model's layers
    names: dict
    choice: object  # what its router does
    normed: bool  # what it goes on from is behind its last norm


DEEPSEEK = {
    "layer.": "model.layers.{N}.",
    "token_norm.": "model.layers.{N}.enorm.",
    "state_norm.": "model.layers.{N}.hnorm.",
    "entry.": "model.layers.{N}.eh_proj.",
    "end_norm.": "model.layers.{N}.shared_head.norm.",
}
QWEN = {
    "layer.": "mtp.layers.0.",
    "token_norm.": "mtp.pre_fc_norm_embedding.",
    "state_norm.": "mtp.pre_fc_norm_hidden.",
    "entry.": "mtp.fc.",
    "end_norm.": "mtp.norm.",
}


def behind(layers):
    return layers


def last(layers):
    """Which has full attention and experts."""
    return layers - 1


FAMILIES = {
    "deepseek_v3": Family(DeepseekV3DecoderLayer, DeepseekV3RMSNorm, behind, DEEPSEEK, models.grouped_choice, False),
    "glm4_moe": Family(Glm4MoeDecoderLayer, Glm4MoeRMSNorm, behind, DEEPSEEK, models.grouped_choice, False),
    "qwen3_next": Family(Qwen3NextDecoderLayer, Qwen3NextRMSNorm, last, QWEN, models.plain_choice, True),
}


class Block(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        self.family = FAMILIES[config.model_type]
        self.layers = config.num_hidden_layers
        width, eps = config.hidden_size, config.rms_norm_eps
        self.layer = self.family.layer(config, self.family.number(self.layers))
        self.token_norm, self.state_norm, self.end_norm = (self.family.norm(width, eps) for _ in range(3))
        self.entry = torch.nn.Linear(2 * width, width, bias=False)

    def published(self, name):
        """The name in a file of a parameter or buffer."""
        own = next(x for x in self.family.names if name.startswith(x))
        return self.family.names[own].format(N=self.layers) + name.removeprefix(own)

    def enter(self, embedded, state):
        return self.entry(torch.cat([self.token_norm(embedded), self.state_norm(state)], -1))

    def run(self, model, x):
        """y of x [batch, positions, width], positions from 0 on."""
        n = x.shape[1]
        at = torch.arange(n)[None]
        mask = torch.full((n, n), torch.finfo(x.dtype).min).triu(1)[None, None]
        turn = model.model.rotary_emb(x, at)
        y = self.layer(x, attention_mask=mask, position_ids=at, position_embeddings=turn, use_cache=False)
        return y[0] if isinstance(y, tuple) else y

    def say(self, model, y):
        return model.lm_head(self.end_norm(y))

    def onward(self, y):
        """What takes the place of the model's state, a token further."""
        return self.end_norm(y) if self.family.normed else y


def create(model, seed):
    torch.manual_seed(seed)
    model.config._attn_implementation = "eager"
    block = Block(model.config)
    for name, value in block.named_parameters():
        if value.dim() > 1:
            torch.nn.init.normal_(value, std=0.1 if "entry" in name else 0.05)
        elif name.endswith("_proj.bias"):
            torch.nn.init.normal_(value, std=0.3)
    for name, value in block.named_buffers():
        if name.endswith("e_score_correction_bias"):
            torch.nn.init.normal_(value, std=0.1)
    return block


@torch.no_grad()
def own_answers(model, rng, stream, starts):
    """Greedy answers to beginnings of verses and to tokens at random, and to circles."""
    out = []
    for i in range(0, OWN, 16):
        prompts = []
        for j in range(i, i + 16):
            at = rng.choice(starts)
            prompt = stream[at : at + 8]
            if j % 3 == 1:
                prompt = [3, 17, rng.randrange(30, 60)] + stream[at : at + 5]
            if j % 3 == 2:
                prompt = [rng.randrange(1000) for _ in range(4)] * 2
            prompts.append((prompt + stream)[:8])
        ids = torch.tensor(prompts)
        mask = torch.ones_like(ids)
        got = model.generate(ids, attention_mask=mask, max_new_tokens=OWN_TOKENS, do_sample=False, eos_token_id=None,
                             pad_token_id=0, use_cache=True)  # fmt: skip
        out += got.tolist()
    return out


def fit(model, block, name, tok, verses, seed, steps=STEPS, lr=4e-3):
    kind = "qwen"
    rng = random.Random(seed)
    stream, starts, chats = train.documents(tok, verses, kind, model.config.eos_token_id)
    own = own_answers(model, rng, stream, starts)
    for p in model.parameters():
        p.requires_grad_(False)
    opt = torch.optim.AdamW(block.parameters(), lr=lr, betas=(0.9, 0.98), weight_decay=0.01)
    began = time.monotonic()
    for step in range(steps):
        for group in opt.param_groups:
            group["lr"] = lr * min(1, (step + 1) / 30) * max(0.02, 1 - step / steps)
        batch = []
        for i in range(BATCH):
            if i % 2:
                ids = rng.choice(own)
                at = rng.randrange(len(ids) - train.WINDOW + 1)
                batch.append(ids[at : at + train.WINDOW])
            else:
                batch.append(train.sample(rng, stream, starts, chats))
        ids = torch.tensor(batch)
        with torch.no_grad():
            state = model.model(input_ids=ids, use_cache=False).last_hidden_state
            said = torch.log_softmax(model.lm_head(state), -1)
            embedded = model.model.embed_tokens(ids)
        # once from the model's states, once more from the block's own results
        y = block.run(model, block.enter(embedded[:, 1:], state[:, :-1]))
        got = torch.log_softmax(block.say(model, y), -1)
        again = block.run(model, block.enter(embedded[:, 2:], block.onward(y[:, :-1])))
        got2 = torch.log_softmax(block.say(model, again), -1)
        want = said[:, 1:]
        loss = (want.exp() * (want - got)).sum(-1).mean()
        loss2 = (want[:, 1:].exp() * (want[:, 1:] - got2)).sum(-1).mean()
        opt.zero_grad(set_to_none=True)
        (loss + 0.5 * loss2).backward()
        torch.nn.utils.clip_grad_norm_(block.parameters(), 1.0)
        opt.step()
        if step % 50 == 49:
            right = [(a.argmax(-1) == b.argmax(-1)).float().mean().item() for a, b in ((got, want), (got2, want[:, 1:]))]
            print(f"{name}: further block: step {step + 1} loss {loss.item():.3f} right {right[0]:.2f}, "
                  f"again {right[1]:.2f} {time.monotonic() - began:.0f} s", flush=True)  # fmt: skip
    return block.eval()


def stored_names(block):
    """{published name: tensor}; experts and biases of the router included."""
    return {block.published(name): value for name, value in block.state_dict().items()}


def add(fixture, folder, tok, verses, steps=STEPS):
    """Trains the block of the stored model and puts it in the file, in the place of what stood there."""
    model = models.load(folder)
    block = fit(model, create(model, fixture.seed), fixture.name, tok, verses, fixture.seed, steps)
    path = folder / "model.safetensors"
    new = stored_names(block)
    tensors = {n: t for n, t in safetensors.torch.load_file(path).items() if n.removesuffix("_scale_inv") not in new}
    for name, value in new.items():
        new[name] = value if name.endswith("e_score_correction_bias") else value.to(fixture.stored)
    if fixture.fp8:
        models.to_fp8(new)
    safetensors.torch.save_file(tensors | new, path, metadata={"format": "pt"})


def load(model, folder):
    """The stored block, widened to f32."""
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    block, wide = Block(model.config), {}
    for name in block.state_dict():
        stored = block.published(name)
        wide[name] = tensors[stored].to(torch.float32)
        if tensors[stored].dtype == torch.float8_e4m3fn:
            wide[name] *= models.blocks_of(tensors[stored + "_scale_inv"], wide[name].shape)
    block.load_state_dict(wide, strict=True)
    return block.eval()


@torch.no_grad()
def golden(folder):
    """mtp.npy: logits of every STEP-th position of a case; mtp.json: which, and what the block guesses further on."""
    model = models.load(folder)
    model.config._attn_implementation = "eager"
    block = load(model, folder)
    doc = json.loads((folder / "golden.json").read_text())
    case = next(c for c in doc["cases"] if c["name"] == CASE)
    ids = case["prompt_ids"] + case["greedy_ids"]
    state = model.model(input_ids=torch.tensor([ids]), use_cache=False).last_hidden_state
    embed = model.model.embed_tokens
    x = block.enter(embed(torch.tensor([ids[1:]])), state[:, :-1])
    seen = []
    hook = block.layer.mlp.gate.register_forward_pre_hook(lambda m, a: seen.append(a[0]))
    logits = block.say(model, block.run(model, x))[0]
    hook.remove()
    margin = train.margins([block.family.choice(block.layer.mlp.gate, seen[0])], model.config).min(0).values
    at = [i for i in range(0, len(ids) - 1, STEP) if margin[i] > MARGIN]
    numpy.save(folder / "mtp.npy", logits[at].numpy())
    prompt = len(case["prompt_ids"])
    ways = []
    for n in range(prompt, len(ids) - 1, 8):  # n tokens are in the cache, one more is known
        inputs, new = x[:, :n], []
        for _ in range(FURTHER):
            y = block.run(model, inputs)[:, -1:]
            new.append(int(block.say(model, y)[0, 0].argmax()))
            entered = block.enter(embed(torch.tensor([[new[-1]]])), block.onward(y))
            inputs = torch.cat([inputs, entered], 1)
        ways.append({"rows": n, "ids": new})
    said = logits.argmax(-1).tolist()
    right = sum(said[i] == ids[i + 2] for i in range(prompt, len(ids) - 2))
    out = {"case": CASE, "positions": at, "further": ways, "right": right, "of": len(ids) - 2 - prompt}
    (folder / "mtp.json").write_text(json.dumps(out) + "\n")
    print(f"{folder.name}: {right} of {out['of']} tokens of the answer predicted, {len(at)} positions kept", flush=True)
