/* Descriptions of clusters from YAML or JSON. */
#include "format/cluster_file.h"

#include "format/map.h"
#include "format/presets.h"
#include "format/yaml.h"

#include <stdio.h>
#include <sys/stat.h>

#define MAX_MEMORY    1e15
#define MAX_BANDWIDTH 1e15
#define MAX_FLOPS     1e18
#define MAX_PRICE     1e6
#define MAX_US        1e7
#define MAX_PER_NODE  4096u

static const char *const compute_keys[SL_COMPUTE_COUNT] = {"f32", "bf16", "fp8", "int8"};

/* ---- devices ---- */

static sl_status read_device(sl_yaml v, const char *name, sl_device_type *out, sl_err *err) {
    static const char *const keys[] = {"base",
                                       "memory",
                                       "bandwidth",
                                       "price",
                                       "f32",
                                       "bf16",
                                       "fp8",
                                       "int8",
                                       "flops_efficiency",
                                       "bandwidth_efficiency",
                                       "launch",
                                       "cpu"};
    sl_device_type d = {.flops_efficiency = 0.7, .bandwidth_efficiency = 0.8, .launch_us = 10};
    const char *base = NULL;
    sl_status st = sl_yaml_only(v, keys, SL_LEN(keys), err);
    if (st == SL_OK) st = sl_yaml_string(v, "base", SL_JSON_OPTIONAL, &base, err);
    if (st == SL_OK && base) {
        const sl_device_type *preset = sl_preset_device(base);
        if (!preset)
            return sl_yaml_fail(v, "base", err, SL_ERR_NOTFOUND, "\"%.40s\" is no known device",
                                base);
        d = *preset;
    }
    sl_json_need need = base ? SL_JSON_OPTIONAL : SL_JSON_REQUIRED;
    snprintf(d.name, sizeof d.name, "%s", name);
    if (st == SL_OK)
        st = sl_yaml_f64(v, "memory", need, SL_UNIT_BYTES, 1e6, MAX_MEMORY, &d.memory_bytes, err);
    if (st == SL_OK)
        st = sl_yaml_f64(v, "bandwidth", need, SL_UNIT_BYTES_PER_S, 1e6, MAX_BANDWIDTH,
                         &d.bandwidth, err);
    for (size_t i = 0; st == SL_OK && i < SL_COMPUTE_COUNT; i++)
        st = sl_yaml_f64(v, compute_keys[i], SL_JSON_OPTIONAL, SL_UNIT_FLOPS, 1e6, MAX_FLOPS,
                         &d.flops[i], err);
    if (st == SL_OK)
        st = sl_yaml_f64(v, "price", SL_JSON_OPTIONAL, SL_UNIT_NONE, 0, MAX_PRICE,
                         &d.price_per_hour, err);
    if (st == SL_OK)
        st = sl_yaml_f64(v, "flops_efficiency", SL_JSON_OPTIONAL, SL_UNIT_NONE, 0.001, 1,
                         &d.flops_efficiency, err);
    if (st == SL_OK)
        st = sl_yaml_f64(v, "bandwidth_efficiency", SL_JSON_OPTIONAL, SL_UNIT_NONE, 0.001, 1,
                         &d.bandwidth_efficiency, err);
    if (st == SL_OK)
        st = sl_yaml_f64(v, "launch", SL_JSON_OPTIONAL, SL_UNIT_US, 0, MAX_US, &d.launch_us, err);
    if (st == SL_OK) st = sl_yaml_bool(v, "cpu", SL_JSON_OPTIONAL, &d.cpu, err);
    if (st == SL_OK && d.flops[SL_COMPUTE_F32] <= 0 && d.flops[SL_COMPUTE_BF16] <= 0)
        return sl_yaml_fail(v, NULL, err, SL_ERR_FORMAT, "device %.40s needs f32 or bf16", name);
    /* Every format falls back to a wider one; the widest may be the only one stated. */
    if (d.flops[SL_COMPUTE_F32] <= 0) d.flops[SL_COMPUTE_F32] = d.flops[SL_COMPUTE_BF16] / 2;
    if (st == SL_OK) *out = d;
    return st;
}

