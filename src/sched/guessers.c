/* Whose guesses the block makes, call by call. */
#include "sched/guessers.h"

uint32_t sl_guessers_rows(const sl_life *l, uint32_t first, uint32_t rows) {
    const uint32_t known = SL_MIN(l->done, l->tokens - 1);
    return first < known ? SL_MIN(rows, known - first) : 0;
}

uint32_t sl_guessers_want(const sl_guessers *g, const sl_step_part *part, const sl_life *l,
                          uint32_t next, uint32_t ahead) {
    if (!part->sample || next != l->done || l->tokens != l->done + 1 || g->n == SL_HEAD_ROWS)
        return 0;
    return SL_MIN(ahead, sl_life_most_made(l));
}

void sl_guessers_add(sl_guessers *g, uint32_t part, uint32_t pos, uint32_t want) {
    g->of[g->n++] = (sl_guesser){.part = part, .pos = pos, .want = want};
}

bool sl_guessers_go_on(sl_guessers *g, const sl_guesser *who, sl_life *l, sl_draft *d) {
    g->made++;
    l->guessed++;
    l->made = true;
    sl_draft_made(d);
    l->chance = sl_draft_chance(d);
    if (l->guessed == who->want) return false;
    sl_guessers_add(g, who->part, who->pos + 1, who->want);
    return true;
}

void sl_guessers_close(const sl_guessers *g, sl_step *s, sl_draft_price *price, uint64_t us) {
    s->apart_us = us;
    sl_draft_price_asked(price);
    if (s->rows == s->decode_rows + s->known + s->guesses) sl_draft_price_made(price, g->made, us);
}
