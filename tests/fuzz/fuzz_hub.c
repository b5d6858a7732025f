/* Any bytes as what a hub answers: about a revision, and about its files, of which a model's are
 * then chosen by the pattern that the first byte names. */
#include "hub/hub_int.h"

#include "mutate.h"

const size_t fuzz_prefix = 1;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const patterns[] = {"", "Q4_K_M", "*.gguf", "a/b", "[", "x.gguf", "."};
    sl_hub_listing l = {0};
    sl_hub_choice choice;
    sl_err err = {0};
    char commit[SL_HUB_COMMIT + 1] = "";
    if (size < 1) return 0;
    sl_span text = {data + 1, size - 1};
    if (sl_hub_commit_parse("fuzz", text, commit, &err) == SL_OK)
        SL_ASSERT(sl_hub_is_hex(commit, SL_HUB_COMMIT));
    sl_status st = sl_hub_tree_parse("fuzz", text, &l, &err);
    SL_ASSERT(st == SL_OK || err.msg[0] != 0);
    for (size_t i = 0; i < l.n; i++) {
        SL_ASSERT(sl_hub_name_is_safe(l.file[i].name) && l.file[i].bytes <= SL_HUB_MAX_BYTES);
        SL_ASSERT(sl_hub_is_hex(l.file[i].id, 40) || sl_hub_is_hex(l.file[i].id, 64));
    }
    sl_hub_want want = data[0] & 128 ? SL_HUB_CONFIG : SL_HUB_MODEL;
    const char *pattern = patterns[data[0] % SL_LEN(patterns)];
    if (st == SL_OK && sl_hub_select(&l, "fuzz", pattern, want, &choice, &err) == SL_OK) {
        size_t wanted = 0;
        for (size_t i = 0; i < l.n; i++) wanted += l.file[i].wanted;
        SL_ASSERT(wanted > 0);
        SL_ASSERT(!choice.open || sl_hub_listing_find(&l, choice.open)->wanted);
        SL_ASSERT(!choice.index || sl_hub_listing_find(&l, choice.index)->wanted);
    }
    sl_hub_listing_free(&l);
    return 0;
}
