/* GPUs of a plan's workers: words, JSON, and what they exclude. */
#include "format/plan_gpu.h"

#include "format/plan_lab.h"
#include "format/quantity.h"
#include "spec/schedules.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GPU_TEXT 24

static const char cuda[] = "cuda:", emulated[] = "emulated:";
static const char *const numerics_names[SL_NUMERICS_COUNT] = {"cpu", "fast", "exact"};

/* ---- words ---- */

sl_status sl_numerics_parse(const char *name, sl_numerics *out, sl_err *err) {
    size_t i;
    sl_status st = sl_name_parse("numerics", numerics_names, SL_NUMERICS_COUNT, name, &i, err);
    if (st == SL_OK) *out = (sl_numerics)i;
    return st;
}

const char *sl_numerics_name(sl_numerics n) {
    SL_ASSERT(n < SL_NUMERICS_COUNT); /* AUTO has none */
    return numerics_names[n];
}

sl_status sl_gpu_memory_parse(const char *text, uint64_t *out, sl_err *err) {
    sl_status st = sl_quantity_bytes(text, out, err);
    return st == SL_OK ? st : sl_err_prefix(err, "memory of a GPU");
}

/* What is before the comma or the end, `n` bytes: the CPU, or a GPU. False: neither. */
static bool one_device(const char *text, size_t n, bool *on_gpu, uint32_t *gpu) {
    const size_t prefix = sizeof cuda - 1;
    uint32_t index = 0;
    *on_gpu = false;
    if (n == 3 && memcmp(text, "cpu", 3) == 0) return true;
    if (n <= prefix || n > prefix + 4 || memcmp(text, cuda, prefix) != 0) return false;
    for (size_t i = prefix; i < n; i++) {
        if (text[i] < '0' || text[i] > '9') return false;
        index = index * 10 + (uint32_t)(text[i] - '0');
    }
    *on_gpu = index <= SL_MAX_GPU;
    *gpu = index;
    return *on_gpu;
}

/* ---- options ---- */

/* A word that is no device. */
static sl_status unknown(const char *option, const char *word, size_t n, sl_devices_of whose,
                         sl_err *err) {
    if (n == 4 && memcmp(word, "auto", 4) == 0)
        return sl_fail(err, SL_ERR_ARG,
                       "%s: auto is no device, but a choice of all workers' devices, which serve, "
                       "run, bench and logits make (--device auto)",
                       option);
    return sl_fail(err, SL_ERR_ARG,
                   "%s: device '%.*s' is unknown: cpu, cuda:N with N from 0 to %u%s", option,
                   (int)SL_MIN(n, (size_t)60), word, SL_MAX_GPU,
                   whose == SL_DEVICES_OF_ALL ? ", or emulated:FILE" : "");
}

static bool is_of(const sl_plan *p, uint32_t id, sl_devices_of whose) {
    const bool attention = p->worker[id].roles & SL_ROLE_ATTENTION;
    if (whose == SL_DEVICES_OF_ALL) return true;
    return attention == (whose == SL_DEVICES_OF_ATTENTION);
}

static uint32_t count(const sl_plan *p, sl_devices_of whose) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->n_workers; i++) n += is_of(p, i, whose);
    return n;
}

/* Worker number k of those, in the order of the list. */
static sl_plan_worker *nth(const sl_plan *p, sl_devices_of whose, uint32_t k) {
    for (int experts = 0; experts < 2; experts++)
        for (uint32_t i = 0; i < p->n_workers; i++) {
            const bool attention = p->worker[i].roles & SL_ROLE_ATTENTION;
            if (attention == (experts == 0) && is_of(p, i, whose) && k-- == 0) return &p->worker[i];
        }
    return NULL;
}

void sl_plan_set_emulated(const sl_device_spec *d, sl_plan *p) {
    const sl_device_spec was = p->device;
    p->device = *d;
    p->device.gpu_memory = was.gpu_memory;
    p->device.numerics = was.numerics;
    memcpy(p->device.gpu_kind, was.gpu_kind, sizeof was.gpu_kind);
    for (uint32_t i = 0; i < p->n_workers; i++) p->worker[i].on_gpu = false;
}

static sl_status set_emulated(const char *text, sl_plan *p, sl_err *err) {
    sl_device_spec d;
    sl_status st = sl_device_parse(text, &d, err);
    if (st == SL_OK) sl_plan_set_emulated(&d, p);
    return st;
}

