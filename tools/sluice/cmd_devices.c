/* What this machine computes with: its CPU, the tables of kernels that run on it, of each kernel
 * which table's form is taken, and its GPUs. Other verbs take the same way to their kernels
 * (sl_deploy_kernels). */
#include "cmd.h"

#include "base/log.h"
#include "kernel/cpu.h"
#include "stage/cuda.h"

#include <stdio.h>
#include <string.h>

static void choose(const sl_options *o, bool again, sl_kernel_choice *out) {
    char folder[4096];
    const char *at = o->kernel_cache;
    if (strcmp(at, "off") == 0)
        at = NULL;
    else if (!at[0])
        at = sl_options_cache_folder(folder, sizeof folder) ? folder : NULL;
    sl_kernels_choose(at, again, out);
}

static void say(const sl_kernel_choice *c, char *out, size_t cap) {
    size_t n = 0;
    if (c->from == SL_CHOICE_ALONE) n = (size_t)snprintf(out, cap, "nothing else runs here");
    if (c->from == SL_CHOICE_KEPT)
        n = (size_t)snprintf(out, cap, "as measured before: %s", c->file);
    if (c->from == SL_CHOICE_MEASURED)
        n = (size_t)snprintf(out, cap, "measured in %.0f ms", (double)c->took_ns * 1e-6);
    if (n < cap && c->trouble[0])
        snprintf(out + n, cap - n, ", not kept: %s", c->trouble);
    else if (n < cap && c->from == SL_CHOICE_MEASURED && c->file[0])
        snprintf(out + n, cap - n, ", kept in %s", c->file);
}

sl_status sl_deploy_kernels(const sl_options *o, char out[SL_KERNELS_SPEC_MAX], sl_err *err) {
    if (o->isa[0]) {
        if (strlen(o->isa) >= SL_KERNELS_SPEC_MAX || !sl_kernels_select(o->isa))
            return sl_fail(err, SL_ERR_ARG, "--isa: there are no kernels '%.200s' for this machine",
                           o->isa);
        snprintf(out, SL_KERNELS_SPEC_MAX, "%s", o->isa);
        return SL_OK;
    }
    sl_kernel_choice c;
    char why[4400];
    choose(o, false, &c);
    say(&c, why, sizeof why);
    /* the mix last: a message ends where it gets too long, and `sluice devices` shows all of it */
    sl_log(SL_LOG_INFO, "kernels", "%s: %s", why, c.spec);
    memcpy(out, c.spec, SL_KERNELS_SPEC_MAX);
    return SL_OK;
}

/* ---- sluice devices ---- */

static json_t *tables_json(void) {
    json_t *all = json_array();
    const sl_kernels *k;
    bool runs;
    for (size_t i = 0; (k = sl_kernels_at(i, &runs)) != NULL; i++)
        json_array_append_new(all, json_pack("{s:s, s:b, s:b}", "name", k->name, "runs", runs,
                                             "by_merit", k->by_merit));
    return all;
}

static json_t *slots_json(const sl_kernel_choice *c, const uint8_t from[SL_SLOTS]) {
    json_t *all = json_array();
    sl_slot slot;
    for (size_t s = 0; s < SL_SLOTS; s++) {
        const sl_kernels *k;
        json_t *ns = json_object();
        if (!sl_slot_at(s, &slot)) {
            json_decref(ns);
            continue;
        }
        for (size_t i = 0; (k = sl_kernels_at(i, NULL)) != NULL; i++)
            if (c->times.ns[s][i])
                json_object_set_new(ns, k->name, json_integer(c->times.ns[s][i]));
        json_array_append_new(all, json_pack("{s:s, s:s, s:o}", "kernel", slot.name, "table",
                                             sl_kernels_at(from[s], NULL)->name, "ns", ns));
    }
    return all;
}

