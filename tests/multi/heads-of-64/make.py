"""Writes model.safetensors beside config.json: seeded random weights in BF16, for tests that compare bits (../test_law.c)."""
import json
import pathlib

import numpy

HERE = pathlib.Path(__file__).resolve().parent
c = json.loads((HERE / "config.json").read_text())
d, f, dim = c["hidden_size"], c["moe_intermediate_size"], c["head_dim"]
q, kv = c["num_attention_heads"] * dim, c["num_key_value_heads"] * dim
shapes = {"model.embed_tokens.weight": (c["vocab_size"], d), "model.norm.weight": (d,)}
for i in range(c["num_hidden_layers"]):
    at = f"model.layers.{i}."
    shapes |= {at + "input_layernorm.weight": (d,), at + "post_attention_layernorm.weight": (d,), at + "self_attn.q_norm.weight": (dim,), at + "self_attn.k_norm.weight": (dim,),
               at + "self_attn.q_proj.weight": (q, d), at + "self_attn.k_proj.weight": (kv, d), at + "self_attn.v_proj.weight": (kv, d), at + "self_attn.o_proj.weight": (d, q),
               at + "mlp.gate.weight": (c["num_experts"], d)}
    for e in range(c["num_experts"]):
        shapes |= {f"{at}mlp.experts.{e}.gate_proj.weight": (f, d), f"{at}mlp.experts.{e}.up_proj.weight": (f, d), f"{at}mlp.experts.{e}.down_proj.weight": (d, f)}
rng, head, data = numpy.random.default_rng(64), {}, b""
for name, shape in shapes.items():
    x = rng.standard_normal(shape, dtype=numpy.float32) * (1.5 / shape[-1] ** 0.5) if len(shape) > 1 else rng.uniform(0.5, 1.5, shape).astype(numpy.float32)
    part = (x.view(numpy.uint32) >> 16).astype("<u2").tobytes()
    head[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [len(data), len(data) + len(part)]}
    data += part
text = json.dumps(head).encode()
text += b" " * (-len(text) % 8)
(HERE / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