sl_status sl_plan_set_devices(const char *option, sl_devices_of whose, const char *text, sl_plan *p,
                              sl_err *err) {
    static const char *const what[] = {"workers", "workers that have attention",
                                       "workers that have experts alone"};
    const uint32_t workers = count(p, whose);
    uint32_t listed = 1;
    if (strncmp(text, emulated, sizeof emulated - 1) == 0) {
        if (whose == SL_DEVICES_OF_ALL) return set_emulated(text, p, err);
        return sl_fail(err, SL_ERR_ARG, "%s: emulated devices are of all workers (--device)",
                       option);
    }
    if (workers == 0)
        return sl_fail(err, SL_ERR_ARG, "%s: the plan has no %s", option, what[whose]);
    for (const char *c = text; *c; c++) listed += *c == ',';
    if (listed != 1 && listed != workers)
        return sl_fail(err, SL_ERR_ARG, "%s: %u devices for %u %s: one for all, or one for each",
                       option, listed, workers, what[whose]);
    const char *at = text;
    for (uint32_t k = 0; k < workers; k++) {
        const size_t n = strcspn(at, ",");
        sl_plan_worker *w = nth(p, whose, k);
        if (!one_device(at, n, &w->on_gpu, &w->gpu)) return unknown(option, at, n, whose, err);
        if (listed > 1) at += n + 1;
    }
    /* who is named is named: a plan's emulated device goes */
    if (whose == SL_DEVICES_OF_ALL) p->device.kind = SL_DEVICE_CPU;
    return SL_OK;
}

sl_status sl_plan_set_offload(sl_plan *p, sl_err *err) {
    const bool prompts = sl_plan_has_prefill(p);
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->n_workers; i++) {
        sl_plan_worker *w = &p->worker[i];
        if (!w->on_gpu || !(w->roles & SL_ROLE_EXPERT) || (prompts && !w->prefill)) continue;
        w->offload = true;
        n++;
    }
    if (n > 0) return SL_OK;
    return sl_fail(err, SL_ERR_ARG,
                   "--offload-experts is for workers%s on GPUs that have experts, of which there "
                   "are none (--device, --attention-device)",
                   prompts ? " for prompts" : "");
}

/* ---- JSON ---- */

sl_status sl_gpu_of_worker(sl_json row, sl_plan_worker *w, sl_err *err) {
    const char *text = "cpu";
    sl_status st = sl_json_string(row, "device", SL_JSON_OPTIONAL, &text, err);
    if (st == SL_OK && !one_device(text, strlen(text), &w->on_gpu, &w->gpu))
        st = sl_json_fail(row, "device", err, SL_ERR_ARG,
                          "\"%.40s\" is neither \"cpu\" nor \"cuda:N\" with N from 0 to %u", text,
                          SL_MAX_GPU);
    return st == SL_OK ? sl_json_bool(row, "offload", SL_JSON_OPTIONAL, &w->offload, err) : st;
}

static sl_status kind_from_json(sl_json gpu, const char *key, sl_plan *p, sl_err *err) {
    const char *kind = "";
    sl_status st = sl_json_string(gpu, key, SL_JSON_OPTIONAL, &kind, err);
    if (st != SL_OK) return st;
    if (strlen(kind) >= SL_GPU_KIND_BYTES)
        return sl_json_fail(gpu, key, err, SL_ERR_LIMIT, "a kind of GPU of more than %u bytes",
                            SL_GPU_KIND_BYTES - 1);
    strncpy(p->device.gpu_kind, kind, sizeof p->device.gpu_kind - 1);
    return SL_OK;
}

sl_status sl_gpus_from_json(sl_json v, sl_plan *p, sl_err *err) {
    static const char *const keys[] = {"memory", "numerics", "kind"};
    const char *numerics = NULL;
    sl_json gpu = {0};
    p->device.numerics = SL_NUMERICS_AUTO;
    sl_status st = sl_json_object(v, "gpu", SL_JSON_OPTIONAL, &gpu, err);
    if (st != SL_OK || !gpu.value) return st;
    st = sl_json_only(gpu, keys, SL_LEN(keys), err);
    if (st == SL_OK)
        st = sl_json_u64(gpu, keys[0], SL_JSON_OPTIONAL, 0, SL_QUANTITY_MAX_BYTES,
                         &p->device.gpu_memory, err);
    if (st == SL_OK) st = sl_json_string(gpu, keys[1], SL_JSON_OPTIONAL, &numerics, err);
    if (st == SL_OK && numerics)
        st = sl_json_says(gpu, keys[1], sl_numerics_parse(numerics, &p->device.numerics, err), err);
    return st == SL_OK ? kind_from_json(gpu, keys[2], p, err) : st;
}

