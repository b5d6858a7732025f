/* Tokenizers against goldens of the tokenizers library: the folders of tests/golden and of
 * tests/golden/tokenizers, the demo model once it is made, or the folders named on the command
 * line (or a GGUF file in such a folder). tokenizer.jsonl has lines of {"text","ids","decoded"}
 * with an optional "template" (true: ids include what the post-processor adds); decode.jsonl, where
 * there is one, has lines of
 * {"ids","decoded"} for ids that no text has. */
#include "base/mem.h"
#include "format/json.h"
#include "text/tokenizer.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

#define GOLDEN SL_SOURCE_DIR "/tests/golden"

static char **folders;
static int n_folders;

static void show_ids(const char *what, const uint32_t *ids, size_t n) {
    printf("  %s:", what);
    for (size_t i = 0; i < n && i < 60; i++) printf(" %u", ids[i]);
    printf("\n");
}

static bool streams_to(const sl_tokenizer *tok, const sl_ids *ids, const char *want, size_t len) {
    sl_detok d = {0};
    char out[SL_DETOK_MAX_OUT];
    size_t at = 0, n = 0;
    bool same = true;
    for (size_t i = 0; i <= ids->len; i++, at += n) {
        n = i < ids->len ? sl_detok_push(&d, tok, ids->data[i], false, out)
                         : sl_detok_flush(&d, out);
        same = same && n <= len - at && memcmp(want + at, out, n) == 0;
        if (!same) break;
    }
    return same && at == len;
}

/* One golden line; false (and a report) when something differs. */
static bool line_matches(const sl_tokenizer *tok, sl_json line, int number) {
    sl_span text, decoded;
    sl_err err = {0};
    sl_ids got = {0}, want = {0};
    char *back = NULL;
    size_t back_len = 0;
    sl_json ids = sl_json_get(line, "ids");
    bool has_text = sl_json_as_span(sl_json_get(line, "text"), &text), template = false;
    assert_int_equal(sl_json_bool(line, "template", SL_JSON_OPTIONAL, &template, &err), SL_OK);
    if (!sl_json_as_span(sl_json_get(line, "decoded"), &decoded)) {
        assert_true(has_text);
        decoded = text;
    }
    for (size_t i = 0; i < sl_json_count(ids); i++) {
        uint64_t id;
        assert_true(sl_json_as_u64(sl_json_at(ids, i), &id));
        assert_int_equal(sl_ids_push(&want, (uint32_t)id, &err), SL_OK);
    }
    sl_status st = SL_OK;
    if (has_text) st = sl_tokenizer_encode(tok, text, true, template, &got, &err);
    bool same = !has_text || (st == SL_OK && got.len == want.len &&
                              (got.len == 0 || memcmp(got.data, want.data, 4 * got.len) == 0));
    if (!same) {
        printf("  line %d encodes differently: \"%.120s\" %s\n", number, (const char *)text.data,
               err.msg);
        show_ids("want", want.data, want.len);
        show_ids("got ", got.data, got.len);
    }
    st = sl_tokenizer_decode(tok, want.data, want.len, false, &back, &back_len, &err);
    bool same_text = st == SL_OK && back_len == decoded.len &&
                     memcmp(back, decoded.data, back_len) == 0 &&
                     streams_to(tok, &want, back, back_len);
    if (!same_text)
        printf("  line %d decodes differently: want \"%.120s\" got \"%.120s\" %s\n", number,
               (const char *)decoded.data, back ? back : "", err.msg);
    sl_free(back);
    sl_ids_free(&got);
    sl_ids_free(&want);
    return same && same_text;
}

/* Counts the lines of a file of goldens, and those that failed; false when there is no such file.
 */
static bool check_file(const sl_tokenizer *tok, const char *path, int *lines, int *failed) {
    FILE *f = fopen(path, "r");
    if (!f) return false;
    sl_err err = {0};
    char *line = NULL;
    size_t cap = 0;
    for (ssize_t n; (n = getline(&line, &cap, f)) > 0; ++*lines) {
        sl_json_doc *doc = NULL;
        sl_span bytes = {(const uint8_t *)line, (size_t)n};
        if (sl_json_parse(path, bytes, &doc, &err) != SL_OK) fail_msg("%s", err.msg);
        *failed += !line_matches(tok, sl_json_root(doc), *lines + 1);
        sl_json_doc_free(doc);
    }
    free(line);
    fclose(f);
    return true;
}

/* Failed lines of the goldens in `goldens` for the tokenizer in `folder`. */
static int check_folder(const char *folder, const char *goldens) {
    char path[4096];
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    bool there = access(path, R_OK) == 0;
    snprintf(path, sizeof path, "%s/tiktoken.model", folder);
    there = there || access(path, R_OK) == 0 || strstr(folder, ".gguf");
    snprintf(path, sizeof path, "%s/tokenizer.jsonl", goldens);
    if (!there || access(path, R_OK) != 0)
        return printf("%s: no %s, nothing to hold\n", goldens,
                      there ? "tokenizer.jsonl" : "tokenizer.json"),
               0;
    sl_tokenizer *tok = NULL;
    sl_err err = {0};
    if (sl_tokenizer_open(folder, &tok, &err) != SL_OK) fail_msg("%s: %s", folder, err.msg);
    int lines = 0, decodes = 0, failed = 0;
    assert_true(check_file(tok, path, &lines, &failed));
    snprintf(path, sizeof path, "%s/decode.jsonl", goldens);
    check_file(tok, path, &decodes, &failed);
    printf("%s: %d lines, %d of ids alone, %d failed\n", goldens, lines, decodes, failed);
    sl_tokenizer_free(tok);
    return lines > 0 ? failed : 1;
}

static int check_folders_in(const char *parent) {
    DIR *dir = opendir(parent);
    if (!dir) fail_msg("%s is missing", parent);
    int failed = 0;
    for (struct dirent *e; (e = readdir(dir)) != NULL;) {
        char path[4096];
        bool other = strcmp(e->d_name, "chat") == 0 || strcmp(e->d_name, "tokenizers") == 0 ||
                     strcmp(e->d_name, "demo") == 0;
        if (other || e->d_name[0] == '.' || e->d_type != DT_DIR) continue;
        snprintf(path, sizeof path, "%s/%s", parent, e->d_name);
        failed += check_folder(path, path);
    }
    closedir(dir);
    return failed;
}

static void goldens_match(void **state) {
    (void)state;
    int failed = 0;
    for (int i = 0; i < n_folders; i++) {
        char goldens[4096];
        const char *file = strstr(folders[i], ".gguf") ? strrchr(folders[i], '/') : NULL;
        int n = file ? (int)(file - folders[i]) : (int)strlen(folders[i]);
        snprintf(goldens, sizeof goldens, "%.*s", n, folders[i]);
        failed += check_folder(folders[i], goldens);
    }
    if (n_folders == 0) {
        failed += check_folders_in(GOLDEN);
        failed += check_folders_in(GOLDEN "/tokenizers");
        failed += check_folder(SL_SOURCE_DIR "/models/smollm2-moe", GOLDEN "/demo");
    }
    assert_int_equal(failed, 0);
}

int main(int argc, char **argv) {
    folders = argv + 1;
    n_folders = argc - 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(goldens_match),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
