/* FinDEP, Tables 3 to 7: coefficients of its Fig. 7 on testbed A, data sheets on the others. */
#include "papers.h"

#include "base/status.h"
#include "format/presets.h"
#include "plan/findep.h"
#include "plan/roofline.h"

#include <math.h>

#define BATCH_TOKENS 32768u /* of one attention device: an assumption, the paper has none */

typedef struct model {
    const char *name;
    double hidden, width, gemms, macs; /* of a token's projections in one block */
    double scores;                     /* heads (dk + dv) */
    uint32_t experts, top_k, shared;
} model;

static const model deepseek = {"DeepSeek-V2",
                               5120,
                               1536,
                               5,
                               5120.0 * 1536 + 1536.0 * 128 * 192 + 5120.0 * 576 +
                                   512.0 * 128 * 256 + 16384.0 * 5120,
                               128.0 * 320,
                               160,
                               6,
                               2};
static const model qwen = {"Qwen3-235B-A22B", 4096, 1536, 4, 4096.0 * (8192 + 1024) + 8192.0 * 4096,
                           64.0 * 256,        128,  8,    0};

/* Milliseconds: of a product and of a multiply-add in it, of attention likewise, of a message and
 * of a value in it. */
typedef struct machine {
    char name;
    double gemm, mac, attn, score, message, value;
    uint32_t devices;
} machine;

/* Fig. 7 and the caption's three pairs; (3,5) of Table 6 takes the (4,4) pair's. */
static machine testbed_a(uint32_t eg) {
    machine m = {'A', 0.17, 8.59e-11, 0.15, 1.54e-11, 0.37, 2.55e-6, 8};
    if (eg == 7) m.message = 0.10, m.value = 9.61e-7;
    if (eg == 6) m.message = 0.01, m.value = 1.28e-6;
    return m;
}

static machine from_data_sheet(char name, const char *device, double link, double latency_ms,
                               uint32_t devices) {
    const sl_device_type *d = sl_preset_device(device);
    double mac = 2e3 / sl_roofline_flops(d, SL_COMPUTE_BF16), launch = d->launch_us / 1e3;
    return (machine){name, launch, mac, launch, mac, latency_ms, 2e3 / link, devices};
}

static sl_findep_problem problem(const model *m, const machine *k, uint32_t layers, uint32_t tokens,
                                 uint32_t ag, uint32_t eg) {
    double each = m->hidden * m->width, local = (double)m->experts / eg;
    return (sl_findep_problem){
        .layers = layers,
        .ag = ag,
        .eg = eg,
        .tokens = tokens,
        .experts = m->experts,
        .top_k = m->top_k,
        .batch_per_ag = BATCH_TOKENS / tokens,
        .r2_max = 32,
        .integer_tokens = true,
        .skew = 1,
        .attn = {m->gemms * k->gemm + k->attn,
                 k->mac * m->macs * tokens + k->score * m->scores * tokens * tokens, 0},
        .shared = {3.0 * m->shared * k->gemm, 3.0 * m->shared * k->mac * tokens * each, 0},
        .expert = {3 * k->gemm, 3 * local * k->mac * each, 0},
        .a2e = {k->message, k->value * local * m->hidden, 0},
        .e2a = {k->message, k->value * local * m->hidden, 0},
    };
}

/* PPPipe: shared experts are part of attention, one chunk. */
static sl_findep_problem as_pppipe(sl_findep_problem p) {
    p.attn.alpha += p.shared.alpha;
    p.attn.beta += p.shared.beta;
    p.shared = (sl_findep_line){0};
    p.r2_max = 1;
    return p;
}

static double tokens_per_s(const sl_findep_problem *p, sl_findep_result *r) {
    sl_err err;
    if (sl_findep_solve(p, false, r, &err) != SL_OK) return 0;
    return r->samples_per_s * p->tokens / 1e3;
}

typedef struct split {
    uint32_t ag, eg;
} split;

/* Thousand tokens a second of both systems at their best split. */
static void best_of(const model *m, char testbed, uint32_t layers, uint32_t tokens,
                    const split *splits, uint32_t n, double out[2]) {
    out[0] = out[1] = 0;
    for (uint32_t i = 0; i < n; i++) {
        machine k = testbed == 'A'   ? testbed_a(splits[i].eg)
                    : testbed == 'B' ? from_data_sheet('B', "A10", 25e9, 0.015, 8)
                    : testbed == 'C' ? from_data_sheet('C', "H20", 450e9, 0.01, 8)
                                     : from_data_sheet('D', "H20", 50e9, 0.015, 32);
        sl_findep_problem p = problem(m, &k, layers, tokens, splits[i].ag, splits[i].eg);
        sl_findep_problem q = as_pppipe(p);
        sl_findep_result r;
        out[0] = fmax(out[0], tokens_per_s(&q, &r));
        out[1] = fmax(out[1], tokens_per_s(&p, &r));
    }
}