void sl_gpu_print_worker(const sl_plan *p, uint32_t id, json_t *row) {
    char text[GPU_TEXT];
    if (!sl_plan_on_gpu(p, id)) return;
    snprintf(text, sizeof text, "%s%u", cuda, sl_plan_device_of(p, id).index);
    json_object_set_new(row, "device", json_string(text));
    if (p->worker[id].offload) json_object_set_new(row, "offload", json_true());
}

json_t *sl_gpus_json(const sl_plan *p) {
    json_t *gpu = json_pack("{s:I}", "memory", (json_int_t)p->device.gpu_memory);
    if (p->device.numerics != SL_NUMERICS_AUTO)
        json_object_set_new(gpu, "numerics", json_string(sl_numerics_name(p->device.numerics)));
    if (p->device.gpu_kind[0]) json_object_set_new(gpu, "kind", json_string(p->device.gpu_kind));
    return gpu;
}

/* ---- what excludes what ---- */

static sl_status check_worker(const sl_plan *p, uint32_t id, sl_err *err) {
    const uint32_t ranks = sl_plan_all_ranks(p, p->worker[id].roles);
    const uint32_t index = sl_plan_device_of(p, id).index;
    if (ranks > 1)
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "plan: worker %u is %u ranks (--tp, --pp), on cuda:%u it can only be one",
                       id, ranks, index);
    return SL_OK;
}

/* Of workers whose experts' weights stay in their machine's memory. A place to which somebody may
 * come, or that has lost its roles, keeps the word. */
static sl_status check_offload(const sl_plan *p, uint32_t id, sl_err *err) {
    const sl_plan_worker *w = &p->worker[id];
    if (!w->on_gpu || (w->roles && !(w->roles & SL_ROLE_EXPERT)))
        return sl_fail(err, SL_ERR_ARG,
                       "plan: worker %u keeps experts in its machine's memory (offload), and %s",
                       id, w->on_gpu ? "has none" : "is on no GPU, where they lie there anyway");
    if (p->random_weights)
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "plan: worker %u keeps experts in its machine's memory (offload): not with "
                       "random weights, which lie in no file",
                       id);
    return SL_OK;
}

sl_status sl_gpus_check(const sl_plan *p, sl_err *err) {
    sl_status st = SL_OK;
    for (uint32_t i = 0; st == SL_OK && p->worker && i < p->n_workers; i++)
        if (p->worker[i].offload) st = check_offload(p, i, err);
    if (st != SL_OK || sl_plan_n_gpu(p) == 0) return st;
    if (sl_device_is_modelled(&p->device))
        return sl_fail(err, SL_ERR_ARG,
                       "plan: an emulated device is of all workers, and %u of %u are on GPUs",
                       sl_plan_n_gpu(p), p->n_workers);
    for (uint32_t i = 0; st == SL_OK && i < p->n_workers; i++)
        if (sl_plan_on_gpu(p, i)) st = check_worker(p, i, err);
    if (st != SL_OK) return st;
    if (p->segments)
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "plan: sums in segments (--segments) are not possible on GPUs yet");
    if (sl_activations_are_bf16(p->activations))
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "plan: activations %s (--activations) are the CPU's alone, with a GPU "
                       "they are int8 or f32",
                       sl_activations_names[p->activations]);
    if (p->exact && p->device.numerics == SL_NUMERICS_FAST)
        return sl_fail(
            err, SL_ERR_ARG,
            "plan: exact with numerics fast: their bits depend on the batch; exact wants "
            "numerics exact or cpu (--numerics)");
    for (uint32_t i = 0; p->device.numerics == SL_NUMERICS_EXACT && i < p->n_workers; i++)
        if (!sl_plan_on_gpu(p, i))
            return sl_fail(err, SL_ERR_ARG,
                           "plan: numerics exact are the bits of one kind of GPU, and worker %u is "
                           "on the CPU: cpu has the same bits on both (--numerics)",
                           i);
    return SL_OK;
}