/* Index of the type of that name, added from the file's devices or the presets on first use. */
static sl_status find_type(sl_yaml root, sl_yaml node, const char *name, sl_cluster *c,
                           uint32_t *out, sl_err *err) {
    sl_yaml own = sl_yaml_get(sl_yaml_get(root, "devices"), name);
    const sl_device_type *preset = sl_preset_device(name);
    for (uint32_t i = 0; i < c->n_types; i++) {
        if (strcmp(c->type[i].name, own.doc || !preset ? name : preset->name) != 0) continue;
        *out = i;
        return SL_OK;
    }
    if (c->n_types == SL_CLUSTER_MAX_TYPES)
        return sl_yaml_fail(node, "device", err, SL_ERR_LIMIT, "more than %u kinds of devices",
                            SL_CLUSTER_MAX_TYPES);
    *out = c->n_types;
    if (own.doc) {
        sl_status st = read_device(own, name, &c->type[c->n_types], err);
        if (st != SL_OK) return st;
    } else if (preset) {
        c->type[c->n_types] = *preset;
    } else {
        return sl_yaml_fail(node, "device", err, SL_ERR_NOTFOUND,
                            "\"%.40s\" is neither under devices nor known by name", name);
    }
    c->n_types++;
    return SL_OK;
}

/* Types that no node uses are checked as well: an error there would show up too late. */
static sl_status check_devices(sl_yaml root, sl_err *err) {
    sl_yaml devices = {0};
    sl_device_type unused;
    sl_status st = sl_yaml_child(root, "devices", SL_JSON_OPTIONAL, SL_YAML_MAP, &devices, err);
    for (size_t i = 0; st == SL_OK && i < sl_yaml_count(devices); i++) {
        const char *name = sl_yaml_key_at(devices, i);
        if (!*name || strlen(name) >= SL_CLUSTER_NAME)
            return sl_yaml_fail(sl_yaml_at(devices, i), NULL, err, SL_ERR_LIMIT,
                                "the device's name has %zu bytes, allowed: 1 to %d", strlen(name),
                                SL_CLUSTER_NAME - 1);
        st = read_device(sl_yaml_at(devices, i), name, &unused, err);
    }
    return st;
}

/* ---- nodes ---- */

static sl_status read_tier(sl_yaml node, const char *key, bool needed, sl_link_tier *out,
                           sl_err *err) {
    static const char *const keys[] = {"bandwidth", "latency", "duplex", "half_size"};
    sl_yaml v = {0};
    const char *duplex = "full";
    sl_link_tier t = {0};
    sl_status st = sl_yaml_child(node, key, needed ? SL_JSON_REQUIRED : SL_JSON_OPTIONAL,
                                 SL_YAML_MAP, &v, err);
    if (st != SL_OK || !v.doc) return st;
    st = sl_yaml_only(v, keys, SL_LEN(keys), err);
    if (st == SL_OK)
        st = sl_yaml_f64(v, "bandwidth", SL_JSON_REQUIRED, SL_UNIT_BYTES_PER_S, 1e3, MAX_BANDWIDTH,
                         &t.bandwidth, err);
    if (st == SL_OK)
        st = sl_yaml_f64(v, "latency", SL_JSON_REQUIRED, SL_UNIT_US, 0, MAX_US, &t.latency_us, err);
    if (st == SL_OK)
        st = sl_yaml_f64(v, "half_size", SL_JSON_OPTIONAL, SL_UNIT_BYTES, 0, 1e12, &t.half_bytes,
                         err);
    if (st == SL_OK) st = sl_yaml_string(v, "duplex", SL_JSON_OPTIONAL, &duplex, err);
    if (st != SL_OK) return st;
    t.half_duplex = strcmp(duplex, "half") == 0;
    if (!t.half_duplex && strcmp(duplex, "full") != 0)
        return sl_yaml_fail(v, "duplex", err, SL_ERR_FORMAT, "\"%.40s\" is neither full nor half",
                            duplex);
    *out = t;
    return SL_OK;
}

static sl_status read_group(sl_yaml root, sl_yaml v, sl_cluster *c, sl_node_group *g, sl_err *err) {
    static const char *const keys[] = {"device", "devices_per_node", "count", "intra", "inter"};
    const char *device = NULL;
    uint64_t per_node = 1, count = 1;
    sl_status st = sl_yaml_only(v, keys, SL_LEN(keys), err);
    if (st == SL_OK) st = sl_yaml_string(v, "device", SL_JSON_REQUIRED, &device, err);
    if (st == SL_OK)
        st = sl_yaml_u64(v, "devices_per_node", SL_JSON_REQUIRED, 1, MAX_PER_NODE, &per_node, err);
    if (st == SL_OK)
        st = sl_yaml_u64(v, "count", SL_JSON_REQUIRED, 1, SL_CLUSTER_MAX_NODES, &count, err);
    g->devices_per_node = (uint32_t)per_node;
    g->count = (uint32_t)count;
    if (st == SL_OK) st = read_tier(v, "intra", per_node > 1, &g->intra, err);
    if (st == SL_OK) st = find_type(root, v, device, c, &g->type, err);
    return st;
}

