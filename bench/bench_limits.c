/* This machine's limits, as one JSON object on stdout (bench/peers).
 *   bench_limits [--threads T] [--mb M] [--file PATH] [--tries N]
 * Reads M MiB (1024) of memory of its own, or the first M MiB of a file where it is mapped. */
#include "base/mem.h"
#include "format/map.h"
#include "limits.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int usage(void) {
    fprintf(stderr, "usage: bench_limits [--threads T] [--mb M] [--file PATH] [--tries 3..64]\n");
    return 2;
}

int main(int argc, char **argv) {
    uint32_t threads = 2, tries = 5;
    size_t bytes = (size_t)1 << 30;
    const char *path = NULL;
    for (int i = 1; i < argc; i += 2) {
        if (i + 1 >= argc) return usage();
        if (!strcmp(argv[i], "--threads"))
            threads = (uint32_t)strtoul(argv[i + 1], NULL, 10);
        else if (!strcmp(argv[i], "--mb"))
            bytes = (size_t)strtoul(argv[i + 1], NULL, 10) << 20;
        else if (!strcmp(argv[i], "--tries"))
            tries = (uint32_t)strtoul(argv[i + 1], NULL, 10);
        else if (!strcmp(argv[i], "--file"))
            path = argv[i + 1];
        else
            return usage();
    }
    if (tries < 3 || tries > 64 || bytes == 0) return usage();
    sl_err err = {0};
    sl_map map = {0};
    sl_pool *pool = NULL;
    uint8_t *own = NULL;
    sl_status st = path ? sl_map_open(path, (uint64_t)1 << 50, &map, &err) : SL_OK;
    if (st == SL_OK && path) bytes = SL_MIN(bytes, map.bytes.len);
    if (st == SL_OK && !path && !(own = sl_alloc(bytes, 1)))
        st = sl_fail(&err, SL_ERR_NOMEM, "%zu bytes", bytes);
    if (own) memset(own, 1, bytes);
    if (st == SL_OK) st = sl_pool_create(threads, &pool, &err);
    if (st == SL_OK) {
        sl_limits l = sl_limits_measure(pool, own ? own : map.bytes.data, bytes, tries, false);
        printf("{\"threads\": %u, \"read_gbs\": %.2f, \"read_median_gbs\": %.2f, "
               "\"fma_gflops\": %.1f, \"int8_gops\": %.1f}\n",
               threads, l.read_gbs, l.read_median_gbs, l.fma_gflops, l.int8_gops);
    } else {
        fprintf(stderr, "bench_limits: %s\n", err.msg);
    }
    sl_pool_free(pool);
    sl_free(own);
    sl_map_close(&map);
    return st == SL_OK ? 0 : 1;
}
