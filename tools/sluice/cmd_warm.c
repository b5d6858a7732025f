/* sluice warm: a model's files into the page cache. */
#include "cmd.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/progress.h"
#include "format/checkpoint.h"
#include "format/warm.h"

#include <stdio.h>
#include <string.h>

#define WANTED 0.9 /* share in large pages below which a file is read again */

static void print_json(const sl_warm_report *r, const char *path, bool first) {
    printf("%s{\"file\": ", first ? "" : ", ");
    sl_print_json_string(stdout, path, strlen(path));
    printf(", \"bytes\": %llu, \"huge_before\": %llu, \"huge\": %llu, \"read_again\": %s}",
           (unsigned long long)r->bytes, (unsigned long long)r->huge_before,
           (unsigned long long)r->huge, r->again ? "true" : "false");
}

static void print_text(const sl_warm_report *r, const char *path, double s) {
    double bytes = (double)SL_MAX(r->bytes, 1);
    if (r->possible == 0) {
        printf("%s: %.1f MB, too small for pages of 2 MB, %.1f s\n", path, (double)r->bytes / 1e6,
               s);
        return;
    }
    printf("%s: %.1f MB, %.0f %% in pages of 2 MB", path, (double)r->bytes / 1e6,
           100 * (double)r->huge / bytes);
    if (r->again) printf(" (%.0f %% before)", 100 * (double)r->huge_before / bytes);
    printf(", %.1f s\n", s);
    if ((double)r->huge < WANTED * (double)r->possible)
        printf("  the system keeps no large pages of this file, or another process holds it\n");
}

/* Where reading a file again brought nothing, it brings the next ones nothing. */
static sl_status warm_files(const sl_checkpoint *c, bool json, sl_warm_report *report,
                            sl_err *err) {
    sl_progress line;
    double want = WANTED;
    for (uint32_t i = 0; i < sl_ckpt_files(c); i++) {
        const char *path = sl_ckpt_path(c, i);
        uint64_t start = sl_now_ns();
        sl_warm_report *r = &report[i];
        const char *slash = strrchr(path, '/');
        sl_progress_begin(&line, slash ? slash + 1 : path, SL_PROGRESS_BYTES, !json);
        sl_status st = sl_warm_file(path, want, sl_progress_set, &line, r, err);
        sl_progress_end(&line);
        if (st != SL_OK) return st;
        if (r->again && r->huge == 0) want = 0;
        if (json) continue;
        print_text(r, path, (double)(sl_now_ns() - start) / 1e9);
        fflush(stdout);
    }
    return SL_OK;
}

int cmd_warm(const sl_options *o) {
    sl_err err = {0};
    sl_checkpoint *c = NULL;
    sl_warm_report *report = NULL;
    sl_status st = sl_ckpt_open(o->arg[0], &c, &err);
    if (st == SL_OK && !(report = sl_alloc(sl_ckpt_files(c), sizeof *report)))
        st = sl_fail(&err, SL_ERR_NOMEM, "reports of %u files", sl_ckpt_files(c));
    if (st == SL_OK) st = warm_files(c, o->json, report, &err);
    if (st == SL_OK && o->json) {
        printf("[");
        for (uint32_t i = 0; i < sl_ckpt_files(c); i++)
            print_json(&report[i], sl_ckpt_path(c, i), i == 0);
        printf("]\n");
    }
    sl_free(report);
    sl_ckpt_free(c);
    return st == SL_OK ? 0 : sl_cmd_fail("warm", &err);
}