static sl_status read_nodes(sl_yaml root, sl_cluster *c, sl_err *err) {
    sl_yaml list = {0};
    uint64_t nodes = 0;
    sl_status st = sl_yaml_child(root, "nodes", SL_JSON_REQUIRED, SL_YAML_LIST, &list, err);
    size_t n = sl_yaml_count(list);
    if (st == SL_OK && (n == 0 || n > SL_CLUSTER_MAX_GROUPS))
        return sl_yaml_fail(root, "nodes", err, SL_ERR_LIMIT, "%zu entries, allowed: 1 to %u", n,
                            SL_CLUSTER_MAX_GROUPS);
    for (size_t i = 0; st == SL_OK && i < n; i++) {
        st = read_group(root, sl_yaml_at(list, i), c, &c->group[i], err);
        nodes += c->group[i].count;
    }
    c->n_groups = (uint32_t)n;
    for (size_t i = 0; st == SL_OK && i < n; i++) {
        sl_node_group *g = &c->group[i];
        /* A tier that nothing uses costs nothing; it is never zero, so that nobody divides by it.
         */
        const sl_link_tier unused = {.bandwidth = c->type[g->type].bandwidth};
        st = read_tier(sl_yaml_at(list, i), "inter", nodes > 1, &g->inter, err);
        if (g->inter.bandwidth <= 0) g->inter = g->intra.bandwidth > 0 ? g->intra : unused;
        if (g->intra.bandwidth <= 0) g->intra = g->inter;
    }
    return st;
}

sl_status sl_cluster_parse(const char *file, const char *name, sl_span text, sl_cluster *out,
                           sl_err *err) {
    static const char *const keys[] = {"name", "devices", "nodes"};
    sl_yaml_doc *doc = NULL;
    sl_yaml root;
    sl_cluster c = {0};
    sl_status st = sl_yaml_parse(file, text, &doc, err);
    if (st != SL_OK) return st;
    root = sl_yaml_root(doc);
    st = sl_yaml_only(root, keys, SL_LEN(keys), err);
    const char *own = name;
    if (st == SL_OK) st = sl_yaml_string(root, "name", SL_JSON_OPTIONAL, &own, err);
    if (st == SL_OK && own != name && (!*own || strlen(own) >= SL_CLUSTER_NAME))
        st = sl_yaml_fail(root, "name", err, SL_ERR_LIMIT, "%zu bytes, allowed: 1 to %d",
                          strlen(own), SL_CLUSTER_NAME - 1);
    snprintf(c.name, sizeof c.name, "%s", own);
    if (st == SL_OK) st = check_devices(root, err);
    if (st == SL_OK) st = read_nodes(root, &c, err);
    if (st == SL_OK) *out = c;
    sl_yaml_doc_free(doc);
    return st;
}

sl_status sl_cluster_open(const char *path_or_name, sl_cluster *out, sl_err *err) {
    struct stat info;
    sl_map map = {0};
    if (stat(path_or_name, &info) == 0) {
        sl_status st = sl_map_open(path_or_name, SL_YAML_MAX_BYTES, &map, err);
        if (st == SL_OK) st = sl_cluster_parse(path_or_name, path_or_name, map.bytes, out, err);
        sl_map_close(&map);
        return st;
    }
    const char *text = sl_preset_cluster_text(path_or_name);
    if (text) {
        sl_span span = {(const uint8_t *)text, strlen(text)};
        return sl_cluster_parse(path_or_name, path_or_name, span, out, err);
    }
    char names[320] = "";
    for (size_t i = 0; sl_preset_cluster_name(i); i++) {
        size_t at = strlen(names);
        snprintf(names + at, sizeof names - at, "%s%s", i ? ", " : "", sl_preset_cluster_name(i));
    }
    return sl_fail(err, SL_ERR_NOTFOUND, "'%.150s' is no file and no preset (%s)", path_or_name,
                   names);
}
