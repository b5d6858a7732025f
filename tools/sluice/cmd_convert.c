/* sluice convert: a checkpoint to one GGUF file, or a GGUF file to one with weights in strips. */
#include "cmd.h"

#include "base/pool.h"
#include "base/progress.h"
#include "format/gguf.h"
#include "format/gguf_strips.h"
#include "model/convert.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

static sl_status type_of(const char *text, sl_dtype *out, sl_err *err) {
    if (!*text) text = "q8_0";
    static const sl_dtype types[] = {SL_F32, SL_F16, SL_BF16, SL_Q8_0, SL_Q4_0, SL_Q4_K, SL_MXFP4};
    for (size_t i = 0; i < SL_LEN(types); i++)
        if (strcasecmp(text, sl_dtype_name(types[i])) == 0) {
            *out = types[i];
            return SL_OK;
        }
    return sl_fail(err, SL_ERR_ARG,
                   "--type: \"%s\" is not f32, f16, bf16, q8_0, q4_0, q4_k or mxfp4", text);
}

static int print_report(const sl_options *o, sl_dtype type, const sl_convert_report *r) {
    if (o->json) {
        printf("{\"file\": ");
        sl_print_json_string(stdout, o->arg[1], strlen(o->arg[1]));
        printf(", \"type\": \"%s\", \"tensors\": %u, \"other_type\": %u, \"weights\": %llu, "
               "\"bytes\": %llu}\n",
               sl_dtype_name(type), r->tensors, r->other, (unsigned long long)r->weights,
               (unsigned long long)r->bytes);
        return 0;
    }
    printf("%s: %u tensors, %.3f M weights, %.1f MB, %.2f bits a weight\n", o->arg[1], r->tensors,
           (double)r->weights / 1e6, (double)r->bytes / 1e6,
           8 * (double)r->bytes / (double)SL_MAX(r->weights, 1));
    if (r->other)
        printf("%u tensors have rows that blocks of %s do not fill; they are Q8_0 or F16\n",
               r->other, sl_dtype_name(type));
    return 0;
}

/* A folder as a GGUF file. */
static int convert(const sl_options *o, sl_pool *pool) {
    sl_err err = {0};
    sl_progress line;
    sl_convert_options options = {
        .replace = o->force, .pool = pool, .progress = sl_progress_set, .ctx = &line};
    sl_convert_report r = {0};
    sl_status st = type_of(o->type, &options.type, &err);
    sl_progress_begin(&line, "convert", SL_PROGRESS_STEPS, !o->json);
    if (st == SL_OK) st = sl_convert(o->arg[0], o->arg[1], &options, &r, &err);
    sl_progress_end(&line);
    return st == SL_OK ? print_report(o, options.type, &r) : sl_cmd_fail("convert", &err);
}

static int print_strips(const sl_options *o, const sl_gguf_strips_report *r) {
    if (o->json) {
        printf("{\"file\": ");
        sl_print_json_string(stdout, o->arg[1], strlen(o->arg[1]));
        printf(", \"tensors\": %u, \"in_strips\": %u, \"bytes\": %llu, \"bytes_in_strips\": "
               "%llu}\n",
               r->tensors, r->n_in_strips, (unsigned long long)r->bytes,
               (unsigned long long)r->in_strips);
        return 0;
    }
    printf("%s: %u of %u tensors, %.1f of %.1f MB, lie in strips\n", o->arg[1], r->n_in_strips,
           r->tensors, (double)r->in_strips / 1e6, (double)r->bytes / 1e6);
    return 0;
}

/* A GGUF file again, with weights in strips. */
static int repack(const sl_options *o, sl_pool *pool) {
    sl_err err = {0};
    sl_progress line;
    sl_gguf_strips_report r = {0};
    const sl_gguf_strips_options options = {
        .replace = o->force, .pool = pool, .progress = sl_progress_set, .ctx = &line};
    sl_status st = SL_OK;
    if (*o->type)
        st = sl_fail(&err, SL_ERR_ARG, "--type: weights keep their types with --repack");
    else if (!sl_gguf_is(o->arg[0]))
        st = sl_fail(&err, SL_ERR_ARG,
                     "--repack: %s: is no GGUF file: convert it to one, and that again", o->arg[0]);
    sl_progress_begin(&line, "repack", SL_PROGRESS_BYTES, !o->json);
    if (st == SL_OK) st = sl_gguf_to_strips(o->arg[0], o->arg[1], &options, &r, &err);
    sl_progress_end(&line);
    return st == SL_OK ? print_strips(o, &r) : sl_cmd_fail("convert", &err);
}

int cmd_convert(const sl_options *o) {
    sl_err err = {0};
    sl_pool *pool = NULL;
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    uint32_t threads = o->threads ? o->threads : (uint32_t)SL_MAX(1, SL_MIN(cores, 64));
    sl_status st = sl_pool_create(threads, &pool, &err);
    if (st != SL_OK) return sl_cmd_fail("convert", &err);
    int rc = o->repack ? repack(o, pool) : convert(o, pool);
    sl_pool_free(pool);
    return rc;
}
