/* Mixed tables give the bits of ref; what was not measured is not taken; kept times, damaged in any
 * way, change speed alone. */
#include "kernel_test.h"
#include "sanitized.h"

#include "kernel/choice.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static size_t number_of(const sl_kernels *k) {
    return sl_table_find(k->name, strlen(k->name));
}

/* Tables that run here. */
static size_t runnable(uint8_t out[SL_TABLES_MAX]) {
    size_t n = 0;
    bool can;
    for (size_t i = 0; sl_kernels_at(i, &can); i++)
        if (can) out[n++] = (uint8_t)i;
    return n;
}

/* A table that runs here and is not the base; SIZE_MAX where there is none. */
static size_t another(void) {
    uint8_t table[SL_TABLES_MAX];
    for (size_t n = runnable(table); n-- > 0;)
        if (table[n] != number_of(sl_kernels_base())) return table[n];
    return SIZE_MAX;
}

static void slots_are_all_kernels(void **state) {
    (void)state;
    sl_slot a, b;
    size_t called = 0;
    for (size_t i = 0; i < SL_SLOTS; i++) {
        called += sl_slot_at(i, &a);
        for (size_t j = 0; j < i; j++) {
            sl_slot_at(j, &b);
            assert_string_not_equal(a.name, b.name);
        }
    }
    assert_int_equal(called, SL_SLOTS - SL_AMOUNTS_INT8 * 4 - 5 -
                                 1); /* types without integers, and without strips; F8 */
}

static void any_mix_gives_the_bits_of_ref(void **state) {
    (void)state;
    uint8_t table[SL_TABLES_MAX], from[SL_SLOTS];
    const size_t n = runnable(table), base = number_of(sl_kernels_base());
    for (int round = 0; round < 4; round++) {
        char spec[SL_KERNELS_SPEC_MAX];
        for (size_t s = 0; s < SL_SLOTS; s++) /* the base stands for what it lacks itself */
            do from[s] = table[kt_below((uint32_t)n)];
            while (from[s] != base && !sl_table_has(from[s], s));
        sl_kernels mix = *sl_kernels_base();
        sl_kernels_mix(from, &mix);
        assert_true(kt_proves(&mix));
        sl_kernels_spec(from, spec);
        const sl_kernels *named =
            sl_kernels_select(spec); /* the same by name, where it is called */
        assert_non_null(named);
        assert_ptr_equal(named, sl_kernels_select(spec));
        assert_true(kt_proves(named));
        assert_ptr_equal(named->softmax, mix.softmax);
        assert_ptr_equal(named->gemm_tile[SL_Q6_K][SL_FEW], mix.gemm_tile[SL_Q6_K][SL_FEW]);
    }
}

static void wrong_names_select_nothing(void **state) {
    (void)state;
    static const char *const bad[] = {
        "sse9",         "ref,",     "ref,x=ref",  "ref,add",      "ref,add=",     "ref,add=sse9",
        ",add=ref",     "ref,=ref", "ref,ad=ref", "ref,add==ref", "ref, add=ref", "ref,add.few=ref",
        "ref,,add=ref", "=",        ","};
    for (size_t i = 0; i < SL_LEN(bad); i++) assert_null(sl_kernels_select(bad[i]));
    assert_ptr_equal(sl_kernels_select(""), sl_kernels_base());
    assert_ptr_equal(sl_kernels_select("base"), sl_kernels_base());
    assert_ptr_equal(sl_kernels_select("ref"), &sl_kernels_ref);
    assert_string_equal(sl_kernels_name(sl_kernels_select("ref,add=ref")), "ref");
    const sl_kernels *k = sl_kernels_select("ref,gemm_tile.q8_0=ref,int8_tile=ref");
    assert_non_null(k);
    assert_ptr_equal(k->int8_tile[SL_Q8_0][SL_FEW], sl_kernels_ref.int8_tile[SL_Q8_0][SL_FEW]);
}

static const char *with_slot_of(const char *slot, size_t i, char out[80]) {
    snprintf(out, 80, "ref,%s=%s", slot, sl_kernels_name(sl_kernels_at(i, NULL)));
    return out;
}

