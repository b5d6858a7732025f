/* What an expert worker asks of the rows it is sent, for every schedule. */
#include "sched/intake.h"

#include "base/status.h"

#define PROMPT_ROWS 16u

sl_part_kind sl_intake_kind(uint32_t done, uint32_t given) {
    if (done >= given) return SL_PART_DECODE;
    return done < SL_PREFILL_BURST ? SL_PART_PROMPT : SL_PART_REST;
}

uint32_t sl_intake_keep(const sl_intake *in, bool prompt_waits, bool rest_waits,
                        uint32_t max_rows) {
    bool none = in->rows[SL_PART_PROMPT] + in->rows[SL_PART_REST] == 0;
    bool waits = prompt_waits || (rest_waits && !in->hold_rest);
    return none && waits ? SL_MIN(PROMPT_ROWS, (max_rows + 1) / 2) : 0;
}

static uint32_t most_rows(sl_intake *in, sl_pacer *pacer, sl_part_kind kind, uint32_t done,
                          uint32_t waiting) {
    uint32_t decoding = in->rows[SL_PART_DECODE] + waiting;
    if (decoding == 0) return UINT32_MAX;
    if (kind == SL_PART_PROMPT) {
        uint32_t budget = SL_PREFILL_BURST - SL_MIN(in->rows[kind], SL_PREFILL_BURST);
        return SL_MIN(budget, SL_PREFILL_BURST - done);
    }
    if (in->rows[SL_PART_REST] > 0 || in->hold_rest) return 0;
    uint32_t chunk = sl_pacer_chunk(pacer, decoding);
    in->hold_rest = chunk == 0;
    return chunk;
}

uint32_t sl_intake_chunk(sl_intake *in, sl_pacer *pacer, sl_part_kind kind, uint32_t done,
                         uint32_t given, uint32_t room, uint32_t decoding, uint32_t n_free) {
    uint32_t most = most_rows(in, pacer, kind, done, decoding);
    return SL_MIN(SL_MIN(given - done, room), SL_MIN(most, n_free));
}
