/* A recorded run: its figures, or a picture of it. */
#include "cmd.h"

#include "trace/trace_stats.h"
#include "trace/trace_svg.h"

#include <errno.h>
#include <string.h>

static sl_status draw(const sl_options *o, double from_us, double to_us, sl_err *err) {
    bool to_stdout = strcmp(o->svg, "-") == 0;
    FILE *f = to_stdout ? stdout : fopen(o->svg, "we");
    if (!f) return sl_fail(err, SL_ERR_IO, "%s: %s", o->svg, strerror(errno));
    sl_status st = sl_trace_svg_write(o->arg[0], from_us, to_us, f, err);
    if (st == SL_OK && (fflush(f) != 0 || ferror(f)))
        st = sl_fail(err, SL_ERR_IO, "%s: %s", o->svg, strerror(errno));
    if (!to_stdout) fclose(f);
    if (st != SL_OK && !to_stdout) remove(o->svg);
    return st;
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