static json_t *gpus_json(const sl_cuda_gpus *g) {
    json_t *all = json_array();
    for (uint32_t i = 0; i < g->n; i++) {
        const sl_cuda_gpu *x = &g->gpu[i];
        char device[24], capability[24];
        snprintf(device, sizeof device, "cuda:%u", x->index);
        snprintf(capability, sizeof capability, "%u.%u", x->major, x->minor);
        json_array_append_new(
            all, json_pack("{s:s, s:s, s:s, s:i, s:I, s:I, s:b, s:s}", "device", device, "name",
                           x->name, "compute_capability", capability, "multiprocessors",
                           (int)x->sms, "memory", (json_int_t)x->memory_bytes, "free",
                           (json_int_t)x->free_bytes, "usable", !x->why[0], "why", x->why));
    }
    return all;
}

static void print_gpus(const sl_cuda_gpus *g) {
    if (g->n == 0) printf("gpus     none: %s\n", g->why);
    for (uint32_t i = 0; i < g->n; i++) {
        const sl_cuda_gpu *x = &g->gpu[i];
        printf("cuda:%-3u %s, compute capability %u.%u, %u multiprocessors, %.1f of %.1f GB free, "
               "driver for CUDA %u.%u\n",
               x->index, x->name, x->major, x->minor, x->sms, (double)x->free_bytes * 1e-9,
               (double)x->memory_bytes * 1e-9, g->driver_major, g->driver_minor);
        if (x->why[0]) printf("         not used: %s\n", x->why);
    }
}

static void print_json(const char *cpu, const sl_kernel_choice *c, const char *why,
                       const sl_cuda_gpus *gpus, const uint8_t from[SL_SLOTS]) {
    static const char *const sources[] = {"alone", "measured", "kept"};
    json_t *all =
        json_pack("{s:s, s:o, s:s, s:s, s:s, s:s, s:f, s:o, s:o, s:s}", "cpu", cpu, "tables",
                  tables_json(), "isa", c->spec, "from", sources[c->from], "why", why, "file",
                  c->file, "measured_ms", (double)c->took_ns * 1e-6, "kernels", slots_json(c, from),
                  "gpus", gpus_json(gpus), "no_gpus", gpus->why);
    if (all) json_dumpf(all, stdout, JSON_INDENT(1) | JSON_PRESERVE_ORDER);
    printf("\n");
    json_decref(all);
}

static void print_text(const char *cpu, const sl_kernel_choice *c, const char *why,
                       const sl_cuda_gpus *gpus, const uint8_t from[SL_SLOTS]) {
    const sl_kernels *k;
    sl_slot slot;
    bool runs;
    printf("cpu      %s\ntables  ", cpu);
    for (size_t i = 0; (k = sl_kernels_at(i, &runs)) != NULL; i++)
        printf(" %s%s", k->name, runs ? "" : " (cannot run here)");
    printf("\n");
    print_gpus(gpus);
    printf("kernels  %s\nas       --isa %s\n", why, c->spec);
    for (size_t s = 0; s < SL_SLOTS; s++) {
        if (!sl_slot_at(s, &slot)) continue;
        printf("  %-22s %-10s", slot.name, sl_kernels_at(from[s], NULL)->name);
        for (size_t i = 0; (k = sl_kernels_at(i, NULL)) != NULL; i++)
            if (c->times.ns[s][i])
                printf("  %s %.2f us", k->name, (double)c->times.ns[s][i] * 1e-3);
        printf("\n");
    }
}

int cmd_devices(const sl_options *o) {
    sl_kernel_choice c;
    sl_cuda_gpus gpus;
    char cpu[128], why[4400];
    uint8_t from[SL_SLOTS];
    choose(o, o->remeasure, &c);
    sl_cpu_describe(cpu, sizeof cpu);
    sl_kernels_pick(&c.times, from);
    say(&c, why, sizeof why);
    sl_cuda_list_devices(&gpus);
    (o->json ? print_json : print_text)(cpu, &c, why, &gpus, from);
    sl_cuda_gpus_free(&gpus);
    return 0;
}
