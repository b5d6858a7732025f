/* What a grammar takes, and what becomes of it when that is too much. */
#include "grammar/grammar_int.h"

#include "base/mem.h"

void sl_grammar_spoil(sl_grammar *g, sl_status st, const char *what, uint64_t limit) {
    if (g->bad != SL_OK) return;
    g->bad = st;
    g->what = what;
    g->limit = limit;
}

sl_status sl_grammar_status(const sl_grammar *g, sl_err *err) {
    const sl_status st = sl_rx_status(g->rx, err);
    if (st != SL_OK) return st;
    if (g->bad == SL_ERR_NOMEM) return sl_fail(err, SL_ERR_NOMEM, "out of memory for a grammar");
    if (g->bad != SL_OK)
        return sl_fail(err, g->bad, "the grammar takes more than %llu %s (limit)",
                       (unsigned long long)g->limit, g->what);
    if (sl_grammar_memory(g) > SL_GRAMMAR_MAX_MEMORY)
        return sl_fail(err, SL_ERR_LIMIT, "the grammar takes more than %zu bytes (limit)",
                       SL_GRAMMAR_MAX_MEMORY);
    return SL_OK;
}

bool sl_grammar_room(sl_grammar *g, void **p, size_t *cap, size_t need, size_t size) {
    size_t more = *cap ? *cap : 64;
    if (g->bad != SL_OK) return false;
    if (need <= *cap) return true;
    while (more < need) more *= 2;
    if (g->memory + (more - *cap) * size > SL_GRAMMAR_MAX_MEMORY) {
        sl_grammar_spoil(g, SL_ERR_LIMIT, "bytes", SL_GRAMMAR_MAX_MEMORY);
        return false;
    }
    void *grown = sl_grow(*p, *cap, more, size);
    if (!grown) {
        sl_grammar_spoil(g, SL_ERR_NOMEM, "", 0);
        return false;
    }
    g->memory += (more - *cap) * size;
    *p = grown;
    *cap = more;
    return true;
}

size_t sl_grammar_memory(const sl_grammar *g) {
    return g->memory + sl_rx_memory(g->rx);
}
