/* sluice inspect: what a checkpoint holds and what workers need of it. */
#include "cmd.h"
#include "job.h"

#include "format/arch.h"
#include "format/plan_json.h"
#include "format/shape_config.h"
#include "model/model.h"
#include "quant/act.h"
#include "spec/kv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char *dtype_name(sl_dtype t) {
    static const char *const names[SL_DTYPE_COUNT] = {"f32",   "f16",  "bf16", "q8_0", "q4_0",
                                                      "mxfp4", "q4_k", "q5_k", "q6_k"};
    return t == SL_F8_E4M3 ? "f8_e4m3" : names[t];
}

static bool gated_shared(const sl_model_spec *m) {
    const sl_arch *a = sl_arch_find(m->arch);
    for (size_t i = 0; i < a->n_tensors; i++)
        if (a->tensor[i].role == SL_ROLE_SHARED_SCALE) return true;
    return false;
}

static void print_attention(const sl_model_spec *m) {
    printf("  attention     %u heads, ", m->n_heads);
    if (m->kv_lora) {
        printf("latent %u + %u rotated for all, queries %u + %u", m->kv_lora, m->rope_dim,
               m->nope_dim, m->rope_dim);
        if (m->q_lora) printf(" from %u", m->q_lora);
        printf(", values %u\n", m->v_dim);
        return;
    }
    printf("%u for keys and values, head %u%s%s", m->n_kv_heads, m->head_dim,
           m->qk_norm ? ", normed queries and keys" : "", m->qkv_bias ? ", biases" : "");
    if (m->rope_dim != m->head_dim) printf(", %u of a head rotated", m->rope_dim);
    if (m->clip_qkv > 0) printf(", clipped at %g", (double)m->clip_qkv);
    printf("%s\n", m->gated ? ", gated" : "");
    if (m->n_linear)
        printf("  linear        %u of the blocks: %u heads of %u for keys, %u of %u for values, a "
               "convolution over %u positions\n",
               m->n_linear, m->delta_k_heads, m->delta_k_dim, m->delta_v_heads, m->delta_v_dim,
               m->delta_taps);
}

/* What activations are rounded to before products, by default and where it is asked for. */
static void print_products(const sl_model_info *i) {
    const sl_act_kind expert = sl_act_kind_of(i->expert_dtype);
    const sl_act_kind attention = sl_act_kind_of(i->attention_dtype);
    if (sl_act_is_int8(expert) || sl_act_is_int8(attention))
        printf("  products      of integers, activations rounded to 8 bits; --activations f32: of "
               "floats\n");
    if (expert == SL_ACT_BF16 || attention == SL_ACT_BF16)
        printf("  products      of BF16 weights and f32 activations; --activations bf16 or "
               "bf16-parts: of both in BF16\n");
}

static void print_text(const sl_model_spec *m, const sl_model_info *i, const char *folder) {
    printf("%s: %s\n", folder, m->arch);
    printf("  blocks        %u (%u routed), d_model %u, vocabulary %u, context %u\n", m->n_layers,
           m->n_moe, m->d_model, m->vocab, m->max_position);
    print_attention(m);
    printf("  experts       %u, top %u, width %u%s", m->n_experts, m->top_k, m->d_ff_expert,
           m->norm_topk ? ", weights rescaled to 1" : "");
    if (m->n_groups > 1) printf(", from %u of %u groups", m->top_groups, m->n_groups);
    if (sl_arch_find(m->arch)->router == SL_ROUTER_SIGMOID_GROUPS) printf(", sigmoid scores");
    if (m->route_scale > 0) printf(", times %g", (double)m->route_scale);
    printf("\n");
    if (m->dense_branch)
        printf(
            "  dense branch  width %u, beside the experts, which read what the block was given\n",
            m->d_ff_shared);
    else if (m->d_ff_shared)
        printf("  shared        width %u%s\n", m->d_ff_shared, gated_shared(m) ? ", gated" : "");
    if (m->n_mtp)
        printf("  predicts      %u block%s more, for further tokens (--speculate mtp)\n", m->n_mtp,
               m->n_mtp == 1 ? "" : "s");
    if (m->d_ff_dense) printf("  dense         width %u\n", m->d_ff_dense);
    printf("  parameters    %.3f M, %.3f M active per token\n", (double)m->n_params / 1e6,
           (double)m->n_params_active / 1e6);
    printf("  weights       %.1f MB in %u file%s, %llu tensors, experts %s, attention %s%s\n",
           (double)i->bytes_total / 1e6, i->n_files, i->n_files == 1 ? "" : "s",
           (unsigned long long)i->n_tensors, dtype_name(i->expert_dtype),
           dtype_name(i->attention_dtype), i->strips ? ", in strips" : "");
    print_products(i);
    printf("  attention worker maps %.1f MB; one expert of one block is %.3f MB\n",
           (double)i->bytes_attention / 1e6, (double)i->bytes_expert / 1e6);
    printf("  KV cache      %llu bytes per token (%s), pages of %u tokens\n",
           (unsigned long long)sl_kv_token_bytes(m), sl_kv_type_names[m->kv_type],
           SL_KV_PAGE_TOKENS);
}

