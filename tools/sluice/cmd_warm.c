#include "cmd.h"

#include "base/clock.h"
#include "format/checkpoint.h"
#include "format/warm.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define WANTED 0.9 /* share in large pages below which a file is read again */

static void progress(void *ctx, uint64_t done, uint64_t total) {
    const char *path = ctx;
    fprintf(stderr, "\r%3d %% of %.60s", (int)(total ? done * 100 / total : 100), path);
    if (done == total) fprintf(stderr, "\r%80s\r", "");
}

static void print_json(const sl_warm_report *r, const char *path, bool first) {
    printf("%s{\"file\": ", first ? "" : ", ");
    sl_print_json_string(stdout, path, strlen(path));
    printf(", \"bytes\": %llu, \"huge_before\": %llu, \"huge\": %llu, \"read_again\": %s}",
           (unsigned long long)r->bytes, (unsigned long long)r->huge_before,
           (unsigned long long)r->huge, r->again ? "true" : "false");
}

static void print_text(const sl_warm_report *r, const char *path, double s) {
    double bytes = (double)SL_MAX(r->bytes, 1);
    printf("%s: %.1f MB, %.0f %% in pages of 2 MB", path, (double)r->bytes / 1e6,
           100 * (double)r->huge / bytes);
    if (r->again) printf(" (%.0f %% before)", 100 * (double)r->huge_before / bytes);
    printf(", %.1f s\n", s);
    if (r->again && (double)r->huge < WANTED * (double)r->bytes)
        printf("  the system keeps no large pages of this file, or another process holds it\n");
}

int cmd_warm(const sl_options *o) {
    sl_err err = {0};
    sl_checkpoint *c = NULL;
    bool show = !o->json && isatty(STDERR_FILENO);
    sl_status st = sl_ckpt_open(o->arg[0], &c, &err);
    if (st == SL_OK && o->json) printf("[");
    for (uint32_t i = 0; st == SL_OK && i < sl_ckpt_files(c); i++) {
        const char *path = sl_ckpt_path(c, i);
        uint64_t start = sl_now_ns();
        sl_warm_report r;
        st = sl_warm_file(path, WANTED, show ? progress : NULL, (void *)path, &r, &err);
        if (st != SL_OK) break;
        if (o->json)
            print_json(&r, path, i == 0);
        else
            print_text(&r, path, (double)(sl_now_ns() - start) / 1e9);
        fflush(stdout);
    }
    if (st == SL_OK && o->json) printf("]\n");
    sl_ckpt_free(c);
    return st == SL_OK ? 0 : sl_cmd_fail("warm", &err);
}
