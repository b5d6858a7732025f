/* A recorded run: its figures, or a picture of it. */
#include "cmd.h"

#include "base/output.h"
#include "trace/trace_stats.h"
#include "trace/trace_svg.h"

#include <string.h>

static sl_status draw(const sl_options *o, double from_us, double to_us, sl_err *err) {
    sl_output out;
    sl_status st = sl_output_open(o->svg, &out, err);
    if (st != SL_OK) return st;
    st = sl_trace_svg_write(o->arg[0], from_us, to_us, out.f, err);
    return sl_output_end(&out, st, err);
}

int cmd_trace(const sl_options *o) {
    sl_err err = {0};
    sl_trace_stats s = {0};
    sl_status st = SL_OK;
    double from_us = o->from_ms < 0 ? -1 : o->from_ms * 1e3;
    double to_us = o->to_ms < 0 ? -1 : o->to_ms * 1e3;
    bool stats = o->stats || o->json || !o->svg[0];
    if (strcmp(o->svg, "-") == 0 && stats)
        st = sl_fail(&err, SL_ERR_ARG, "--svg -: --stats and --json write to stdout, too");
    if (st == SL_OK && o->svg[0]) st = draw(o, from_us, to_us, &err);
    if (st == SL_OK && stats) st = sl_trace_stats_read(o->arg[0], from_us, to_us, &s, &err);
    if (st == SL_OK && stats) {
        if (o->json)
            sl_trace_stats_print_json(&s, stdout);
        else
            sl_trace_stats_print(&s, stdout);
    }
    sl_trace_stats_free(&s);
    return st == SL_OK ? 0 : sl_cmd_fail("trace", &err);
}
