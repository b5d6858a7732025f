/* Mutator of the targets that read JSON: most of the time values are moved, replaced, repeated or
 * dropped whole, so that what comes out still parses and gets past the parser to the checks; else
 * bytes change as libFuzzer sees fit. libFuzzer programs only. Thread: owner. */
#include "mutate.h"

#include <stdbool.h>
#include <string.h>

__attribute__((weak)) const size_t fuzz_prefix = 0;

__attribute__((weak)) size_t fuzz_repair(uint8_t *data, size_t size) {
    return (void)data, size;
}

#define MAX_SPANS 1024
#define MAX_DEPTH 64

typedef struct stretch {
    size_t begin, end;
} stretch;

/* The values and keys of a text that may be broken anywhere. */
typedef struct outline {
    stretch at[MAX_SPANS];
    size_t n;
} outline;

static const char *const literals[] = {
    "0",          "1",     "-1",    "2",    "0.5",  "1e-300",       "1e308",
    "4294967295", "65536", "-0",    "1.0",  "1024", "4294967296",   "9223372036854775807",
    "2147483648", "true",  "false", "null", "\"\"", "\"\\u0000\"",  "\"\\ud83d\\ude00\"",
    "[]",         "{}",    "[[]]",  "[{}]", "[1]",  "\"a\":[0,1]",  "\"\\ud800\"",
    "16777217",   "\"x\"", "[0,0]", "0.0",  "1e3",  "{\"type\":0}", "[\"a\",\"b\"]",
};

static uint64_t state;

static size_t below(size_t n) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return n ? (size_t)((state >> 16) % n) : 0;
}

static void note(outline *o, size_t begin, size_t end) {
    size_t at = o->n < MAX_SPANS ? o->n++ : below(MAX_SPANS);
    o->at[at] = (stretch){begin, end};
}

static size_t end_of_string(const uint8_t *data, size_t size, size_t at) {
    for (at++; at < size && data[at] != '"'; at++)
        if (data[at] == '\\') at++;
    return at + 1 < size ? at + 1 : size;
}

static size_t end_of_word(const uint8_t *data, size_t size, size_t at) {
    while (at < size && data[at] > ' ' && !strchr(",:]}[{\"", data[at])) at++;
    return at;
}

static void read_outline(const uint8_t *data, size_t size, outline *o) {
    size_t open[MAX_DEPTH], depth = 0;
    o->n = 0;
    for (size_t at = 0; at < size;) {
        uint8_t c = data[at];
        size_t begin = at++;
        if (c == '"') {
            note(o, begin, at = end_of_string(data, size, begin));
        } else if (c == '{' || c == '[') {
            if (depth < MAX_DEPTH) open[depth++] = begin;
        } else if (c == '}' || c == ']') {
            if (depth) note(o, open[--depth], at);
        } else if (c > ' ' && c != ',' && c != ':') {
            at = end_of_word(data, size, begin);
            note(o, begin, at = at > begin ? at : begin + 1);
        }
    }
}

/* Replaces [s.begin, s.end) by n bytes, which do not lie in data; no change without room. */
static size_t splice(uint8_t *data, size_t size, size_t max, stretch s, const void *bytes,
                     size_t n) {
    if (size - (s.end - s.begin) + n > max) return size;
    memmove(data + s.begin + n, data + s.end, size - s.end);
    if (n) memcpy(data + s.begin, bytes, n);
    return size - (s.end - s.begin) + n;
}

static uint8_t held[1u << 16];

static size_t hold(const uint8_t *data, stretch s, const char *before) {
    size_t lead = strlen(before), n = s.end - s.begin;
    if (n > sizeof held - lead) n = sizeof held - lead;
    memcpy(held, before, lead);
    memcpy(held + lead, data + s.begin, n);
    return lead + n;
}

static size_t drop(uint8_t *data, size_t size, stretch s) {
    if (s.end < size && data[s.end] == ',')
        s.end++;
    else if (s.begin > 0 && data[s.begin - 1] == ',')
        s.begin--;
    return splice(data, size, size, s, NULL, 0);
}

static size_t change_inside(uint8_t *data, size_t size, size_t max, stretch s) {
    size_t n = hold(data, s, ""), room = n + 64 < sizeof held ? n + 64 : sizeof held;
    if (n != s.end - s.begin) return size;
    bool text = n > 2 && held[0] == '"';
    n = text ? 2 + LLVMFuzzerMutate(held + 1, n - 2, room - 2) : LLVMFuzzerMutate(held, n, room);
    if (text) held[n - 1] = '"';
    return splice(data, size, max, s, held, n);
}

static size_t change(uint8_t *data, size_t size, size_t max, const outline *o) {
    stretch s = o->at[below(o->n)], other = o->at[below(o->n)];
    size_t pick = below(8);
    if (pick == 0) return drop(data, size, s);
    if (pick == 1)
        return splice(data, size, max, (stretch){s.end, s.end}, held, hold(data, s, ","));
    if (pick == 2)
        return splice(data, size, max, (stretch){s.end, s.end}, held, hold(data, other, ","));
    if (pick == 3) return splice(data, size, max, s, held, hold(data, other, ""));
    if (pick <= 5) {
        const char *with = literals[below(sizeof literals / sizeof *literals)];
        return splice(data, size, max, s, with, strlen(with));
    }
    return change_inside(data, size, max, s);
}

static outline mine;

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed) {
    state = seed * 0x9E3779B97F4A7C15u + 1;
    size_t keep = size < fuzz_prefix ? size : fuzz_prefix;
    read_outline(data + keep, size - keep, &mine);
    if (mine.n == 0 || below(4) == 0)
        size = LLVMFuzzerMutate(data, size, max);
    else
        for (size_t n = 1 + below(3); n > 0; n--) {
            size = keep + change(data + keep, size - keep, max - keep, &mine);
            read_outline(data + keep, size - keep, &mine);
            if (mine.n == 0) break;
        }
    return below(16) ? fuzz_repair(data, size) : size;
}

size_t LLVMFuzzerCustomCrossOver(const uint8_t *data, size_t size, const uint8_t *other,
                                 size_t other_size, uint8_t *out, size_t max, unsigned seed) {
    static outline theirs;
    state = seed * 0x9E3779B97F4A7C15u + 1;
    if (size > max) size = max;
    memcpy(out, data, size);
    size_t keep = size < fuzz_prefix ? size : fuzz_prefix;
    read_outline(out + keep, size - keep, &mine);
    read_outline(other, other_size, &theirs);
    if (mine.n == 0 || theirs.n == 0) return size;
    stretch to = mine.at[below(mine.n)], from = theirs.at[below(theirs.n)];
    size_t n = hold(other, from, "");
    size = keep + splice(out + keep, size - keep, max - keep, to, held, n);
    return fuzz_repair(out, size);
}
