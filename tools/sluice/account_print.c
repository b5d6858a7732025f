/* Counts of a model from its hyper-parameters: inspect's second half, and all of it where there are
 * no weights. */
#include "cmd.h"

#include "format/profile_file.h"
#include "plan/account.h"

#include <stdio.h>

static const char *const blocks_of[SL_COST_COUNT] = {"every",  "routed", "dense",
                                                     "routed", "routed", "once"};

static uint64_t params_of(const sl_params *p, sl_cost_kind kind) {
    switch (kind) {
    case SL_COST_ATTENTION:
        return p->attention;
    case SL_COST_ROUTER:
        return p->router;
    case SL_COST_DENSE:
        return p->dense;
    case SL_COST_SHARED:
        return p->shared;
    case SL_COST_EXPERT:
        return p->expert;
    default:
        return p->head;
    }
}

static uint64_t times_in_model(const sl_shape *s, sl_cost_kind kind) {
    switch (kind) {
    case SL_COST_ATTENTION:
        return s->n_layers;
    case SL_COST_DENSE:
        return sl_shape_n_dense(s);
    case SL_COST_EXPERT:
        return (uint64_t)sl_shape_n_moe(s) * s->n_experts;
    case SL_COST_HEAD:
        return 1;
    default:
        return sl_shape_n_moe(s);
    }
}

/* "46.703 B", "0.562 M". */
static const char *short_count(double n, char out[24]) {
    snprintf(out, 24, n >= 1e8 ? "%.3f B" : "%.3f M", n >= 1e8 ? n / 1e9 : n / 1e6);
    return out;
}

/* A line of the table; of attention the shape has blocks of one kind. */
typedef struct stage_line {
    const char *name, *blocks;
    sl_shape shape;
    sl_cost_kind kind;
    uint64_t params, times;
} stage_line;

#define MAX_LINES (SL_COST_COUNT + 1)

/* What stages there are; blocks of linear attention are a line of their own. */
static size_t stage_lines(const sl_shape *s, const sl_params *p, stage_line out[MAX_LINES]) {
    size_t n = 0;
    for (int k = 0; k < SL_COST_COUNT; k++) {
        const sl_cost_kind kind = (sl_cost_kind)k;
        const bool split = kind == SL_COST_ATTENTION && s->n_linear_layers;
        out[n] = (stage_line){sl_cost_name(kind), blocks_of[k],           *s, kind,
                              params_of(p, kind), times_in_model(s, kind)};
        if (split) {
            out[n].blocks = "full";
            out[n].shape.n_linear_layers = 0;
            out[n++].times -= s->n_linear_layers;
            out[n] = (stage_line){"linear", "linear", *s, kind, p->linear, s->n_linear_layers};
            out[n].shape.n_linear_layers = s->n_layers;
        }
        n += out[n].times > 0 && out[n].params > 0;
    }
    return n;
}

static void print_stage(const stage_line *l, const sl_params *p) {
    const sl_account_opts one = {.tp = 1, .activation_bytes = 2};
    const sl_stage_work w = sl_account_stage(&l->shape, l->kind, 1, 1, &one);
    char sum[24];
    const double all = (double)(l->params * l->times);
    printf("    %-10s %-7s %7llu x %11.3f M = %10s %5.1f %%  %10.3f MFLOP/row  %10.3f MB", l->name,
           l->blocks, (unsigned long long)l->times, (double)l->params / 1e6, short_count(all, sum),
           100.0 * all / (double)p->total, w.flops / 1e6, w.weight_bytes / 1e6);
    if (l->kind == SL_COST_ATTENTION)
        printf("  + %.3f kFLOP and %.0f B a %s", w.key_flops / 1e3, w.key_bytes,
               l->shape.n_linear_layers ? "row" : "key");
    printf("\n");
}

