/* Runs of characters from a state, one state at a time, kept for the subtrees that ask next. */
#include "grammar/runs.h"

/* Where the class of most plain ASCII characters leads. */
static sl_rx usual_target(const sl_rx_row *row) {
    uint8_t n[256] = {0}, best = row->cls['a'];
    for (unsigned b = 0x20; b < 0x80; b++) {
        const uint8_t k = row->cls[b];
        n[k]++;
        if (row->to[k] != SL_RX_NONE && (row->to[best] == SL_RX_NONE || n[k] > n[best])) best = k;
    }
    return row->to[best];
}

static sl_run run_of(sl_rx_store *s, sl_rx state) {
    const sl_rx_row row = sl_rx_row_of(s, state);
    sl_run run = {.state = state, .next = usual_target(&row)};
    for (unsigned b = 0x20; b < 0x80 && run.next != SL_RX_NONE; b++)
        if (row.to[row.cls[b]] == run.next) sl_plain_add(&run.takes, b);
    return run;
}

/* Whether each of the bytes, and `more` bytes that go on a character, lead from `state` to `to`. */
static bool all_lead(sl_rx_store *s, sl_rx state, unsigned first, unsigned last, unsigned more,
                     sl_rx to) {
    const sl_rx_row row = sl_rx_row_of(s, state);
    sl_rx before = SL_RX_NONE;
    for (unsigned b = first; b <= last; b++) {
        const sl_rx t = row.to[row.cls[b]];
        if (t == SL_RX_NONE || (more == 0 && t != to)) return false;
        if (more && t != before && !all_lead(s, t, 0x80, 0xbf, more - 1, to)) return false;
        before = t;
    }
    return true;
}

/* The same for all characters beyond ASCII. */
static bool others_lead(sl_rx_store *s, sl_rx state, sl_rx to) {
    static const struct {
        uint8_t first, last, from, upto, more; /* leads, second bytes, bytes behind those */
    } forms[] = {{0xc2, 0xdf, 0x80, 0xbf, 0}, {0xe0, 0xe0, 0xa0, 0xbf, 1},
                 {0xe1, 0xec, 0x80, 0xbf, 1}, {0xed, 0xed, 0x80, 0x9f, 1},
                 {0xee, 0xef, 0x80, 0xbf, 1}, {0xf0, 0xf0, 0x90, 0xbf, 2},
                 {0xf1, 0xf3, 0x80, 0xbf, 2}, {0xf4, 0xf4, 0x80, 0x8f, 2}};
    const sl_rx_row row = sl_rx_row_of(s, state);
    for (size_t i = 0; i < SL_LEN(forms); i++) {
        sl_rx before = SL_RX_NONE;
        for (unsigned b = forms[i].first; b <= forms[i].last; b++) {
            const sl_rx t = row.to[row.cls[b]];
            if (t == SL_RX_NONE) return false;
            if (t != before && !all_lead(s, t, forms[i].from, forms[i].upto, forms[i].more, to))
                return false;
            before = t;
        }
    }
    return true;
}

bool sl_runs_take(sl_runs *r, sl_rx state, sl_plain_set chars, uint32_t most) {
    for (; most > 0; most--) {
        sl_run *run = &r->known[state % SL_LEN(r->known)];
        if (run->state != state) *run = run_of(r->s, state);
        if ((chars.w[0] & ~run->takes.w[0] & ~(uint64_t)1) | (chars.w[1] & ~run->takes.w[1]))
            return false;
        if (chars.w[0] & 1 && !run->asked) {
            run->asked = true;
            if (run->next != SL_RX_NONE && others_lead(r->s, state, run->next))
                run->takes.w[0] |= 1;
        }
        if (chars.w[0] & ~run->takes.w[0]) return false;
        if (run->next == state) return true;
        state = run->next;
    }
    return true;
}
