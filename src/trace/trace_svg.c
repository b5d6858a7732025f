/* A run's timeline as a picture. */
#include "trace/trace_svg.h"

#include "base/mem.h"
#include "trace/trace_file.h"
#include "trace/trace_paint.h"
#include "trace/trace_stats.h"

#include <math.h>
#include <string.h>

#define LEFT     150.0
#define PLOT     1200.0
#define RIGHT    20.0
#define TOP      58.0
#define WORKER_H 26.0
#define LINK_H   14.0
#define DEVICE_H 18.0
#define GAP      7.0
#define LEGEND_H 20.0
/* Spans of one kind that are this near and this narrow are drawn as one. */
#define NEAR   0.3
#define NARROW 3.0
/* Nothing narrower than this is drawn beside something else. */
#define INVISIBLE 0.12

/* A rectangle that may still grow, one a row. */
typedef struct strip {
    bool used;
    uint32_t paint, shade;
    double x0, x1, drawn_to;
    char label[40], title[160];
} strip;

typedef struct picture {
    FILE *f;
    const sl_trace_outline *o;
    double from_us, to_us, scale; /* pixels a microsecond */
    strip *strip;                 /* [rows] */
    double *y;                    /* [rows] */
    bool seen[SL_TRACE_PAINTS];
} picture;

static double row_height(const sl_trace_row *r) {
    if (r->pid == SL_TRACE_LINKS_PID) return LINK_H;
    return r->tid == SL_TRACE_DEVICE_TID ? DEVICE_H : WORKER_H;
}

static void put_text(FILE *f, const char *text) {
    for (const char *c = text; *c; c++) {
        if (*c == '&')
            fputs("&amp;", f);
        else if (*c == '<')
            fputs("&lt;", f);
        else if (*c == '>')
            fputs("&gt;", f);
        else
            fputc(*c, f);
    }
}

static bool is_dark(uint32_t rgb) {
    return 0.3 * (rgb >> 16) + 0.59 * (rgb >> 8 & 0xFF) + 0.11 * (rgb & 0xFF) < 125;
}

/* ---- spans ---- */

static void flush_strip(picture *p, size_t row) {
    strip *s = &p->strip[row];
    double width = s->x1 - s->x0;
    if (!s->used) return;
    s->used = false;
    if (width < INVISIBLE && s->x0 - s->drawn_to < INVISIBLE) return;
    double h = row_height(&p->o->row[row]);
    fprintf(p->f, "<rect class=\"c%u_%u\" x=\"%.2f\" y=\"%.0f\" width=\"%.2f\" height=\"%.0f\"",
            s->paint, s->shade, s->x0, p->y[row], SL_MAX(width, INVISIBLE), h);
    if (s->title[0]) {
        fputs("><title>", p->f);
        put_text(p->f, s->title);
        fputs("</title></rect>\n", p->f);
    } else {
        fputs("/>\n", p->f);
    }
    double chars = (double)strlen(s->label);
    if (chars > 0 && width > 6.2 * chars + 3) {
        bool dark = is_dark(sl_trace_shaded(sl_trace_paints[s->paint].rgb, s->shade));
        fprintf(p->f, "<text class=\"l%s\" x=\"%.2f\" y=\"%.1f\">", dark ? " w" : "",
                s->x0 + width / 2, p->y[row] + h / 2 + 4);
        put_text(p->f, s->label);
        fputs("</text>\n", p->f);
    }
    s->drawn_to = s->x0 + SL_MAX(width, INVISIBLE);
}

/* Layer, then micro-batch and chunk where there are several. */
static void label_of(const picture *p, const sl_trace_item *it, char *out, size_t cap) {
    static const char *const whole[] = {"embed", "head", "sample", "mtp", "graph"};
    bool layered = it->rows > 0;
    int n = snprintf(out, cap, "%s", "");
    for (size_t i = 0; i < SL_LEN(whole); i++) layered &= strcmp(it->name, whole[i]) != 0;
    if (layered) n = snprintf(out, cap, "%u", it->layer);
    if (n > 0 && p->o->lanes > 1) n += snprintf(out + n, cap - (size_t)n, "/%u", it->lane);
    if (n > 0 && p->o->chunks > 1) snprintf(out + n, cap - (size_t)n, ".%u", it->chunk);
}

