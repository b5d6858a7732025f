/* What workers say of links between them that broke, until it is known whether both ends live. All
 * that one says of a plan is kept: of two links one may have a dead end, and the other's ends wait
 * for each other. */
#include "engine/coord/coord_int.h"

#include "base/mem.h"

#define FIRST_LINKS 16u

static bool is_known(const sl_links *l, const sl_lost_link *link) {
    for (size_t i = 0; i < l->n; i++)
        if (l->link[i].by == link->by && l->link[i].other == link->other &&
            l->link[i].epoch == link->epoch)
            return true;
    return false;
}

sl_status sl_links_note(sl_links *l, sl_lost_link link, sl_err *err) {
    if (is_known(l, &link)) return SL_OK;
    if (l->n == l->cap) {
        size_t cap = SL_MAX(2 * l->cap, (size_t)FIRST_LINKS);
        sl_lost_link *bigger = sl_grow(l->link, l->cap, cap, sizeof *bigger);
        if (!bigger) return sl_fail(err, SL_ERR_NOMEM, "%zu links that broke", cap);
        l->link = bigger;
        l->cap = cap;
    }
    l->link[l->n++] = link;
    return SL_OK;
}

void sl_links_forget(sl_links *l, uint32_t by) {
    size_t left = 0;
    for (size_t i = 0; i < l->n; i++)
        if (l->link[i].by != by) l->link[left++] = l->link[i];
    l->n = left;
}

bool sl_links_take(sl_links *l, uint64_t now_us, sl_lost_link *out) {
    size_t at = 0;
    while (at < l->n && now_us < l->link[at].due_us) at++;
    if (at == l->n) return false;
    *out = l->link[at];
    for (l->n--; at < l->n; at++) l->link[at] = l->link[at + 1];
    return true;
}

void sl_links_free(sl_links *l) {
    sl_free(l->link);
    *l = (sl_links){0};
}
