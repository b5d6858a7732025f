/* GET /plan/options: what POST /plan takes, so that a form can offer it. */
#include "serve/plan.h"

#include "base/mem.h"
#include "format/cluster_file.h"
#include "format/presets.h"

#include <inttypes.h>
#include <stdio.h>

static const char *const schedules[] = {
#define SL_SCHEDULE(id, name, where, how, lanes, chunks, chunking, anew) name,
#define SL_PLANNED(id, name, why)                                        name,
#include "spec/schedules.def"
#undef SL_SCHEDULE
#undef SL_PLANNED
};

bool sl_plan_measured_cluster(const sl_profile *costs, char *out, size_t cap) {
    bool links = costs->n_links > 0 && costs->threads > 0;
    uint32_t workers = links ? SL_MAX(1u, costs->cores / costs->threads) : 1;
    /* what was measured replaces all but the memory */
    int n = snprintf(out, cap,
                     "{\"name\": \"this-machine\", \"devices\": {\"CPU\": {\"base\": \"EPYC\", "
                     "\"memory\": \"%.0fMB\"}}, \"nodes\": [{\"device\": \"CPU\", "
                     "\"devices_per_node\": %" PRIu32 ", \"count\": 1, \"intra\": {\"bandwidth\": "
                     "\"5GB/s\", \"latency\": \"20us\"}}]}",
                     costs->memory_bytes / 1e6 / workers, workers);
    return n > 0 && (size_t)n < cap;
}

static void put_names(sl_jbuf *b, const char *(*name)(size_t)) {
    for (size_t i = 0; name(i); i++) {
        if (i) sl_jbuf_put(b, ",", 1);
        sl_jbuf_cstring(b, name(i));
    }
}

/* As the form has it: GB/s within a node, Gbit/s between nodes. */
static void put_group(sl_jbuf *b, const sl_cluster *c, const sl_node_group *g) {
    sl_jbuf_fmt(b, "{\"device\":");
    sl_jbuf_cstring(b, c->type[g->type].name);
    sl_jbuf_fmt(b,
                ",\"devices_per_node\":%" PRIu32 ",\"count\":%" PRIu32
                ",\"intra\":[%.6g,%.6g],\"inter\":[%.6g,%.6g]}",
                g->devices_per_node, g->count, g->intra.bandwidth / 1e9, g->intra.latency_us,
                g->inter.bandwidth * 8 / 1e9, g->inter.latency_us);
}

static void put_cluster(sl_jbuf *b, const char *name, sl_cluster *c) {
    const char *text = sl_preset_cluster_text(name);
    sl_err err;
    sl_span span = {(const uint8_t *)text, strlen(text)};
    sl_status st = sl_cluster_parse(name, name, span, c, &err);
    SL_ASSERT(st == SL_OK); /* a preset */
    sl_jbuf_fmt(b, "{\"name\":");
    sl_jbuf_cstring(b, name);
    sl_jbuf_fmt(b, ",\"nodes\":[");
    bool priced = true;
    for (uint32_t i = 0; i < c->n_groups; i++) {
        if (i) sl_jbuf_put(b, ",", 1);
        put_group(b, c, &c->group[i]);
        priced = priced && c->type[c->group[i].type].price_per_hour > 0;
    }
    sl_jbuf_fmt(b, "],\"priced\":%s}", priced ? "true" : "false");
}

static void put_devices(sl_jbuf *b) {
    for (size_t i = 0; sl_preset_device_name(i); i++) {
        const sl_device_type *d = sl_preset_device(sl_preset_device_name(i));
        sl_jbuf_fmt(b, "%s{\"name\":", i ? "," : "");
        sl_jbuf_cstring(b, d->name);
        sl_jbuf_fmt(b, ",\"memory_bytes\":%.0f,\"price\":%.6g}", d->memory_bytes,
                    d->price_per_hour);
    }
}

static void put_measured(sl_jbuf *b, const sl_plan_offer *offer) {
    char cluster[1024];
    if (!offer->profile || !sl_plan_measured_cluster(offer->costs, cluster, sizeof cluster)) {
        sl_jbuf_put(b, "null", 4);
        return;
    }
    sl_jbuf_fmt(b, "{\"model\":");
    sl_jbuf_cstring(b, offer->costs->model);
    sl_jbuf_fmt(b, ",\"machine\":");
    sl_jbuf_cstring(b, offer->costs->machine);
    sl_jbuf_fmt(b, ",\"threads\":%" PRIu32 ",\"cluster\":%s}", offer->costs->threads, cluster);
}

void sl_plan_catalogue(const sl_plan_offer *offer, sl_jbuf *b) {
    sl_cluster *c = sl_alloc(1, sizeof *c);
    b->ok = b->ok && c;
    sl_jbuf_fmt(b, "{\"model\":");
    sl_jbuf_cstring(b, offer->model);
    sl_jbuf_fmt(b, ",\"models\":[");
    put_names(b, sl_preset_model_name);
    sl_jbuf_fmt(b, "],\"clusters\":[");
    for (size_t i = 0; c && sl_preset_cluster_name(i); i++) {
        if (i) sl_jbuf_put(b, ",", 1);
        put_cluster(b, sl_preset_cluster_name(i), c);
    }
    sl_jbuf_fmt(b, "],\"devices\":[");
    put_devices(b);
    sl_jbuf_fmt(b, "],\"workloads\":[");
    put_names(b, sl_preset_workload_name);
    sl_jbuf_fmt(b, "],\"objectives\":[\"tok/s\",\"tok/s/device\",\"tok/s/$\"],\"schedules\":[");
    for (size_t i = 0; i < SL_LEN(schedules); i++)
        sl_jbuf_fmt(b, "%s\"%s\"", i ? "," : "", schedules[i]);
    sl_jbuf_fmt(b, "],\"measured\":");
    put_measured(b, offer);
    sl_jbuf_fmt(b, ",\"limits\":{\"devices\":%u,\"seconds\":%u}}", SL_PLAN_MAX_DEVICES,
                offer->seconds);
    sl_free(c);
}
