"""Weights of four bits as gpt-oss stores them: OCP Microscaling Formats 1.0, MXFP4.

32 values along the input share a scale, a power of two in a byte of bias 127; a value is one of 16
(e2m1), two a byte, the even one in the low half.
"""

import torch
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

NAMES = ("gate_up_proj", "down_proj")
CONFIG = {
    "modules_to_not_convert": [
        "model.layers.*.self_attn",
        "model.layers.*.mlp.router",
        "model.embed_tokens",
        "lm_head",
    ],
    "quant_method": "mxfp4",
}
MAGNITUDES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def parts(weight):
    """(codes [E, out, in/32, 32], exponents [E, out, in/32]) of weight [E, in, out]."""
    blocks = weight.transpose(1, 2).unflatten(-1, (-1, 32))
    top = blocks.abs().amax(-1).clamp_min(2.0**-100)
    exponent = torch.floor(torch.log2(top)) - 2
    scaled = (blocks / torch.exp2(exponent)[..., None]).clamp(-6, 6)
    code = (scaled.abs()[..., None] - MAGNITUDES).abs().argmin(-1)
    return code + 8 * (scaled < 0), exponent


def pack(weight):
    """(blocks u8 [E, out, in/32, 16], scales u8 [E, out, in/32]) of weight [E, in, out]."""
    code, exponent = parts(weight)
    low, high = code[..., ::2], code[..., 1::2]
    return (low | high << 4).to(torch.uint8), (exponent + 127).to(torch.uint8)


class Rounded(torch.nn.Module):
    """What the stored form keeps of a weight; gradients pass as if it kept all."""

    def forward(self, weight):
        with torch.no_grad():
            code, exponent = parts(weight)
            value = MAGNITUDES[code % 8] * (1 - 2 * (code // 8)) * torch.exp2(exponent)[..., None]
            rounded = value.flatten(2).transpose(1, 2)
        return weight + (rounded - weight).detach()


def widen(tensors):
    """A stored state dict as f32, experts as transformers decodes them."""
    out = {}
    for name, value in tensors.items():
        if name.endswith("_blocks"):
            scales = tensors[name.replace("_blocks", "_scales")]
            out[name.removesuffix("_blocks")] = convert_moe_packed_tensors(
                value, scales, dtype=torch.float32
            )
        elif not name.endswith("_scales"):
            out[name] = value.float()
    return out
