/* Rotary embeddings of config.json. */
#include "format/hf_config_int.h"

#include <math.h>

typedef struct rope_numbers {
    double theta, part; /* 0: not given yet */
} rope_numbers;

/* A number that several places of the file may give. */
static sl_status read_rope_number(sl_json obj, const char *key, double min, double max,
                                  double *known, sl_err *err) {
    double value = 0;
    sl_status st = sl_json_f64(obj, key, SL_JSON_OPTIONAL, min, max, &value, err);
    if (st != SL_OK || value == 0) return st;
    if (*known != 0 && value != *known)
        return sl_json_fail(obj, key, err, SL_ERR_FORMAT,
                            "%g contradicts the %s %g given elsewhere in the file", value, key,
                            *known);
    *known = value;
    return SL_OK;
}

static sl_status read_rope_numbers(sl_json obj, const sl_family *f, rope_numbers *rope,
                                   sl_err *err) {
    double least = f->rope_part ? 1e-6 : 1;
    sl_status st = read_rope_number(obj, "rope_theta", 1, 1e12, &rope->theta, err);
    return st == SL_OK ? read_rope_number(obj, "partial_rotary_factor", least, 1, &rope->part, err)
                       : st;
}

static double yarn_mscale(double factor, double mscale) {
    return factor > 1 ? 0.1 * mscale * log(factor) + 1 : 1;
}

/* DeepSeek's: the factor of sin and cos is a ratio, that of all scores a square. */
static sl_status read_mscale(sl_json obj, double factor, double *attention, double *scores,
                             sl_err *err) {
    double one = 0, all = 0;
    sl_status st = sl_json_f64(obj, "mscale", SL_JSON_OPTIONAL, 0, 100, &one, err);
    if (st == SL_OK) st = sl_json_f64(obj, "mscale_all_dim", SL_JSON_OPTIONAL, 0, 100, &all, err);
    if (st != SL_OK) return st;
    if ((one > 0) != (all > 0))
        return sl_json_fail(obj, one > 0 ? "mscale_all_dim" : "mscale", err, SL_ERR_UNSUPPORTED,
                            "missing: mscale and mscale_all_dim are supported together only");
    if (one == 0) return SL_OK;
    *attention = yarn_mscale(factor, one) / yarn_mscale(factor, all);
    *scores = yarn_mscale(factor, all) * yarn_mscale(factor, all);
    return SL_OK;
}

/* As transformers: the factor of sin and cos is 0.1 ln(factor) + 1 unless it is given. */
static sl_status read_yarn(sl_json obj, const sl_family *f, sl_model_spec *m, sl_err *err) {
    static const char *const known[] = {"rope_theta",
                                        "rope_type",
                                        "type",
                                        "factor",
                                        "original_max_position_embeddings",
                                        "beta_fast",
                                        "beta_slow",
                                        "attention_factor",
                                        "truncate",
                                        "mscale",
                                        "mscale_all_dim"};
    bool truncate = true;
    double factor = 0, scores = 1, fast = 32, slow = 1;
    uint32_t original = m->max_position;
    sl_status st = sl_json_only(obj, known, SL_LEN(known) - (f->mscale ? 0 : 2), err);
    if (st == SL_OK)
        st = sl_json_f64(obj, "factor", SL_JSON_REQUIRED, 1, SL_MAX_ROPE_FACTOR, &factor, err);
    if (st == SL_OK)
        st = sl_hf_u32(obj, "original_max_position_embeddings", SL_JSON_OPTIONAL, 1,
                       SL_MAX_POSITION, &original, err);
    if (st == SL_OK) st = sl_json_f64(obj, "beta_fast", SL_JSON_OPTIONAL, 1e-3, 1e6, &fast, err);
    if (st == SL_OK) st = sl_json_f64(obj, "beta_slow", SL_JSON_OPTIONAL, 1e-3, 1e6, &slow, err);
    double attention = yarn_mscale(factor, 1);
    if (st == SL_OK && f->mscale) st = read_mscale(obj, factor, &attention, &scores, err);
    if (st == SL_OK)
        st = sl_json_f64(obj, "attention_factor", SL_JSON_OPTIONAL, 1e-3, 1e3, &attention, err);
    if (st == SL_OK) st = sl_json_bool(obj, "truncate", SL_JSON_OPTIONAL, &truncate, err);
    if (st != SL_OK) return st;
    if (fast < slow)
        return sl_json_fail(obj, "beta_fast", err, SL_ERR_FORMAT, "%g is below beta_slow %g", fast,
                            slow);
    double reach = floor(factor * original);
    if (reach > m->max_position) m->max_position = (uint32_t)SL_MIN(reach, (double)SL_MAX_POSITION);
    m->yarn = (sl_yarn){.factor = (float)factor,
                        .beta_fast = (float)fast,
                        .beta_slow = (float)slow,
                        .attention = (float)attention,
                        .scores = (float)scores,
                        .original = original,
                        .between = !truncate};
    return SL_OK;
}

