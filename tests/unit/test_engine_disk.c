/* A real attention worker with a folder for its KV, where the test plays its coordinator: what it
 * saves comes back in the next one as it was, and what it is told is checked. */
#include "engine_peers.h"

#include "format/kv_folder.h"
#include "spec/kv.h"

#include <stdlib.h>
#include <unistd.h>

#define REAL 0u

static char folder[] = "/tmp/sluice-disk-XXXXXX";

static void clear(void) {
    static const char *const names[] = {"worker-0.kv", "worker-0.lock"};
    char path[64];
    for (size_t i = 0; i < SL_LEN(names); i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        unlink(path);
    }
}

/* Its flags, and the pages that it had. */
static uint32_t get_ready(stage *s, sl_wire_kept *kept, uint32_t *n) {
    actor *c = &s->coordinator;
    send_plan(s);
    uint32_t ready = await_kind(s, c, SL_MSG_READY), flags = c->head[ready].flags;
    *n = 0;
    for (uint32_t i = 0; i < ready; i++) {
        if (c->head[i].kind != SL_MSG_KV_KEPT) continue;
        *n = c->head[i].rows;
        memcpy(kept, c->body[i]->data, *n * sizeof *kept);
    }
    while (c->n) actor_forget(c, 0);
    return flags;
}

static void say_save(stage *s, const sl_wire_kept *k, uint32_t n) {
    say(&s->coordinator, (sl_wire_header){.kind = SL_MSG_KV_SAVE, .rows = n},
        bytes_of(&s->coordinator, k, n * sizeof *k));
}

static const sl_wire_kept pages[] = {{.page = 9, .key = {{5, 1}}}, {.page = 2, .key = {{6, 1}}}};

static void what_is_saved_is_told_by_the_next(void **state) {
    (void)state;
    sl_wire_kept kept[16];
    uint32_t n;
    for (int turn = 0; turn < 3; turn++) {
        stage s;
        stage_make_as(&s, 1, 1, REAL, 0, folder);
        if (turn == 2) s.plan.exact = !s.plan.exact; /* other numerics: of no use, and no error */
        assert_true(get_ready(&s, kept, &n) & SL_WIRE_SAVES);
        assert_int_equal(n, turn == 1 ? 2 : 0);
        for (uint32_t i = 0; i < n; i++) { /* in a new pool, in the order that was told */
            assert_int_equal(kept[i].page, i);
            assert_true(sl_page_key_is(kept[i].key, pages[i].key));
        }
        if (turn == 0) say_save(&s, pages, 2);
        stage_end(&s, SL_OK);
    }
    clear();
}

static void what_is_to_be_saved_is_checked(void **state) {
    (void)state;
    static const struct {
        bool disk;
        sl_wire_kept what;
        const char *text;
    } wrong[] = {{false, {.page = 1, .key = {{1, 1}}}, "KV_SAVE to a worker that saves nothing"},
                 {true, {.page = 16, .key = {{1, 1}}}, "page 16 to save, there are 16"},
                 {true, {.page = 1}, "without a key"}};
    sl_wire_kept kept[16];
    uint32_t n;
    for (size_t i = 0; i < SL_LEN(wrong); i++) {
        stage s;
        stage_make_as(&s, 1, 1, REAL, 0, wrong[i].disk ? folder : NULL);
        assert_int_equal(!!(get_ready(&s, kept, &n) & SL_WIRE_SAVES), wrong[i].disk);
        say_save(&s, &wrong[i].what, 1);
        await_flag(&s, &s.coordinator.down, "the end of the connection");
        if (!strstr(s.coordinator.why, wrong[i].text))
            fail_msg("told '%s', not '%s'", s.coordinator.why, wrong[i].text);
        stage_end(&s, SL_ERR_PROTOCOL);
    }
    clear();
}

/* Another process has the file: the worker serves, and saves nothing. */
static void a_place_that_is_taken(void **state) {
    (void)state;
    sl_wire_kept kept[16];
    uint32_t n;
    sl_kv_place place;
    sl_err err;
    assert_int_equal(sl_kv_place_open(folder, REAL, &place, &err), SL_OK);
    stage s;
    stage_make_as(&s, 1, 1, REAL, 0, folder);
    assert_int_equal(get_ready(&s, kept, &n) & SL_WIRE_SAVES, 0);
    stage_end(&s, SL_OK);
    sl_kv_place_close(&place);
    clear();
}

static int make_folder(void **state) {
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state) {
    (void)state;
    return rmdir(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_saved_is_told_by_the_next),
        cmocka_unit_test(what_is_to_be_saved_is_checked),
        cmocka_unit_test(a_place_that_is_taken),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
