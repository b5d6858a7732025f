"""Trains a fixture until it knows the corpus by heart, with a router that decides clearly.

Loss = next token + load balance + margin. Load balance is the Switch Transformers loss, a layer:
E * sum_e f_e * P_e, f_e the share of choices that fell on expert e, P_e its mean probability.
Margin pushes what ranks the k-th expert (a probability, or a biased score) above that of the k+1-th:
goldens must not hang on a near tie that rounding may flip.
"""

import math
import random
import time

import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils import parametrize

from . import models

WINDOW = 136
BATCH = 16
MARGIN = 0.03
BALANCE = 0.1
SHORT_PROMPT = (3, 17, 41)


def gap(rank, k):
    """k-th minus k+1-th of the last dimension."""
    top = rank.topk(k + 1, -1).values
    return top[..., k - 1] - top[..., k]


def margins(choices, config):
    """How clearly each position's experts, and their groups, were chosen: [layers, positions]."""
    rows = [gap(c.rank, models.top_k(config)) for c in choices]
    rows += [gap(c.groups, config.topk_group) for c in choices if c.groups is not None]
    return torch.stack(rows)


def balance(choices, k):
    """Mean over layers of E * sum_e f_e P_e (1 when even), and the smallest f_e * E seen."""
    total, low = 0.0, float("inf")
    for c in choices:
        count = c.rank.shape[-1]
        chosen = torch.zeros_like(c.rank).scatter_(-1, c.rank.topk(k, -1).indices, 1.0)
        share = chosen.mean(0) / k
        total = total + count * (share * c.share.mean(0)).sum()
        low = min(low, (share.min() * count).item())
    return total / len(choices), low


def chat(kind, verse):
    """(what a verse's chat asks, up to where the answer begins; the answer to its last token)."""
    words = verse.split(" ")
    half = max(1, len(words) // 2)
    ask, rest = " ".join(words[:half]), words[half:]
    if kind != "harmony":
        return f"<|im_start|>user\n{ask}<|im_end|>\n<|im_start|>assistant\n", f"{' '.join(rest)}<|im_end|>\n"
    return (
        f"<|start|>user<|message|>{ask}<|end|><|start|>assistant",
        f"<|channel|>analysis<|message|>{' '.join(rest[:3])}<|end|>"
        f"<|start|>assistant<|channel|>final<|message|>{' '.join(rest[3:9])}<|return|>",
    )


def documents(tok, verses, kind, eos):
    """Token streams: the verses in order; each verse as a chat that ends; the short prompt."""
    ids = [tok.encode(v + "\n").ids for v in verses]
    starts = [0]
    for x in ids:
        starts.append(starts[-1] + len(x))
    stream = [t for x in ids for t in x] + tok.encode("<|endoftext|>").ids
    chats = [tok.encode("".join(chat(kind, v))).ids for v in verses]
    assert all(eos in c for c in chats)
    return stream, starts[:-1], chats


def sample(rng, stream, starts, chats):
    kind = rng.random()
    if kind < 0.15:
        first = rng.randrange(len(chats))
        out = [t for c in (chats * 2)[first : first + 8] for t in c]
        return (out * 8)[:WINDOW]
    if kind < 0.20:
        return (list(SHORT_PROMPT) + stream)[:WINDOW]
    at = rng.choice(starts) if kind < 0.7 else rng.randrange(len(stream))
    return (stream[at : at + WINDOW] + stream)[:WINDOW]


def train(model, fixture, tok, verses, lr=4e-3):
    rng = random.Random(fixture.seed)
    config = fixture.config
    k = models.top_k(config)
    data = documents(tok, verses, fixture.kind, config.eos_token_id)
    decay = [p for p in model.parameters() if p.dim() > 1]
    rest = [p for p in model.parameters() if p.dim() <= 1]
    opt = torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.01}, {"params": rest, "weight_decay": 0.0}],
        lr=lr,
        betas=(0.9, 0.98),
    )
    began = time.monotonic()
    model.train()
    for step in range(fixture.steps):
        done = step / fixture.steps
        rate = lr * min(1.0, (step + 1) / 50) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * done)))
        for group in opt.param_groups:
            group["lr"] = rate
        batch = torch.tensor([sample(rng, *data) for _ in range(BATCH)])
        with parametrize.cached():
            logits, choices = models.forward(model, batch)
        ce = cross_entropy(logits[:, :-1].flatten(0, 1), batch[:, 1:].flatten())
        margin = margins(choices, config)
        hinge = torch.relu(1 - margin / MARGIN).mean()
        even, least = balance(choices, k)
        loss = ce + BALANCE * even + hinge * max(0.0, min(0.5, done - 0.4))
        opt.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        if step % 50 == 49:
            low = (margin < 2e-3).float().mean().item()
            print(
                f"{fixture.name}: step {step + 1} loss {ce.item():.3f} hinge "
                f"{hinge.item():.4f} near ties {low:.5f} even {even.item():.2f} "
                f"least used {least:.2f} {time.monotonic() - began:.0f} s",
                flush=True,
            )
    return model.eval()
