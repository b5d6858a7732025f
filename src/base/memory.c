/* Memory that is left, as Linux says it. */
#include "base/memory.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* The number behind `key` in a file of lines, times `unit`; without a key: the file's. */
static uint64_t read_number(const char *path, const char *key, uint64_t unit) {
    char line[128];
    uint64_t found = UINT64_MAX, n;
    FILE *f = fopen(path, "re");
    if (!f) return found;
    while (found == UINT64_MAX && fgets(line, sizeof line, f)) {
        size_t at = strlen(key);
        if (strncmp(line, key, at) == 0 && sscanf(line + at, "%" SCNu64, &n) == 1) found = n * unit;
    }
    fclose(f);
    return found;
}

#define GROUP "/sys/fs/cgroup/memory."

uint64_t sl_memory_free(void) {
    uint64_t left = read_number("/proc/meminfo", "MemAvailable:", 1024);
    uint64_t most = read_number(GROUP "max", "", 1), used = read_number(GROUP "current", "", 1);
    if (most == UINT64_MAX || used == UINT64_MAX) return left; /* no group, or "max" */
    uint64_t files = read_number(GROUP "stat", "inactive_file ", 1);
    if (files != UINT64_MAX) used -= files < used ? files : used;
    uint64_t rest = used < most ? most - used : 0;
    return rest < left ? rest : left;
}
