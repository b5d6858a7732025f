/* Cores and nodes from a made /sys, and who gets which. */
#include "base/topology.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char root[64];

static void put(const char *path, const char *text) {
    char full[256];
    snprintf(full, sizeof full, "%s/%s", root, path);
    for (char *p = full + strlen(root) + 1; (p = strchr(p, '/')); p++) {
        *p = '\0';
        (void)mkdir(full, 0700);
        *p = '/';
    }
    FILE *f = fopen(full, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

/* Two nodes, numbered 0 and 2, of four cores with two hardware threads each: i and i + 8. */
static int make_sys(void **state) {
    (void)state;
    strcpy(root, "/tmp/sl_topology_XXXXXX");
    assert_non_null(mkdtemp(root));
    put("devices/system/node/online", "0,2-3\n");
    put("devices/system/node/has_memory", "0,2-3\n");
    put("devices/system/node/node0/cpulist", "0-3,8-11\n");
    put("devices/system/node/node2/cpulist", "4-7,12-15\n");
    put("devices/system/node/node3/cpulist", "\n"); /* memory alone */
    for (int i = 0; i < 16; i++) {
        char path[96], text[32];
        snprintf(path, sizeof path, "devices/system/cpu/cpu%d/topology/thread_siblings_list", i);
        snprintf(text, sizeof text, "%d,%d\n", i % 8, i % 8 + 8);
        put(path, text);
    }
    return 0;
}

static int drop_sys(void **state) {
    (void)state;
    char command[96];
    snprintf(command, sizeof command, "rm -r %s", root);
    return system(command);
}

static void read_it(sl_topology *t, const char *from, uint32_t n_allowed) {
    uint8_t allowed[SL_MAX_CPUS] = {0};
    sl_err err = {0};
    memset(allowed, 1, n_allowed);
    assert_int_equal(sl_topology_read(from, allowed, t, &err), SL_OK);
}

static void nodes_and_siblings_are_read(void **state) {
    (void)state;
    sl_topology t;
    read_it(&t, root, 16);
    assert_int_equal(t.n, 16);
    assert_int_equal(t.n_nodes, 2);
    const uint16_t want[16] = {0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7, 12, 13, 14, 15};
    for (uint32_t i = 0; i < 16; i++) {
        assert_int_equal(t.cpu[i].id, want[i]);
        assert_int_equal(t.cpu[i].node, i / 8);
        assert_int_equal(t.cpu[i].rank, i / 4 % 2);
    }
}

/* As the kernel counts, of all CPUs that may be used. */
static void the_node_of_cpus_is_known(void **state) {
    (void)state;
    sl_topology t;
    sl_err err = {0};
    const struct {
        uint32_t first, n;
        int node;
    } cases[] = {{0, 1, 0},  {0, 4, 0},          {4, 4, 2},
                 {12, 4, 2}, {3, 2, SL_NO_NODE}, {0, 16, SL_NO_NODE}};
    for (size_t i = 0; i < SL_LEN(cases); i++) {
        uint8_t allowed[SL_MAX_CPUS] = {0};
        memset(allowed + cases[i].first, 1, cases[i].n);
        assert_int_equal(sl_topology_read(root, allowed, &t, &err), SL_OK);
        assert_int_equal(sl_topology_node(&t), cases[i].node);
        assert_int_equal(t.n_memory, 3);
    }
    read_it(&t, "/nonexistent", 4);
    assert_int_equal(sl_topology_node(&t), 0);
    assert_int_equal(t.n_memory, 1);
}

static void workers_stay_in_a_node(void **state) {
    (void)state;
    sl_topology t;
    uint16_t cpu[SL_MAX_CPUS];
    const uint32_t threads[] = {3, 4, 1, 4, 20};
    static const uint16_t want[4][4] = {{0, 1, 2}, {4, 5, 6, 7}, {3}, {8, 9, 10, 11}};
    read_it(&t, root, 16);
    for (uint32_t w = 0; w < 4; w++) {
        assert_int_equal(sl_topology_pick(&t, threads, 5, w, cpu), threads[w]);
        assert_memory_equal(cpu, want[w], threads[w] * sizeof *cpu);
    }
    /* More threads than CPUs: each once. */
    assert_int_equal(sl_topology_pick(&t, threads, 5, 4, cpu), 16);
    uint32_t seen = 0;
    for (int i = 0; i < 16; i++) seen |= 1u << cpu[i];
    assert_int_equal(seen, 0xffff);
}

static void a_machine_without_sys_is_one_node(void **state) {
    (void)state;
    sl_topology t;
    uint16_t cpu[SL_MAX_CPUS];
    const uint32_t threads[] = {2, 2, 2};
    read_it(&t, "/nonexistent", 4);
    assert_int_equal(t.n_nodes, 1);
    assert_int_equal(sl_topology_pick(&t, threads, 3, 1, cpu), 2);
    assert_true(cpu[0] == 2 && cpu[1] == 3);
    assert_int_equal(sl_topology_pick(&t, threads, 3, 2, cpu), 2); /* around */
    assert_true(cpu[0] == 0 && cpu[1] == 1);
    sl_err err = {0};
    const uint8_t none[SL_MAX_CPUS] = {0};
    assert_int_equal(sl_topology_read(root, none, &t, &err), SL_ERR_NOTFOUND);
}

static void damaged_lists_are_no_lists(void **state) {
    (void)state;
    static const char *const bad[] = {"", "x", "3-1", "0-99999999999", "1,,2", "0-", "-1"};
    sl_topology t;
    for (size_t i = 0; i < SL_LEN(bad); i++) {
        put("devices/system/node/node2/cpulist", bad[i]);
        read_it(&t, root, 16);
        assert_int_equal(t.n_nodes, 1);
        assert_int_equal(t.n, 16);
    }
    put("devices/system/node/node2/cpulist", "4-7,12-15\n");
}

static void this_machine_is_read(void **state) {
    (void)state;
    sl_topology t;
    sl_err err = {0};
    assert_int_equal(sl_topology_read("/sys", NULL, &t, &err), SL_OK);
    assert_true(t.n >= 1 && t.n_nodes >= 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nodes_and_siblings_are_read),
        cmocka_unit_test(the_node_of_cpus_is_known),
        cmocka_unit_test(workers_stay_in_a_node),
        cmocka_unit_test(a_machine_without_sys_is_one_node),
        cmocka_unit_test(damaged_lists_are_no_lists),
        cmocka_unit_test(this_machine_is_read),
    };
    return cmocka_run_group_tests(tests, make_sys, drop_sys);
}
