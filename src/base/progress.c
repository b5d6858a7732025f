/* The line on a terminal about work that takes long. */
#include "base/progress.h"

#include "base/clock.h"
#include "base/log.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define ERASE        "\r\033[K"
#define PERIOD_NS    100000000u /* between two drawings */
#define SMOOTH_S     4.0        /* over which the rate is averaged */
#define FIRST_LEFT_S 1.0        /* until then nobody can say how long it takes */

void sl_progress_begin(sl_progress *p, const char *what, sl_progress_unit unit, bool wanted) {
    *p = (sl_progress){.unit = unit, .shown = wanted && isatty(STDERR_FILENO)};
    sl_progress_name(p, what);
}

/* Bytes by thousands; other things by millions, and below that as they are. */
static const char *scale_of(sl_progress_unit unit, double most, double *scale) {
    static const char *const bytes[] = {"B", "kB", "MB", "GB", "TB"};
    static const char *const steps[] = {"", "", "M", "G", "T"};
    size_t i = 0;
    for (*scale = 1; most >= 1000 * *scale && i + 1 < SL_LEN(bytes); i++) *scale *= 1000;
    if (unit == SL_PROGRESS_BYTES) return bytes[i];
    if (i == 1) *scale = 1;
    return steps[i];
}

void sl_progress_name(sl_progress *p, const char *what) {
    if (p) snprintf(p->what, sizeof p->what, "%s", what);
}

static void put_left(double seconds, char *out, size_t cap) {
    seconds = ceil(seconds);
    if (seconds < 60)
        snprintf(out, cap, "%.0f s left", seconds);
    else if (seconds < 3600)
        snprintf(out, cap, "%.0f min %02.0f s left", floor(seconds / 60), fmod(seconds, 60));
    else
        snprintf(out, cap, "%.0f h %02.0f min left", floor(seconds / 3600),
                 floor(fmod(seconds, 3600) / 60));
}

void sl_progress_text(const sl_progress *p, char *out, size_t cap) {
    char amount[64] = "", rate[48] = "", left[48] = "";
    double scale = 1, percent = 0;
    if (p->note[0]) {
        snprintf(out, cap, "%s: %s", p->what, p->note);
        return;
    }
    if (p->total) percent = 100 * (double)p->done / (double)p->total;
    const char *unit = scale_of(p->unit, (double)p->total, &scale);
    if (p->total)
        snprintf(amount, sizeof amount, "%.*f of %.*f%s%s, ", scale > 1, (double)p->done / scale,
                 scale > 1, (double)p->total / scale, unit[0] ? " " : "", unit);
    unit = scale_of(p->unit, p->rate, &scale);
    if (p->unit == SL_PROGRESS_BYTES && p->rate > 0)
        snprintf(rate, sizeof rate, ", %.1f %s/s", p->rate / scale, unit);
    bool known = p->rate > 0 && p->last_ns - p->begun_ns > (uint64_t)(FIRST_LEFT_S * 1e9);
    if (known && p->total > p->done) {
        left[0] = ',', left[1] = ' ';
        put_left((double)(p->total - p->done) / p->rate, left + 2, sizeof left - 2);
    }
    snprintf(out, cap, "%s: %s%.0f %%%s%s", p->what, amount, floor(percent), rate, left);
}

static void draw(sl_progress *p) {
    char text[320];
    struct winsize size;
    bool known = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
    sl_progress_text(p, text, sizeof text);
    fprintf(stderr, ERASE "%.*s", known ? size.ws_col - 1 : 79, text);
    fflush(stderr);
    if (!p->drawn) sl_log_set_erase(true);
    p->drawn = true;
}

void sl_progress_set(void *ctx, uint64_t done, uint64_t total) {
    sl_progress *p = ctx;
    if (!p) return;
    uint64_t now = sl_now_ns();
    p->done = done;
    p->total = total;
    if (!p->last_ns) { /* what was there before says nothing about the rate */
        p->begun_ns = p->last_ns = now;
        p->last_done = done;
    }
    if (now - p->last_ns < PERIOD_NS) return;
    double s = (double)(now - p->last_ns) / 1e9;
    double moved = done > p->last_done ? (double)(done - p->last_done) : 0;
    double share = p->rate > 0 ? 1 - exp(-s / SMOOTH_S) : 1;
    p->rate += share * (moved / s - p->rate);
    p->last_ns = now;
    p->last_done = done;
    if (p->shown) draw(p);
}

void sl_progress_say(sl_progress *p, const char *note) {
    if (!p || strcmp(p->note, note) == 0) return;
    snprintf(p->note, sizeof p->note, "%s", note);
    if (p->shown && note[0]) draw(p);
}

void sl_progress_end(sl_progress *p) {
    if (!p || !p->drawn) return;
    fputs(ERASE, stderr);
    fflush(stderr);
    sl_log_set_erase(false);
    p->drawn = false;
}
