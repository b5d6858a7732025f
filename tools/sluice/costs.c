/* What stages and links cost: as data sheets, options and profiles say it. */
#include "cmd.h"

#include "format/presets.h"
#include "format/profile_file.h"
#include "format/shape_config.h"
#include "net/transports.h"
#include "plan/roofline.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

sl_costs sl_data_sheet_costs(const sl_device_type *d, const sl_shape *s) {
    const sl_roofline r = {
        .device = d, .compute = SL_COMPUTE_BF16, .work = {.tp = 1, .activation_bytes = 2}};
    const sl_link_tier link = {.bandwidth = 25e9, .latency_us = 10};
    return sl_roofline_costs(s, &r, &link);
}

const sl_device_type *sl_data_sheet_named(const char *device) {
    static const char emulated[] = "emulated:";
    if (strncmp(device, emulated, sizeof emulated - 1) != 0) return NULL;
    const char *name = device + sizeof emulated - 1;
    return access(name, F_OK) == 0 ? NULL : sl_preset_device(name);
}

sl_status sl_data_sheet_device(const sl_device_type *d, const char *model, sl_device_spec *out,
                               sl_err *err) {
    sl_shape shape;
    sl_status st = sl_shape_open(model, &shape, err);
    if (st != SL_OK) return st;
    const sl_costs c = sl_data_sheet_costs(d, &shape);
    *out = (sl_device_spec){.kind = SL_DEVICE_EMULATED, .time_scale = 1, .grouped = c.grouped};
    memcpy(out->cost, c.stage, sizeof out->cost);
    return SL_OK;
}

sl_status sl_link_parse(const char *option, const char *others, const char *text, sl_link_cost *out,
                        sl_err *err) {
    double us = 0, gbit = 0;
    char rest;
    if (sscanf(text, "%lf:%lf%c", &us, &gbit, &rest) != 2 || !(us >= 0) || !(us <= 1e9) ||
        !(gbit > 0) || !(gbit <= 1e6))
        return sl_fail(err, SL_ERR_ARG, "%s: '%.40s' is not US:GBIT, as 50:25%s", option, text,
                       others);
    *out = (sl_link_cost){.alpha_us = us, .byte_us = 0.008 / gbit};
    return SL_OK;
}

const sl_link_cost *sl_link_of_profile(const sl_profile *p, bool between, sl_link_cost *out) {
    sl_costs costs;
    sl_err none;
    const sl_transport_kind *kind;
    for (size_t i = 0; (kind = sl_transport_at(i)) != NULL; i++) {
        const char *name = between ? kind->machines : kind->name;
        if (!name || sl_profile_costs(p, name, 1, &costs, &none) != SL_OK) continue;
        *out = costs.link;
        return out;
    }
    return NULL;
}
