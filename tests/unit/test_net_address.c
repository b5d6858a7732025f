/* Addresses that a worker tells the others where somebody forwards them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

#include "net/address.h"

static void advertised_addresses(void **state) {
    (void)state;
    static const struct {
        const char *text, *want;
    } rows[] = {
        {"10.1.2.3:7001", "10.1.2.3:7001"},
        {"10.1.2.3", "10.1.2.3:20123"},
        {"gate.example", "gate.example:20123"},
        {"gate.example:65535", "gate.example:65535"},
        {"[fe80::1]", "[fe80::1]:20123"},
        {"[fe80::1]:9", "[fe80::1]:9"},
        {"fe80::1", NULL},
        {"gate:0", NULL},
        {"gate:65536", NULL},
        {"gate:7x", NULL},
        {"gate:", NULL},
        {":7001", NULL},
        {"[]:7001", NULL},
        {"a-name-that-leaves-no-room-for-its-port.somewhere.far.away.in.a.zone.of.many.labels."
         "example",
         NULL},
    };
    for (size_t i = 0; i < SL_LEN(rows); i++) {
        char out[96];
        sl_err err = {0};
        sl_status st =
            sl_address_advertised(rows[i].text, "127.0.0.1:20123", out, sizeof out, &err);
        assert_int_equal(st, rows[i].want ? SL_OK : SL_ERR_ARG);
        if (rows[i].want)
            assert_string_equal(out, rows[i].want);
        else
            assert_non_null(strstr(err.msg, "address"));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(advertised_addresses)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