static void print_pair(FILE *out, const char *table, const model *m, uint32_t tokens, char testbed,
                       const double pair[2]) {
    PAPERS_ROW(out, table, "pppipe", pair[0], "%s|%u|%c", m->name, tokens, testbed);
    PAPERS_ROW(out, table, "findep", pair[1], "%s|%u|%c", m->name, tokens, testbed);
    PAPERS_ROW(out, table, "ratio", pair[1] / pair[0], "%s|%u|%c", m->name, tokens, testbed);
}

static void tables_5_and_6(FILE *out) {
    static const split fig7[] = {{1, 7}, {2, 6}, {4, 4}};
    static const split eight[] = {{1, 7}, {2, 6}, {3, 5}, {4, 4}, {5, 3}, {6, 2}};
    static const split big[] = {{8, 24}}, three[] = {{3, 5}}, four[] = {{4, 4}};
    static const uint32_t lengths[] = {1024, 2048, 4096, 8192}, online[] = {3072, 6144};
    const model *models[] = {&deepseek, &qwen};
    static const uint32_t layers[2][4] = {{8, 4, 16, 16}, {24, 12, 48, 48}};
    double pair[2];
    for (int m = 0; m < 2; m++) {
        for (int t = 0; t < 4; t++) {
            char testbed = (char)('A' + t);
            for (int i = 0; i < (m == 0 ? 3 : 4); i++) {
                best_of(models[m], testbed, layers[m][t], lengths[i],
                        t == 0   ? fig7
                        : t == 3 ? big
                                 : eight,
                        t == 0   ? 3
                        : t == 3 ? 1
                                 : 6,
                        pair);
                print_pair(out, "findep5", models[m], lengths[i], testbed, pair);
            }
            for (int i = 0; i < 2; i++) {
                best_of(models[m], testbed, layers[m][t], online[i],
                        t == 3   ? big
                        : m == 0 ? three
                                 : four,
                        1, pair);
                print_pair(out, "findep6", models[m], online[i], testbed, pair);
            }
        }
    }
}

/* One of ma and r1 given, the other 1: best chunks and order. */
static double best_chunks(const sl_findep_problem *p, uint32_t ma, uint32_t r1) {
    double best = 0;
    for (uint32_t r2 = 1; r2 <= 32; r2++) {
        for (int o = 0; o < SL_ORDER_COUNT; o++) {
            sl_findep_point at = {.order = (sl_order)o, .r1 = r1, .ma = ma, .r2 = r2};
            sl_findep_result r;
            sl_err err;
            if (sl_findep_evaluate(p, &at, &r, &err) == SL_OK) best = fmax(best, r.samples_per_s);
        }
    }
    return best * p->tokens / 1e3;
}

static void tables_3_and_4(FILE *out) {
    static const uint32_t lengths[] = {2048, 4096};
    for (int t = 0; t < 2; t++) {
        machine k = t ? from_data_sheet('D', "H20", 50e9, 0.015, 32)
                      : from_data_sheet('C', "H20", 450e9, 0.01, 8);
        for (int i = 0; i < 2; i++) {
            sl_findep_problem p = problem(&deepseek, &k, 2, lengths[i], t ? 8 : 3, t ? 24 : 5);
            for (uint32_t n = 1; n <= 4; n *= 2) {
                PAPERS_ROW(out, "findep3", "ktok/s", best_chunks(&p, n, 1), "%c|%u|%u", k.name,
                           lengths[i], n);
                PAPERS_ROW(out, "findep4", "ktok/s", best_chunks(&p, 1, n), "%c|%u|%u", k.name,
                           lengths[i], n);
            }
        }
    }
}

/* Time that transfers add, on testbed A with (4,4). */
static double exposed(sl_findep_problem p, sl_findep_point at) {
    sl_findep_result with, without;
    sl_err err;
    if (sl_findep_evaluate(&p, &at, &with, &err) != SL_OK) return 0;
    p.a2e = p.e2a = (sl_findep_line){0};
    if (sl_findep_evaluate(&p, &at, &without, &err) != SL_OK) return 0;
    return with.makespan_ms - without.makespan_ms;
}

static void table_7(FILE *out) {
    static const uint32_t lengths[] = {1024, 2048, 4096};
    for (int i = 0; i < 3; i++) {
        machine k = testbed_a(4);
        sl_findep_problem p = problem(&deepseek, &k, 8, lengths[i], 4, 4), q = as_pppipe(p);
        sl_findep_result r;
        sl_findep_point naive = {.r1 = 1, .ma = p.batch_per_ag, .r2 = 1};
        PAPERS_ROW(out, "findep7", "naive", exposed(p, naive), "%u", lengths[i]);
        if (tokens_per_s(&q, &r) > 0)
            PAPERS_ROW(out, "findep7", "pppipe", exposed(q, r.at), "%u", lengths[i]);
        if (tokens_per_s(&p, &r) > 0)
            PAPERS_ROW(out, "findep7", "findep", exposed(p, r.at), "%u", lengths[i]);
    }
}

void papers_findep(FILE *out) {
    tables_3_and_4(out);
    tables_5_and_6(out);
    table_7(out);
}
