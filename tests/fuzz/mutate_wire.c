/* Mutator of the wire target: bytes change as libFuzzer sees fit, then most of the time the header
 * becomes one that decodes and the payload as long as its counts say, so that the checks behind the
 * lengths are reached. libFuzzer programs only. Thread: owner. */
#include "mutate.h"
#include "net/net_int.h"

#define PAYLOAD_AT (1 + SL_WIRE_HEADER_BYTES)

static uint32_t read_u32(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static void write_u32(uint8_t *p, uint32_t v) {
    memcpy(p, &v, sizeof v);
}

static uint32_t cut_count(uint8_t *p, uint32_t most) {
    uint32_t v = read_u32(p) % (most + 1);
    write_u32(p, v);
    return v;
}

static size_t submit_bytes(uint8_t *p) {
    sl_wire_submit s = {0};
    s.n_tokens = cut_count(p + 44, 8);
    s.n_pages = cut_count(p + 48, 4);
    s.n_stop = cut_count(p + 52, 4);
    s.sampling.n_bias = cut_count(p + 80, 4);
    s.sampling.n_allowed = cut_count(p + 120, 2);
    s.sampling.n_bad = cut_count(p + 124, 12);
    s.report.n_scored = cut_count(p + 128, 4);
    write_u32(p + 20, 0);
    return sl_wire_submit_bytes(&s);
}

static size_t tokens_bytes(uint8_t *p, size_t len, uint32_t rows) {
    size_t pairs = 0;
    for (uint32_t i = 0; i < rows && (i + 1) * sizeof(sl_wire_token) <= len; i++)
        pairs += cut_count(p + i * sizeof(sl_wire_token) + 20, 4);
    return sl_wire_tokens_bytes(rows, pairs);
}

static size_t dispatch_bytes(sl_wire_format f, uint8_t *header, uint8_t *p, size_t len,
                             uint32_t rows) {
    sl_wire_counts n = {
        .rows = rows, .n_set = cut_count(p, 4), .n_entries = cut_count(p + 4, 4 * rows)};
    bool old = (header[8] & SL_WIRE_OLD) && rows > 0 && len >= 16;
    if (!old) {
        header[8] &= (uint8_t)~SL_WIRE_OLD;
        return sl_wire_dispatch_bytes(&n, 3, f);
    }
    n.n_old = 1 + cut_count(p + 8, rows - 1);
    write_u32(p + 8, n.n_old);
    write_u32(p + 12, 0);
    return sl_wire_dispatch_bytes(&n, 3, f);
}

/* Bytes that the payload should have, or `len` when that cannot be told. */
static size_t payload_bytes(unsigned what, sl_wire_format f, uint8_t *header, uint8_t *p,
                            size_t len, uint32_t rows) {
    if (what == 0 && len >= 8) return dispatch_bytes(f, header, p, len, rows);
    if (what == 1 && len >= 8) {
        write_u32(p + 4, 0);
        const size_t times = header[9] & SL_WIRE_TIMED >> 8 ? SL_WIRE_TIMES_BYTES : 0;
        return sl_wire_return_bytes(rows, cut_count(p, 4), 3, f) + times;
    }
    if (what == 2 && len >= SL_WIRE_SUBMIT_HEAD) return submit_bytes(p);
    if (what == 3) return SL_HELLO_BYTES;
    if (what == 4) return tokens_bytes(p, len, rows);
    if (what == 5) return rows * sizeof(sl_wire_pair);
    if (what == 6 && len >= 8) {
        write_u32(p + 4, 0);
        return sl_wire_set_bytes(cut_count(p, 8));
    }
    if (what == 7) return SL_WIRE_WORKER_BYTES;
    return what == 8 ? sl_wire_logits_bytes(rows, 7) : len;
}

/* Now and then it is about KV pages: a model of three blocks, as fuzz_wire.c has it. */
static size_t pages_bytes(uint8_t *header, uint8_t *p, size_t len, uint32_t rows, unsigned seed) {
    static const uint16_t kinds[] = {SL_MSG_KV_FETCH, SL_MSG_KV_GET, SL_MSG_KV_PAGES,
                                     SL_MSG_KV_KEPT};
    uint16_t kind = kinds[seed % 4];
    memcpy(header + 6, &kind, sizeof kind);
    if (kind == SL_MSG_KV_KEPT && len >= 8) { /* the first one is whole */
        write_u32(p + 4, 0);
        return rows * sizeof(sl_wire_kept);
    }
    if (kind == SL_MSG_KV_FETCH) return rows * sizeof(sl_wire_fetch);
    if (len < SL_WIRE_BLOCKS_BYTES) return SL_WIRE_BLOCKS_BYTES;
    uint32_t n = 1 + cut_count(p + 44, 2);
    write_u32(p + 36, 0);
    write_u32(p + 44, n);
    cut_count(p + 40, 3 - n);
    uint64_t bytes = seed & 64 ? n * 512u : 0;
    memcpy(p + 48, &bytes, sizeof bytes);
    if (kind == SL_MSG_KV_GET || !bytes) write_u32(p + 56, 0);
    write_u32(p + 60, 0);
    return SL_WIRE_BLOCKS_BYTES + (kind == SL_MSG_KV_PAGES ? bytes : 0);
}

/* Scales of fp8 become powers of two. */
static void mend_scales(uint8_t *payload, size_t len, uint32_t rows) {
    size_t stride = sl_wire_row_bytes(SL_WIRE_FP8, 3);
    for (uint32_t r = 0; r < rows && (r + 1) * stride <= len; r++) {
        uint8_t *scale = payload + len - (r + 1) * stride;
        uint32_t exponent = 1 + scale[2] % 254u;
        write_u32(scale, exponent << 23);
    }
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed) {
    size = LLVMFuzzerMutate(data, size, max);
    if (seed % 16 == 0 || max < PAYLOAD_AT + 512) return size;
    if (size < PAYLOAD_AT) {
        memset(data + size, 0, PAYLOAD_AT - size);
        size = PAYLOAD_AT;
    }
    uint8_t *h = data + 1;
    write_u32(h, SL_WIRE_MAGIC);
    h[4] = SL_WIRE_VERSION, h[5] = 0;
    write_u32(h + 8, read_u32(h + 8) & SL_WIRE_FLAGS);
    uint32_t rows = cut_count(h + 60, 6);
    write_u32(h + 68, 0);
    size_t len = size - PAYLOAD_AT;
    unsigned what = data[0] % 9;
    sl_wire_format f = data[0] < 0x80 ? SL_WIRE_F32 : data[0] & 0x20 ? SL_WIRE_FP8 : SL_WIRE_BF16;
    if (seed % 8) {
        size_t want = seed % 5 == 0 ? pages_bytes(h, data + PAYLOAD_AT, len, rows, seed / 5)
                                    : payload_bytes(what, f, h, data + PAYLOAD_AT, len, rows);
        if (want > max - PAYLOAD_AT) want = len;
        if (want > len) memset(data + size, 0, want - len);
        len = want;
        if (what < 2 && f == SL_WIRE_FP8) mend_scales(data + PAYLOAD_AT, len, rows);
    }
    write_u32(h + 64, (uint32_t)len);
    return PAYLOAD_AT + len;
}
