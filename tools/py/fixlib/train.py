"""Trains a fixture until it knows the corpus by heart, with a router that decides clearly.

Loss = next token + load balance + margin. Load balance is the Switch Transformers loss, a layer:
E * sum_e f_e * P_e, f_e the share of choices that fell on expert e, P_e its mean probability.
Margin pushes the k-th router probability above the k+1-th: goldens must not hang on a near tie that
rounding may flip.
"""

import math
import random
import time

import torch
from torch.nn.functional import cross_entropy

WINDOW = 136
BATCH = 16
MARGIN = 0.03
BALANCE = 0.1
SHORT_PROMPT = (3, 17, 41)


def margins(router_logits, k):
    """k-th minus k+1-th router probability of each position: [layers, positions]."""
    probs = torch.stack([torch.softmax(x, -1) for x in router_logits])
    top = probs.topk(k + 1, -1).values
    return top[..., k - 1] - top[..., k]


def balance(router_logits, k):
    """Mean over layers of E * sum_e f_e P_e (1 when even), and the smallest f_e * E seen."""
    total, low = 0.0, float("inf")
    for logits in router_logits:
        probs = torch.softmax(logits, -1)
        count = probs.shape[-1]
        chosen = torch.zeros_like(probs).scatter_(-1, probs.topk(k, -1).indices, 1.0)
        share = chosen.mean(0) / k
        total = total + count * (share * probs.mean(0)).sum()
        low = min(low, (share.min() * count).item())
    return total / len(router_logits), low


def documents(tok, verses, eos):
    """Token streams: the verses in order; each verse as a chat that ends; the short prompt."""
    ids = [tok.encode(v + "\n").ids for v in verses]
    starts = [0]
    for x in ids:
        starts.append(starts[-1] + len(x))
    stream = [t for x in ids for t in x] + tok.encode("<|endoftext|>").ids
    chats = []
    for v in verses:
        words = v.split(" ")
        half = max(1, len(words) // 2)
        chats.append(
            tok.encode(
                f"<|im_start|>user\n{' '.join(words[:half])}<|im_end|>\n"
                f"<|im_start|>assistant\n{' '.join(words[half:])}<|im_end|>\n"
            ).ids
        )
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
    k = config.num_experts_per_tok
    data = documents(tok, verses, config.eos_token_id)
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
        out = model(input_ids=batch, output_router_logits=True, use_cache=False)
        ce = cross_entropy(out.logits[:, :-1].flatten(0, 1), batch[:, 1:].flatten())
        margin = margins(out.router_logits, k)
        hinge = torch.relu(1 - margin / MARGIN).mean()
        even, least = balance(out.router_logits, k)
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