static void add_span(picture *p, size_t row, const sl_trace_item *it) {
    bool link = it->pid == SL_TRACE_LINKS_PID;
    uint32_t colour = link ? sl_trace_paint_of("link", sl_trace_category_name(SL_TRACE_CAT_NOTE))
                           : sl_trace_paint_of(it->name, it->category);
    if (colour == SL_TRACE_PAINTS) return; /* idle */
    bool lanes = p->o->lanes > 1 && (link || sl_trace_paints[colour].category <= SL_TRACE_CAT_SEND);
    uint32_t shade = lanes ? it->lane % SL_TRACE_SHADES : 0;
    double x0 = LEFT + (SL_MAX(it->begin_us, p->from_us) - p->from_us) * p->scale;
    double x1 = LEFT + (SL_MIN(it->end_us, p->to_us) - p->from_us) * p->scale;
    strip *s = &p->strip[row];
    p->seen[colour] = true;
    if (s->used && s->paint == colour && s->shade == shade && x0 - s->x1 < NEAR && x0 >= s->x0 &&
        s->x1 - s->x0 < NARROW && x1 - x0 < NARROW) {
        s->x1 = SL_MAX(s->x1, x1);
        s->label[0] = s->title[0] = '\0';
        return;
    }
    flush_strip(p, row);
    s->used = true;
    s->paint = colour;
    s->shade = shade;
    s->x0 = x0;
    s->x1 = x1;
    s->label[0] = s->title[0] = '\0';
    if (x1 - x0 < NARROW) return;
    label_of(p, it, s->label, sizeof s->label);
    snprintf(s->title, sizeof s->title, "%.24s layer %u lane %u: %.3f ms, %llu rows", it->name,
             it->layer, it->lane, (it->end_us - it->begin_us) / 1e3, (unsigned long long)it->rows);
}

static sl_status on_item(void *ctx, const sl_trace_item *it, sl_err *err) {
    picture *p = ctx;
    (void)err;
    if (it->is_name || it->end_us <= p->from_us || it->begin_us >= p->to_us) return SL_OK;
    for (size_t i = 0; i < p->o->n_rows; i++) {
        const sl_trace_row *r = &p->o->row[i];
        if (r->pid == it->pid && r->tid == it->tid) {
            add_span(p, i, it);
            break;
        }
    }
    return SL_OK;
}

/* ---- around them ---- */

static double place_rows(picture *p) {
    double y = TOP;
    for (size_t i = 0; i < p->o->n_rows; i++) {
        const sl_trace_row *r = &p->o->row[i];
        if (i > 0 && r->pid == SL_TRACE_LINKS_PID && p->o->row[i - 1].pid != SL_TRACE_LINKS_PID)
            y += GAP;
        p->y[i] = y;
        y += row_height(r) + GAP;
    }
    return y;
}

static void put_style(const picture *p, double height) {
    FILE *f = p->f;
    double width = LEFT + PLOT + RIGHT;
    fprintf(
        f,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" "
        "viewBox=\"0 0 %.0f %.0f\" font-family=\"sans-serif\" font-size=\"11\">\n<style>\n"
        "text{fill:#222} .l{text-anchor:middle;font-size:10px} .t{text-anchor:middle;fill:#555}\n"
        ".n{text-anchor:end} .b{fill:#fff;stroke:#ddd;stroke-width:.5} .g{stroke:#e4e4e4}\n"
        ".h{font-size:13px} .w{fill:#fff}\n",
        width, height, width, height);
    for (size_t i = 0; i < SL_TRACE_PAINTS; i++) {
        for (uint32_t s = 0; s < (p->o->lanes > 1 ? SL_TRACE_SHADES : 1); s++)
            fprintf(f, ".c%zu_%u{fill:#%06x}", i, s, sl_trace_shaded(sl_trace_paints[i].rgb, s));
    }
    fprintf(f, "\n</style>\n<rect width=\"%.0f\" height=\"%.0f\" fill=\"#fff\"/>\n", width, height);
}

/* 1, 2 or 5 times a power of ten: about ten of them in the window. */
static double tick_ms(double window_ms) {
    double raw = window_ms / 10, unit = pow(10, floor(log10(raw)));
    double n = raw / unit;
    return unit * (n <= 1 ? 1 : n <= 2 ? 2 : n <= 5 ? 5 : 10);
}

static void put_axis(const picture *p, double bottom) {
    double from = p->from_us / 1e3, to = p->to_us / 1e3, tick = tick_ms(to - from);
    int digits = (int)SL_MAX(0.0, -floor(log10(tick)));
    for (double i = ceil(from / tick); i * tick <= to; i++) {
        double x = LEFT + (i * tick - from) * 1e3 * p->scale;
        fprintf(p->f, "<line class=\"g\" x1=\"%.2f\" y1=\"%.0f\" x2=\"%.2f\" y2=\"%.0f\"/>", x,
                TOP - 8, x, bottom);
        fprintf(p->f, "<text class=\"t\" x=\"%.2f\" y=\"%.0f\">%.*f</text>\n", x, TOP - 14, digits,
                i * tick);
    }
    fprintf(p->f, "<text class=\"n\" x=\"%.0f\" y=\"%.0f\">ms</text>\n", LEFT - 24, TOP - 14);
}

