/* Options: defaults, then the environment, then the command line; what is wrong is named. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/options.h"

#define PARSE(verb, out, err, ...)                                                                 \
    parse(verb, out, err, (const char *[]){__VA_ARGS__ __VA_OPT__(, ) NULL})

static sl_status parse(char verb, sl_options *out, sl_err *err, const char **argv) {
    int argc = 0;
    while (argv[argc]) argc++;
    *err = (sl_err){0};
    return sl_options_parse(verb, argc, (char **)(uintptr_t)argv, out, err);
}

static void wrong(char verb, const char *text, const char **argv) {
    sl_options o;
    sl_err err;
    assert_int_equal(parse(verb, &o, &err, argv), SL_ERR_ARG);
    if (!strstr(err.msg, text)) fail_msg("'%s', expected '%s'", err.msg, text);
}
#define WRONG(verb, text, ...) wrong(verb, text, (const char *[]){__VA_ARGS__, NULL})

static void defaults(void **state) {
    (void)state;
    sl_options o;
    sl_err err;
    assert_int_equal(PARSE('r', &o, &err), SL_OK);
    assert_int_equal(o.max_tokens, 128);
    assert_string_equal(o.prompt, "");
    assert_string_equal(o.transport, "auto");
    assert_true(o.temp == -1);
    assert_false(o.json);
    assert_int_equal(o.n_args, 0);
}

static void command_line(void **state) {
    (void)state;
    sl_options o;
    sl_err err;
    assert_int_equal(PARSE('r', &o, &err, "model", "-n", "7", "--temp=0.5", "-p", "--odd text",
                           "-t", "2", "--chat", "--json=0", "--prompt=", "--max-tokens=9",
                           "--exact=true"),
                     SL_OK);
    assert_int_equal(o.max_tokens, 9); /* the last one counts */
    assert_true(o.temp == 0.5);
    assert_string_equal(o.prompt, "");
    assert_int_equal(o.threads, 2);
    assert_true(o.chat && o.exact && !o.json);
    assert_int_equal(o.n_args, 1);
    assert_string_equal(o.arg[0], "model");
    assert_int_equal(PARSE('r', &o, &err, "--", "--chat", "-"), SL_OK);
    assert_int_equal(o.n_args, 2);
    assert_string_equal(o.arg[0], "--chat");
    assert_string_equal(o.arg[1], "-");
    assert_false(o.chat);
    assert_int_equal(PARSE('r', &o, &err, "-h"), SL_OK);
    assert_true(o.help);
}

static void ranges(void **state) {
    (void)state;
    sl_options o;
    sl_err err;
    assert_int_equal(PARSE('s', &o, &err, "--port", "65535"), SL_OK);
    assert_int_equal(o.port, 65535);
    assert_int_equal(PARSE('r', &o, &err, "--top-k", "4294967295"), SL_OK);
    assert_int_equal(o.top_k, 4294967295u);
    WRONG('s', "--port: '65536' is not a whole number from 0 to 65535", "--port", "65536");
    WRONG('s', "--port: '-1' is not", "--port", "-1");
    WRONG('s', "--port: '' is not", "--port=");
    WRONG('s', "--port: '8o' is not", "--port", "8o");
    WRONG('s', "--port: '0.5' is not", "--port", "0.5");
    WRONG('s', "--port: '1e300' is not", "--port", "1e300");
    WRONG('s', "--port: '1e999' is not", "--port", "1e999");
    WRONG('s', "--port: 'nan' is not", "--port", "nan");
    WRONG('s', "--port: 'inf' is not", "--port", "inf");
    WRONG('r', "--temp: '101' is not a number from -1 to 100", "--temp", "101");
    WRONG('r', "--temp: 'nan' is not", "--temp=nan");
    WRONG('r', "--json: '' is not 0, 1, false or true", "--json=");
    WRONG('r', "--json: 'yes' is not", "--json=yes");
}

static void unknown(void **state) {
    (void)state;
    WRONG('r', "unknown option '--nothing' (see --help)", "--nothing");
    WRONG('r', "unknown option '--nothing=3'", "--nothing=3");
    WRONG('r', "unknown option '--port'", "--port", "3"); /* of another verb */
    WRONG('i', "unknown option '-n'", "-n", "3");
    WRONG('r', "unknown option '-x'", "-x");
    WRONG('r', "unknown option '--max'", "--max", "3"); /* no abbreviations */
    WRONG('r', "unknown option '--=3'", "--=3");
    /* what may be meant: slips, and names of other engines */
    WRONG('s', "'--atention': is --attention meant?", "--atention", "2");
    WRONG('s', "'--max-num-seq=3': is --max-num-seqs meant?", "--max-num-seq=3");
    WRONG('s', "'--prot': is --port meant?", "--prot", "1");
    WRONG('s', "'--max-model-len': here it is --ctx", "--max-model-len=4096");
    WRONG('s', "'-c': here it is --ctx", "-c", "4096");
    WRONG('s', "'-tp': here it is --tp", "-tp", "2");
    WRONG('t', "unknown option '--max-model-len' (see --help)", "--max-model-len", "1");
    char long_one[200] = "--";
    memset(long_one + 2, 'a', sizeof long_one - 3);
    WRONG('s', "unknown option '--aaa", long_one);
    WRONG('r', "option '--ids' needs LIST", "--ids");
    WRONG('r', "option '-n' needs N", "-n");
    WRONG('r', "unexpected argument 'e'", "a", "b", "c", "d", "e");
}

static void environment(void **state) {
    (void)state;
    sl_options o;
    sl_err err;
    setenv("SLUICE_MAX_NUM_SEQS", "5", 1);
    setenv("SLUICE_EXACT", "1", 1);
    setenv("SLUICE_HOST", "::1", 1);
    assert_int_equal(PARSE('s', &o, &err), SL_OK);
    assert_int_equal(o.max_num_seqs, 5);
    assert_true(o.exact);
    assert_string_equal(o.host, "::1");
    assert_int_equal(PARSE('s', &o, &err, "--max-num-seqs=6", "--exact=0"), SL_OK);
    assert_int_equal(o.max_num_seqs, 6);
    assert_false(o.exact);
    setenv("SLUICE_MAX_NUM_SEQS", "many", 1);
    WRONG('s', "SLUICE_MAX_NUM_SEQS: 'many' is not a whole number from 0 to 4096", "model");
    assert_int_equal(PARSE('w', &o, &err), SL_OK); /* not a worker's option */
    unsetenv("SLUICE_MAX_NUM_SEQS");
    unsetenv("SLUICE_EXACT");
    unsetenv("SLUICE_HOST");
    unsetenv("SLUICE_SECRET");
    assert_null(sl_options_secret());
    setenv("SLUICE_SECRET", "hush", 1);
    assert_string_equal(sl_options_secret(), "hush");
    unsetenv("SLUICE_SECRET");
}

static void printed(void **state) {
    (void)state;
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    sl_options_print('s', f);
    fclose(f);
    assert_non_null(strstr(text, "--port PORT"));
    assert_non_null(strstr(text, "[8000; 0..65535]"));
    assert_null(strstr(text, "--npy"));
    free(text);
    f = open_memstream(&text, &n);
    sl_options_print('*', f);
    fclose(f);
    assert_non_null(strstr(text, "--npy FILE"));
    assert_non_null(strstr(text, "--port PORT"));
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults), cmocka_unit_test(command_line), cmocka_unit_test(ranges),
        cmocka_unit_test(unknown),  cmocka_unit_test(environment),  cmocka_unit_test(printed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