static void print_memory(const sl_model_spec *m, const sl_model_info *i, const sl_plan *p) {
    for (uint32_t w = 0; w < p->n_workers; w++) {
        const uint32_t n = sl_job_experts(p, w);
        bool attention = (p->worker[w].roles & SL_ROLE_ATTENTION) != 0;
        printf("  worker %-2u     %s%s: %u experts, weights %.1f MB", w,
               attention ? "attention" : "", n ? (attention ? " + expert" : "expert") : "", n,
               (double)sl_job_weights(p, m, i, w) / 1e6);
        if (attention)
            printf(", KV up to %.1f MB (%u pages)", (double)sl_job_kv(p, m, w) / 1e6, p->n_pages);
        printf("\n");
    }
}

static void print_accounting(const sl_shape *shape) {
    json_t *v = sl_account_json(shape);
    char *text = v ? json_dumps(v, 0) : NULL;
    if (text) printf(", \"accounting\": %s", text);
    free(text);
    json_decref(v);
}

static void print_json(const sl_model_spec *m, const sl_model_info *i, const char *folder,
                       const sl_shape *shape) {
    printf("{\"folder\": ");
    sl_print_json_string(stdout, folder, strlen(folder));
    printf(
        ", \"architecture\": \"%s\", \"n_layers\": %u, \"n_moe_layers\": %u, \"d_model\": %u, "
        "\"n_heads\": %u, \"n_kv_heads\": %u, \"head_dim\": %u, \"vocab\": %u, \"n_experts\": %u, "
        "\"top_k\": %u, \"d_ff_expert\": %u, \"d_ff_shared\": %u, \"d_ff_dense\": %u, "
        "\"max_position\": %u, ",
        m->arch, m->n_layers, m->n_moe, m->d_model, m->n_heads, m->n_kv_heads, m->head_dim,
        m->vocab, m->n_experts, m->top_k, m->d_ff_expert, m->d_ff_shared, m->d_ff_dense,
        m->max_position);
    printf("\"n_params\": %llu, \"n_params_active\": %llu, \"bytes\": %llu, \"files\": %u, "
           "\"tensors\": %llu, \"expert_dtype\": \"%s\", \"attention_bytes\": %llu, "
           "\"expert_bytes\": %llu, \"in_strips\": %s, \"kv_bytes_per_token\": %llu",
           (unsigned long long)m->n_params, (unsigned long long)m->n_params_active,
           (unsigned long long)i->bytes_total, i->n_files, (unsigned long long)i->n_tensors,
           dtype_name(i->expert_dtype), (unsigned long long)i->bytes_attention,
           (unsigned long long)i->bytes_expert, i->strips ? "true" : "false",
           (unsigned long long)sl_kv_token_bytes(m));
    if (shape) print_accounting(shape);
    printf("}\n");
}

/* A model that is only described: a config.json, a preset, a folder without weights, or a family
 * that the engine does not run. */
static int inspect_description(const sl_options *o, const sl_shape *shape, const char *why) {
    if (o->json) {
        printf("{\"model\": ");
        sl_print_json_string(stdout, o->arg[0], strlen(o->arg[0]));
        printf(", \"weights\": false");
        print_accounting(shape);
        printf("}\n");
        return 0;
    }
    sl_account_print_model(shape);
    printf("  weights       none: %s\n", why);
    sl_account_print(shape, true);
    return 0;
}

int cmd_inspect(const sl_options *o) {
    sl_err err = {0}, no_shape = {0};
    sl_model_spec m;
    sl_generation_spec gen;
    sl_model_info info;
    sl_plan plan = {0};
    sl_shape shape;
    struct stat at;
    bool checkpoint =
        stat(o->arg[0], &at) == 0 && (S_ISDIR(at.st_mode) || sl_shape_in_gguf(o->arg[0]));
    sl_status described = sl_shape_open(o->arg[0], &shape, &no_shape);
    if (!checkpoint) {
        if (described != SL_OK) return sl_cmd_fail("inspect", &no_shape);
        return inspect_description(o, &shape, "this is a description");
    }
    sl_status st = sl_model_read_spec(o->arg[0], &m, &gen, &err);
    if (st == SL_ERR_UNSUPPORTED && described == SL_OK)
        return inspect_description(o, &shape, err.msg);
    if (st == SL_OK && m.weightless)
        return described == SL_OK
                   ? inspect_description(o, &shape, "the folder has no model.safetensors")
                   : sl_cmd_fail("inspect", &no_shape);
    if (st == SL_OK) st = sl_model_inspect(o->arg[0], &info, &err);
    if (st == SL_OK)
        st = o->plan[0] ? sl_plan_read(o->plan, &m, &plan, &err)
                        : sl_plan_local(&m, o->attention, o->experts, &plan, &err);
    if (st != SL_OK) return sl_cmd_fail("inspect", &err);
    m.kv_type = sl_plan_kv_type(&plan);
    if (o->json) {
        print_json(&m, &info, o->arg[0], described == SL_OK ? &shape : NULL);
    } else {
        print_text(&m, &info, o->arg[0]);
        print_memory(&m, &info, &plan);
        if (described == SL_OK) sl_account_print(&shape, false); /* the cache has one size */
    }
    sl_plan_free(&plan);
    return 0;
}
