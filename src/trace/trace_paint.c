/* One table of colours for what workers do. */
#include "trace/trace_paint.h"

#include <string.h>

const sl_trace_paint sl_trace_paints[SL_TRACE_PAINTS] = {
    {"attention", SL_TRACE_CAT_EXECUTE, 0x4C78A8},
    {"router", SL_TRACE_CAT_EXECUTE, 0x79A7D3},
    {"shared", SL_TRACE_CAT_EXECUTE, 0x2F9E9E},
    {"branch", SL_TRACE_CAT_EXECUTE, 0x2F9E9E},
    {"dense", SL_TRACE_CAT_EXECUTE, 0x5B6F86},
    {"expert", SL_TRACE_CAT_EXECUTE, 0xF28E2B},
    {"head", SL_TRACE_CAT_EXECUTE, 0x8E6BBF},
    {"sample", SL_TRACE_CAT_EXECUTE, 0xC39BD3},
    {"embed", SL_TRACE_CAT_EXECUTE, 0x9DB7D5},
    {"inside", SL_TRACE_CAT_EXECUTE, 0xE0A458},
    {"graph", SL_TRACE_CAT_EXECUTE, 0x6C8E3E},
    {"mtp", SL_TRACE_CAT_EXECUTE, 0xB39C4D},
    {"dispatch", SL_TRACE_CAT_PACK, 0x59A14F},
    {"gather", SL_TRACE_CAT_PACK, 0x59A14F},
    {"reply", SL_TRACE_CAT_PACK, 0x8CBF6B},
    {"merge", SL_TRACE_CAT_PACK, 0x8CBF6B},
    {"", SL_TRACE_CAT_EXECUTE, 0x888888},
    {"", SL_TRACE_CAT_PACK, 0x59A14F},
    {"", SL_TRACE_CAT_SEND, 0xE15759},
    {"", SL_TRACE_CAT_POLL, 0xCFCFCF},
    {"", SL_TRACE_CAT_WAIT, 0xF0F0F0},
    {"link", SL_TRACE_CAT_NOTE, 0xB07AA1},
};

uint32_t sl_trace_shaded(uint32_t rgb, uint32_t lane) {
    static const double light[SL_TRACE_SHADES] = {0, 0.42, -0.3, 0.66};
    uint32_t out = 0;
    for (int i = 0; i < 3; i++) {
        double c = (double)(rgb >> (8 * i) & 0xFF), l = light[lane % SL_TRACE_SHADES];
        c = l >= 0 ? c + (255 - c) * l : c * (1 + l);
        out |= (uint32_t)c << (8 * i);
    }
    return out;
}

static bool moves_rows(const char *name) {
    return strcmp(name, "pack") == 0 || strcmp(name, "unpack") == 0 || strcmp(name, "merge") == 0 ||
           strcmp(name, "move") == 0;
}

uint32_t sl_trace_paint_of(const char *name, const char *category) {
    uint32_t found = SL_TRACE_PAINTS;
    /* What a device does has the colour of what a thread does by that name. */
    if (strcmp(category, sl_trace_category_name(SL_TRACE_CAT_DEVICE)) == 0)
        category =
            sl_trace_category_name(moves_rows(name) ? SL_TRACE_CAT_PACK : SL_TRACE_CAT_EXECUTE);
    for (uint32_t i = 0; i < SL_TRACE_PAINTS; i++) {
        if (strcmp(sl_trace_category_name(sl_trace_paints[i].category), category) != 0) continue;
        if (strcmp(sl_trace_paints[i].name, name) == 0) return i;
        if (sl_trace_paints[i].name[0] == '\0') found = i;
    }
    return found;
}