static void put_rows(const picture *p) {
    fputs("<text class=\"h\" x=\"8\" y=\"20\">", p->f);
    put_text(p->f, p->o->schedule);
    fputs(" over ", p->f);
    put_text(p->f, p->o->transport);
    fprintf(p->f, ", %.3f ms of a run</text>\n", (p->to_us - p->from_us) / 1e3);
    for (size_t i = 0; i < p->o->n_rows; i++) {
        const sl_trace_row *r = &p->o->row[i];
        double h = row_height(r);
        fprintf(p->f, "<rect class=\"b\" x=\"%.0f\" y=\"%.0f\" width=\"%.0f\" height=\"%.0f\"/>",
                LEFT, p->y[i], PLOT, h);
        fprintf(p->f, "<text class=\"n\" x=\"%.0f\" y=\"%.0f\">", LEFT - 8, p->y[i] + h / 2 + 4);
        if (r->pid == SL_TRACE_LINKS_PID) fputs("link ", p->f);
        put_text(p->f, r->name);
        fputs("</text>\n", p->f);
    }
}

/* Where the next entry of the legend goes; lines wrap at the right edge. */
typedef struct pen {
    double x, y;
} pen;

static void put_sample(const picture *p, pen *at, const char *class, const char *text) {
    double width = 18 + 6.4 * (double)strlen(text);
    if (at->x + width > LEFT + PLOT) *at = (pen){LEFT, at->y + LEGEND_H};
    fprintf(p->f, "<rect class=\"%s\" x=\"%.0f\" y=\"%.0f\" width=\"14\" height=\"11\"/>", class,
            at->x, at->y - 9);
    fprintf(p->f, "<text x=\"%.0f\" y=\"%.0f\">%s</text>\n", at->x + 18, at->y, text);
    at->x += width + 16;
}

static void put_legend(const picture *p, double y) {
    pen at = {LEFT, y};
    for (size_t i = 0; i < SL_TRACE_PAINTS; i++) {
        char class[24];
        const char *name = sl_trace_paints[i].name;
        if (!p->seen[i]) continue;
        snprintf(class, sizeof class, "c%zu_0", i);
        if (strcmp(name, "link") == 0) name = "message on the link";
        if (name[0] == '\0') name = sl_trace_category_name(sl_trace_paints[i].category);
        put_sample(p, &at, class, name);
    }
    put_sample(p, &at, "b", "idle");
    at = (pen){LEFT, at.y + LEGEND_H};
    for (uint32_t s = 0; p->o->lanes > 1 && s < SL_MIN(p->o->lanes, SL_TRACE_SHADES); s++) {
        char class[24], text[48];
        snprintf(class, sizeof class, "c0_%u", s);
        snprintf(text, sizeof text, "micro-batch %u", s);
        put_sample(p, &at, class, text);
    }
    fprintf(p->f, "<text x=\"%.0f\" y=\"%.0f\">numbers: layer%s%s</text>\n", at.x, at.y,
            p->o->lanes > 1 ? "/micro-batch" : "", p->o->chunks > 1 ? ".chunk" : "");
}

static sl_status draw(picture *p, const char *path, sl_err *err) {
    double bottom = place_rows(p), legend = bottom + 18;
    p->scale = PLOT / (p->to_us - p->from_us);
    put_style(p, legend + 2.7 * LEGEND_H);
    put_rows(p);
    put_axis(p, bottom);
    const sl_trace_visitor v = {.on_item = on_item, .ctx = p};
    sl_status st = sl_trace_read(path, &v, err);
    for (size_t i = 0; i < p->o->n_rows; i++) flush_strip(p, i);
    put_legend(p, legend);
    fputs("</svg>\n", p->f);
    return st;
}

sl_status sl_trace_svg_write(const char *path, double from_us, double to_us, FILE *out,
                             sl_err *err) {
    sl_trace_outline o;
    sl_status st = sl_trace_outline_read(path, &o, err);
    if (st != SL_OK) return st;
    picture p = {.f = out,
                 .o = &o,
                 .from_us = from_us >= 0 ? from_us : SL_MIN(o.first_kernel_us, o.last_kernel_us),
                 .to_us = to_us >= 0 ? to_us : o.last_kernel_us};
    p.strip = sl_alloc(o.n_rows, sizeof *p.strip);
    p.y = sl_alloc(o.n_rows, sizeof *p.y);
    if (!p.strip || !p.y)
        st = sl_fail(err, SL_ERR_NOMEM, "picture of %zu rows", o.n_rows);
    else if (p.to_us - p.from_us < 1e-3)
        st = sl_fail(err, SL_ERR_ARG, "%s: the window from %.3f to %.3f ms is empty", path,
                     p.from_us / 1e3, p.to_us / 1e3);
    else
        st = draw(&p, path, err);
    sl_free(p.strip);
    sl_free(p.y);
    sl_trace_outline_free(&o);
    return st;
}