void sl_account_print(const sl_shape *s, bool kv) {
    sl_params p = sl_account_params(s);
    sl_footprint f = sl_account_footprint(s);
    char total[24], active[24], rest[24];
    printf("  counted       %s parameters, %s active per token (%s without the embedding)\n",
           short_count((double)p.total, total), short_count((double)p.active, active),
           short_count((double)(p.active - (s->tied_head ? 0 : p.embedding)), rest));
    stage_line line[MAX_LINES];
    for (size_t i = 0, n = stage_lines(s, &p, line); i < n; i++) print_stage(&line[i], &p);
    printf("    %-10s %-7s %7d x %11.3f M\n", "embedding", "once", 1, (double)p.embedding / 1e6);
    printf("  by format     %g bytes a weight, %g of experts: %.3f GB; attention side %.3f GB, one "
           "expert of every block %.3f GB\n",
           s->attention_weight_bytes, s->expert_weight_bytes, f.total / 1e9, f.attention_side / 1e9,
           f.expert_column / 1e9);
    if (kv)
        printf("  KV, counted   %.0f bytes per token at %g bytes a value (%s)\n", f.kv_token,
               s->kv_value_bytes,
               s->attention == SL_ATTENTION_MLA ? "latent rows" : "keys and values");
    if (f.state > 0)
        printf("  state         %.3f MB a request, of %u blocks of linear attention\n",
               f.state / 1e6, s->n_linear_layers);
    printf("  work          %.3f GFLOP per token at 1 key, %.3f at 4096\n",
           sl_account_token_flops(s, 1, false) / 1e9, sl_account_token_flops(s, 4096, false) / 1e9);
}

void sl_account_print_model(const sl_shape *s) {
    printf("%s: %u blocks (%u routed), d_model %u, vocabulary %u", s->name, s->n_layers,
           sl_shape_n_moe(s), s->d_model, s->vocab);
    if (s->max_position) printf(", context %u", s->max_position);
    if (s->attention == SL_ATTENTION_MLA)
        printf("\n  attention     %u heads over latent rows of %u + %u, query latent %u\n",
               s->n_heads, s->kv_lora, s->qk_rope_dim, s->q_lora);
    else
        printf("\n  attention     %u heads, %u for keys and values, head %u%s\n", s->n_heads,
               s->n_kv_heads, s->qk_head_dim, s->gated ? ", gated" : "");
    if (s->n_linear_layers)
        printf("  linear        %u of the blocks: %u value heads of %u, states of %u values\n",
               s->n_linear_layers, s->delta_heads, s->delta_out / s->delta_heads, s->delta_state);
    printf("  experts       %u, top %u, width %u", s->n_experts, s->top_k, s->d_ff_expert);
    if (s->d_ff_shared) printf(", shared %u", s->d_ff_shared);
    if (s->d_ff_residual) printf(", dense branch %u", s->d_ff_residual);
    if (s->d_ff_dense) printf(", dense blocks %u", s->d_ff_dense);
    printf("\n");
}

json_t *sl_account_json(const sl_shape *s) {
    const sl_account_opts one = {.tp = 1, .activation_bytes = 2};
    sl_params p = sl_account_params(s);
    sl_footprint f = sl_account_footprint(s);
    json_t *stages = json_object();
    stage_line line[MAX_LINES];
    for (size_t i = 0, n = stage_lines(s, &p, line); i < n; i++) {
        const sl_stage_work w = sl_account_stage(&line[i].shape, line[i].kind, 1, 1, &one);
        json_object_set_new(stages, line[i].name,
                            json_pack("{s:I, s:I, s:f, s:f, s:f, s:f}", "count",
                                      (json_int_t)line[i].times, "params",
                                      (json_int_t)line[i].params, "flops_per_row", w.flops,
                                      "weight_bytes", w.weight_bytes, "flops_per_key", w.key_flops,
                                      "bytes_per_key", w.key_bytes));
    }
    return json_pack("{s:s, s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:o}", "name",
                     s->name, "n_params", (json_int_t)p.total, "n_params_active",
                     (json_int_t)p.active, "embedding_params", (json_int_t)p.embedding, "n_layers",
                     (json_int_t)s->n_layers, "weight_bytes", f.total, "attention_side_bytes",
                     f.attention_side, "expert_bytes", f.expert, "expert_column_bytes",
                     f.expert_column, "kv_bytes_per_token", f.kv_token, "state_bytes_per_request",
                     f.state, "flops_per_token", sl_account_token_flops(s, 1, false), "stages",
                     stages);
}