/* One taken mix of each table is enough: a process has room for so many. */
static void a_table_has_what_it_is_named_for(void **state) {
    (void)state;
    uint8_t table[SL_TABLES_MAX];
    char spec[80];
    sl_slot slot;
    for (size_t n = runnable(table); n-- > 0;) {
        bool taken = false;
        for (size_t s = 0; s < SL_SLOTS; s++) {
            if (!sl_slot_at(s, &slot)) continue;
            if (!sl_table_has(table[n], s)) {
                assert_null(sl_kernels_select(with_slot_of(slot.name, table[n], spec)));
            } else if (!taken) {
                assert_non_null(sl_kernels_select(with_slot_of(slot.name, table[n], spec)));
                taken = true;
            }
        }
    }
}

static void only_what_was_measured_wins(void **state) {
    (void)state;
    static sl_kernel_times t;
    uint8_t from[SL_SLOTS];
    size_t base = number_of(sl_kernels_base()), rival = another();
    if (rival == SIZE_MAX) skip();
    for (size_t s = 0; s < SL_SLOTS; s++) {
        t.ns[s][base] = s == 1 ? 0 : 1000; /* 1: the base was not measured */
        t.ns[s][rival] = s == 2 ? 899 : s == 3 ? 901 : s < 2 ? 1 : 0;
    }
    sl_kernels_pick(&t, from);
    assert_int_equal(from[0], rival);
    assert_int_equal(from[1], base);
    assert_int_equal(from[2], rival);
    for (size_t s = 3; s < SL_SLOTS; s++) assert_int_equal(from[s], base);
    bool can;
    for (size_t i = 0; sl_kernels_at(i, &can); i++) { /* nor what cannot run here */
        if (can) continue;
        for (size_t s = 0; s < SL_SLOTS; s++) t.ns[s][i] = 1, t.ns[s][rival] = 0;
        sl_kernels_pick(&t, from);
        for (size_t s = 0; s < SL_SLOTS; s++) assert_int_equal(from[s], base);
    }
}

static void measuring_is_complete_or_says_so(void **state) {
    (void)state;
    static sl_kernel_times t;
    sl_slot slot;
    uint8_t from[SL_SLOTS];
    size_t base = number_of(sl_kernels_base());
    assert_false(sl_kernels_measure(0, &t));
    assert_true(sl_kernels_measure(60000000000u, &t));
    for (size_t s = 0; s < SL_SLOTS; s++)
        if (sl_slot_at(s, &slot)) assert_true(t.ns[s][base] > 0);
    sl_kernels_pick(&t, from);
}

/* Times that differ from slot to slot, of all tables that run here. */
static void draw_times(sl_kernel_times *t) {
    uint8_t table[SL_TABLES_MAX];
    sl_slot slot;
    *t = (sl_kernel_times){0};
    for (size_t n = runnable(table); n-- > 0;)
        for (size_t s = 0; s < SL_SLOTS; s++)
            if (sl_slot_at(s, &slot)) t->ns[s][table[n]] = 1 + kt_below(999999999);
}

static void times_as_text(void **state) {
    (void)state;
    static char text[SL_KERNEL_TIMES_BYTES], again[SL_KERNEL_TIMES_BYTES];
    static sl_kernel_times t, got;
    draw_times(&t);
    size_t n = sl_kernel_times_write(&t, "key of a machine", text);
    assert_true(n < sizeof text / 2);
    sl_span all = {(const uint8_t *)text, n};
    assert_true(sl_kernel_times_read(all, "key of a machine", &got));
    assert_memory_equal(&t, &got, sizeof t);
    assert_false(sl_kernel_times_read(all, "key of a machin", &got));
    assert_false(sl_kernel_times_read(all, "key of a machine2", &got));
    for (size_t cut = 0; cut < n; cut++) {
        uint8_t *part = malloc(cut); /* of that length: a sanitizer sees one byte more */
        memcpy(part, text, cut);
        assert_false(sl_kernel_times_read((sl_span){part, cut}, "key of a machine", &got));
        free(part);
    }
    for (int i = 0; i < 20000; i++) {
        uint8_t from[SL_SLOTS];
        memcpy(again, text, n);
        for (uint32_t j = kt_below(4); j < 4; j++) again[kt_below((uint32_t)n)] = (char)kt_bits();
        sl_kernel_times_read((sl_span){(const uint8_t *)again, n}, "key of a machine", &got);
        sl_kernels_pick(&got, from);
        for (size_t k = 0; k < SL_SLOTS; k++) {
            bool can = false;
            assert_true(sl_kernels_at(from[k], &can) && can);
        }
    }
}

