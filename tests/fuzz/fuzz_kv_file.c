/* Any bytes as a file of KV pages. The first one chooses: an odd one makes the rest a file; an even
 * one the keys and bytes of pages that are put into one, which come back as they are. */
#include "format/kv_file.h"

#include "base/mem.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define PAGE 8u
#define MOST 64u

static const sl_kv_stamp stamp = {{9}};

static void write_raw(const char *path, const uint8_t *data, size_t size) {
    sl_output out;
    sl_err err;
    SL_ASSERT(sl_output_open_private(path, &out, &err) == SL_OK);
    SL_ASSERT(fwrite(data, 1, size, out.f) == size);
    SL_ASSERT(sl_output_close(&out, &err) == SL_OK);
}

/* How many pages it has: key and bytes of each as they are in data. */
static uint32_t write_pages(const char *path, const uint8_t *data, size_t size) {
    const uint32_t n = (uint32_t)SL_MIN(size / (16 + PAGE), (size_t)MOST);
    sl_kv_writer w;
    sl_err err;
    SL_ASSERT(sl_kv_writer_open(path, &stamp, PAGE, n, &w, &err) == SL_OK);
    for (uint32_t i = 0; i < n; i++) {
        sl_page_key key;
        memcpy(&key, data + i * (16 + PAGE), sizeof key);
        SL_ASSERT(sl_kv_writer_put(&w, key, data + i * (16 + PAGE) + 16, &err) == SL_OK);
    }
    SL_ASSERT(sl_kv_writer_end(&w, SL_OK, &err) == SL_OK);
    return n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char path[64];
    uint8_t page[PAGE];
    sl_kv_reader r;
    sl_page_key key;
    sl_err err;
    if (size < 1) return 0;
    snprintf(path, sizeof path, "/tmp/sluice-fuzz-kv-%ld", (long)getpid());
    const bool raw = data[0] & 1;
    uint32_t n = 0;
    if (raw)
        write_raw(path, data + 1, size - 1);
    else
        n = write_pages(path, data + 1, size - 1);
    sl_status st = sl_kv_reader_open(path, &stamp, PAGE, &r, &err);
    SL_ASSERT(raw || (st == SL_OK && r.n == n));
    while (st == SL_OK && r.next < r.n) {
        const uint8_t *at = data + 1 + r.next * (16 + PAGE);
        sl_status next = sl_kv_reader_next(&r, &key, page, &err);
        SL_ASSERT(next == SL_OK || next == SL_ERR_FORMAT);
        SL_ASSERT(next != SL_OK || !sl_page_key_none(key));
        SL_ASSERT(raw || next != SL_OK ||
                  (!memcmp(&key, at, sizeof key) && !memcmp(page, at + 16, PAGE)));
    }
    if (st == SL_OK) sl_kv_reader_close(&r);
    unlink(path);
    return 0;
}
