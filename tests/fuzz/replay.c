/* Replays a fuzz corpus: every regular file below each folder named on the command line is fed once
 * to the target. Exit 1 when a folder holds no file, so that an empty corpus is not a pass. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int replay_file(const char *path) {
    FILE *f = fopen(path, "rb");
    if (!f) return perror(path), 1;
    fseek(f, 0, SEEK_END);
    long n = ftell(f);
    rewind(f);
    uint8_t *buf = malloc(n > 0 ? (size_t)n : 1);
    size_t got = buf && n > 0 ? fread(buf, 1, (size_t)n, f) : 0;
    fclose(f);
    LLVMFuzzerTestOneInput(buf, got);
    free(buf);
    return 0;
}

static int replay_folder(const char *folder, int *count) {
    DIR *dir = opendir(folder);
    if (!dir) return perror(folder), 1;
    int failed = 0;
    for (struct dirent *e; (e = readdir(dir)) != NULL;) {
        char path[4096];
        if (e->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        failed |= replay_file(path);
        ++*count;
    }
    closedir(dir);
    return failed;
}

int main(int argc, char **argv) {
    int count = 0, failed = 0;
    for (int i = 1; i < argc; i++) failed |= replay_folder(argv[i], &count);
    printf("replayed %d inputs\n", count);
    return failed || count == 0;
}