/* ---- the folder ---- */

static sl_kernel_choice c;

static void choose(const char *folder) {
    sl_kernels_choose(folder, false, &c);
    const sl_kernels *k = sl_kernels_select(c.spec);
    assert_non_null(k);
    assert_true(kt_proves(k));
}

static void write_file(const char *path, const void *bytes, size_t n) {
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

/* Something wrong stands where times are kept: measured anew, and kept again. */
static void mended(const char *folder) {
    int tries = 0;
    do choose(folder); /* again where other programs took the time, which keeps nothing */
    while (c.trouble[0] && tries++ < 20);
    assert_int_equal(c.from, SL_CHOICE_MEASURED);
    assert_string_equal(c.trouble, "");
    choose(folder);
    assert_int_equal(c.from, SL_CHOICE_KEPT);
}

static void times_are_kept(void **state) {
    (void)state;
    char top[] = "/tmp/sluice-kernels-XXXXXX", folder[64], file[4096];
    static char text[2 * SL_KERNEL_TIMES_BYTES], key[256];
    static sl_kernel_times t;
    sl_kernels_choose(NULL, false, &c);
    if (c.from == SL_CHOICE_ALONE) skip(); /* one table runs here: nothing is measured or kept */
    if (SL_SLOW_BUILD && c.trouble[0]) skip(); /* six tables take longer than may be measured */
    assert_string_equal(c.file, "");
    assert_non_null(mkdtemp(top));
    snprintf(folder, sizeof folder, "%s/a/b", top);
    mended(folder);
    snprintf(file, sizeof file, "%s", c.file);
    write_file(file, "", 0);
    mended(folder);
    memset(text, 'x', sizeof text);
    write_file(file, text, sizeof text);
    mended(folder);
    unlink(file);
    assert_int_equal(symlink("/dev/zero", file), 0);
    mended(folder);
    unlink(file);
    assert_int_equal(mkfifo(file, 0600), 0); /* nobody writes to it */
    mended(folder);
    /* times of another program or machine are not taken */
    sl_kernels_key(key, sizeof key);
    draw_times(&t);
    write_file(file, text, sl_kernel_times_write(&t, "another", text));
    mended(folder);
    /* invented ones of this machine are: they cost speed alone */
    write_file(file, text, sl_kernel_times_write(&t, key, text));
    choose(folder);
    assert_int_equal(c.from, SL_CHOICE_KEPT);
    assert_memory_equal(&c.times, &t, sizeof t);
    unlink(file);
    assert_int_equal(mkdir(file, 0700), 0); /* nothing can be kept */
    choose(folder);
    assert_int_equal(c.from, SL_CHOICE_MEASURED);
    assert_string_not_equal(c.trouble, "");
    rmdir(file), rmdir(folder);
    snprintf(folder, sizeof folder, "%s/a", top);
    rmdir(folder), rmdir(top);
    choose("/dev/null/x");
    assert_int_equal(c.from, SL_CHOICE_MEASURED);
    assert_string_not_equal(c.trouble, "");
}

/* What programs without options take: of this machine, and the same at every call. */
static void a_process_chooses_once(void **state) {
    (void)state;
    const char *spec = sl_kernels_chosen();
    assert_ptr_equal(sl_kernels_chosen(), spec);
    assert_non_null(sl_kernels_select(spec));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slots_are_all_kernels),
        cmocka_unit_test(any_mix_gives_the_bits_of_ref),
        cmocka_unit_test(wrong_names_select_nothing),
        cmocka_unit_test(a_table_has_what_it_is_named_for),
        cmocka_unit_test(only_what_was_measured_wins),
        cmocka_unit_test(measuring_is_complete_or_says_so),
        cmocka_unit_test(times_as_text),
        cmocka_unit_test(times_are_kept),
        cmocka_unit_test(a_process_chooses_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
