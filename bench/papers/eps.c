/* EPS-MoE, Tables 1 to 4: what overlap of expert groups gains by the three-stage law on data
 * sheets, and what TP+EP gains over TP+TP. Which GEMM is faster is a measurement of theirs, not
 * modelled. */
#include "papers.h"

#include "format/presets.h"
#include "plan/account.h"
#include "plan/collective.h"
#include "plan/eps.h"
#include "plan/roofline.h"

#include <math.h>

#define LINK_BYTES_S 200e9 /* H800's NVLink, one direction */
#define LATENCY_US   10.0

typedef struct setting {
    const sl_shape *shape;
    uint32_t devices;
    double tokens;  /* of all devices */
    double context; /* tokens of one prompt */
    bool tensor;    /* attention is cut over the devices, not replicated */
} setting;

static sl_roofline device_of(const setting *s) {
    return (sl_roofline){
        .device = sl_preset_device("H800"),
        .intra = {.bandwidth = LINK_BYTES_S, .latency_us = LATENCY_US},
        .compute = SL_COMPUTE_BF16,
        .work = {.tp = s->tensor ? s->devices : 1, .activation_bytes = 2, .prefill = true}};
}

/* Attention, router and shared experts of a block. */
static double attention_us(const setting *s) {
    sl_roofline r = device_of(s);
    double rows = s->tensor ? s->tokens : s->tokens / s->devices;
    double keys = rows * s->context / 2;
    return sl_roofline_stage_us(s->shape, &r, SL_COST_ATTENTION, rows, keys) +
           sl_roofline_stage_us(s->shape, &r, SL_COST_ROUTER, rows, 0) +
           sl_roofline_stage_us(s->shape, &r, SL_COST_SHARED, rows, 0);
}

/* Dispatch or combine, and the experts, of one device. */
static sl_eps_times moe_times(const setting *s) {
    const sl_shape *m = s->shape;
    sl_roofline r = device_of(s);
    r.work.tp = 1;
    double local = (double)m->n_experts / s->devices, rows = s->tokens * m->top_k / m->n_experts;
    double one = sl_roofline_stage_us(m, &r, SL_COST_EXPERT, rows, 0) - r.device->launch_us;
    double groups = sl_expected_groups(m->n_experts, m->top_k, s->devices);
    double bytes =
        s->tokens / s->devices * groups * m->d_model * 2.0 * (s->devices - 1) / s->devices;
    double link = bytes / LINK_BYTES_S * 1e6;
    return (sl_eps_times){link, local * one, link, LATENCY_US};
}

/* Both halves of the all-reduce that TP+TP ends the experts with, and weights cut by width. */
static double tensor_us(const setting *s) {
    sl_roofline r = device_of(s);
    sl_eps_times t = moe_times(s);
    double bytes = s->tokens * s->shape->d_model * 2.0;
    return t.compute + sl_roofline_all_reduce_us(&r.intra, s->devices, bytes);
}

static double block_us(const setting *s, uint32_t n) {
    sl_eps_times t = moe_times(s);
    sl_fabric in = {SL_FABRIC_PORT, LATENCY_US, 1e6 / LINK_BYTES_S};
    double gather =
        s->tensor ? sl_collective_gather_us(&in, s->tokens * s->shape->d_model * 2.0, s->devices)
                  : 0;
    return attention_us(s) + sl_eps_time(&t, n) + gather;
}

/* Prefill throughput of the baseline (TP+TP where attention is cut) and of the best N. Lengths and
 * batches are assumed: the table has none. */
static void table_1_row(FILE *out, const char *name, const setting *s) {
    double one = block_us(s, 1), base = s->tensor ? attention_us(s) + tensor_us(s) : one;
    uint32_t most = s->shape->n_experts / s->devices, best = 1;
    for (uint32_t n = 1; n <= most; n++)
        if (most % n == 0 && block_us(s, n) < block_us(s, best)) best = n;
    double ktok = 1e3 * s->tokens / s->shape->n_layers, eps = block_us(s, best);
    PAPERS_ROW(out, "eps1", "base", ktok / base, "%s", name);
    PAPERS_ROW(out, "eps1", "eps", ktok / eps, "%s", name);
    PAPERS_ROW(out, "eps1", "overlap", 100 * (one / eps - 1), "%s", name);
    PAPERS_ROW(out, "eps1", "n", (double)best, "%s", name);
}

static void table_1(FILE *out) {
    const setting deepseek = {sl_preset_model("deepseek-v2"), 8, 8 * 1024.0, 1024, false},
                  mixtral = {sl_preset_model("mixtral-8x7b"), 4, 128 * 2048.0, 2048, true},
                  dbrx = {sl_preset_model("dbrx"), 8, 64 * 2048.0, 2048, true};
    table_1_row(out, "DeepSeekV2", &deepseek);
    table_1_row(out, "Mixtral-8x7B", &mixtral);
    table_1_row(out, "DBRX", &dbrx);
}

static void table_2(FILE *out) {
    for (int k = 1; k <= 8; k *= 2) {
        setting s = {sl_preset_model("deepseek-v2"), 8, 8 * 1024.0 * k, 1024.0 * k, false};
        double base = block_us(&s, 1);
        PAPERS_ROW(out, "eps2", "gain", 100 * (base / block_us(&s, 5) - 1), "5|%d", k);
        PAPERS_ROW(out, "eps2", "gain", 100 * (base / block_us(&s, 20) - 1), "20|%d", k);
    }
}

static void table_3_row(FILE *out, const char *name, const char *shape, uint32_t devices,
                        uint32_t batch, double k) {
    setting s = {sl_preset_model(shape), devices, batch * k * 1024, k * 1024, true};
    double base = attention_us(&s) + tensor_us(&s), one = block_us(&s, 1);
    PAPERS_ROW(out, "eps3", "tp+ep", 100 * (one / base - 1), "%s|%u|%g", name, batch, k);
    PAPERS_ROW(out, "eps3", "overlap", 100 * (block_us(&s, 2) / one - 1), "%s|%u|%g", name, batch,
               k);
}

static void table_3(FILE *out) {
    for (uint32_t batch = 16; batch <= 128; batch *= 2) {
        for (double k = 0.5; k <= 16; k *= 2) {
            if (k >= 2 && batch * k <= 256)
                table_3_row(out, "Mixtral-8x7B", "mixtral-8x7b", 4, batch, k);
            if (k <= 4 && batch * k <= 128 && batch <= 64)
                table_3_row(out, "DBRX", "dbrx", 8, batch, k);
        }
    }
}

static void table_4(FILE *out) {
    for (uint32_t batch = 16; batch <= 32; batch *= 2) {
        for (int k = 2; k <= 4; k *= 2) {
            setting s = {sl_preset_model("arctic"), 8, batch * k * 1024.0, k * 1024.0, true};
            double base = block_us(&s, 1);
            PAPERS_ROW(out, "eps4", "ms", 3 * base / 1e3, "1|%u|%d", batch, k);
            PAPERS_ROW(out, "eps4", "change", 100 * (block_us(&s, 4) / base - 1), "4|%u|%d", batch,
                       k);
            PAPERS_ROW(out, "eps4", "change", 100 * (block_us(&s, 8) / base - 1), "8|%u|%d", batch,
                       k);
        }
    }
}

void papers_eps(FILE *out) {
    table_1(out);
    table_2(out);
    table_3(out);
    table_4(out);
}