static sl_status read_llama3(sl_json obj, sl_model_spec *m, sl_err *err) {
    static const char *const known[] = {"rope_theta",
                                        "rope_type",
                                        "type",
                                        "factor",
                                        "low_freq_factor",
                                        "high_freq_factor",
                                        "original_max_position_embeddings"};
    double factor = 0, low = 0, high = 0;
    uint32_t original = 0;
    sl_status st = sl_json_only(obj, known, SL_LEN(known), err);
    if (st == SL_OK)
        st = sl_json_f64(obj, "factor", SL_JSON_REQUIRED, 1, SL_MAX_ROPE_FACTOR, &factor, err);
    if (st == SL_OK)
        st = sl_json_f64(obj, "low_freq_factor", SL_JSON_REQUIRED, 1e-3, 1e6, &low, err);
    if (st == SL_OK)
        st = sl_json_f64(obj, "high_freq_factor", SL_JSON_REQUIRED, 1e-3, 1e6, &high, err);
    if (st == SL_OK)
        st = sl_hf_u32(obj, "original_max_position_embeddings", SL_JSON_REQUIRED, 1,
                       SL_MAX_POSITION, &original, err);
    if (st != SL_OK) return st;
    if (high < low)
        return sl_json_fail(obj, "high_freq_factor", err, SL_ERR_FORMAT,
                            "%g is below low_freq_factor %g", high, low);
    m->long_waves = (sl_long_waves){(float)factor, (float)low, (float)high, original};
    return SL_OK;
}

/* rope_scaling of transformers 4, rope_parameters of transformers 5. */
static sl_status read_rope_object(sl_json root, const char *key, const sl_family *f,
                                  rope_numbers *rope, sl_model_spec *m, sl_err *err) {
    static const char *const known[] = {"rope_theta", "rope_type", "type", "partial_rotary_factor"};
    static const char *const type_keys[] = {"rope_type", "type"};
    sl_json obj = {0};
    bool yarn = false, llama3 = false;
    sl_status st = sl_json_object(root, key, SL_JSON_OPTIONAL, &obj, err);
    if (st != SL_OK || sl_json_kind_of(obj) == SL_JSON_ABSENT) return st;
    for (size_t i = 0; i < SL_LEN(type_keys); i++) {
        const char *type = NULL;
        st = sl_json_string(obj, type_keys[i], SL_JSON_OPTIONAL, &type, err);
        if (st != SL_OK) return st;
        yarn = yarn || (type && f->yarn && strcmp(type, "yarn") == 0);
        if (type && yarn && strcmp(type, "yarn") == 0) continue;
        llama3 = llama3 || (type && f->llama3 && strcmp(type, "llama3") == 0);
        if (type && llama3 && strcmp(type, "llama3") == 0) continue;
        if (type && strcmp(type, "default") != 0 && strcmp(type, "none") != 0)
            return sl_json_fail(obj, type_keys[i], err, SL_ERR_UNSUPPORTED,
                                "\"%.64s\" is not supported (supported: \"default\"%s)", type,
                                f->yarn     ? ", \"yarn\""
                                : f->llama3 ? ", \"llama3\""
                                            : "");
    }
    st = yarn     ? read_yarn(obj, f, m, err)
         : llama3 ? read_llama3(obj, m, err)
                  : sl_json_only(obj, known, SL_LEN(known), err);
    return st == SL_OK ? read_rope_numbers(obj, f, rope, err) : st;
}

sl_status sl_hf_rope(sl_json root, const sl_family *f, sl_model_spec *m, sl_err *err) {
    rope_numbers rope = {0};
    sl_status st = read_rope_numbers(root, f, &rope, err);
    if (st == SL_OK) st = read_rope_object(root, "rope_scaling", f, &rope, m, err);
    if (st == SL_OK) st = read_rope_object(root, "rope_parameters", f, &rope, m, err);
    if (st != SL_OK) return st;
    m->rope_theta = (float)(rope.theta != 0 ? rope.theta : f->rope_theta);
    double part = rope.part != 0 ? rope.part : f->rope_part != 0 ? f->rope_part : 1;
    uint32_t whole = m->kv_lora ? m->rope_dim : m->head_dim;
    m->rope_dim = (uint32_t)(whole * part);
    if (m->rope_dim < 2 || m->rope_dim % 2 != 0)
        return sl_json_fail(root, "partial_rotary_factor", err, SL_ERR_LIMIT,
                            "rotates %u of the %u values of a head, must be an even number",
                            m->rope_dim, whole);
    return SL_OK;
}
