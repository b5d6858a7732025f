/* config.json as the planner reads it: what counts, whether the engine runs the model or not. */
#include "format/shape_config.h"

#include "format/hf_config_int.h"
#include "format/map.h"
#include "format/presets.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static sl_status read_bytes(sl_json root, sl_shape *s, sl_err *err) {
    static const char *const keys[] = {"torch_dtype", "dtype"};
    sl_json quant = {0};
    const char *method = NULL;
    double bytes = 2;
    sl_status st = SL_OK;
    for (size_t i = 0; st == SL_OK && i < SL_LEN(keys); i++) {
        const char *name = NULL;
        st = sl_json_string(root, keys[i], SL_JSON_OPTIONAL, &name, err);
        if (name && strcmp(name, "float32") == 0) bytes = 4;
    }
    s->attention_weight_bytes = s->expert_weight_bytes = bytes;
    s->kv_value_bytes = 2;
    if (st == SL_OK)
        st = sl_json_object(root, "quantization_config", SL_JSON_OPTIONAL, &quant, err);
    if (st != SL_OK || !quant.value) return st;
    st = sl_json_string(quant, "quant_method", SL_JSON_REQUIRED, &method, err);
    if (st != SL_OK) return st;
    if (strcmp(method, "fp8") == 0)
        s->attention_weight_bytes = s->expert_weight_bytes = 1;
    else if (strcmp(method, "mxfp4") == 0)
        s->expert_weight_bytes = 17.0 / 32; /* 32 values of 4 bits and a scale of 8 */
    else
        st = sl_json_fail(quant, "quant_method", err, SL_ERR_UNSUPPORTED,
                          "\"%.40s\" is not known (fp8, mxfp4)", method);
    return st;
}

static sl_status read_shape(sl_json root, sl_shape *s, sl_err *err) {
    const sl_family *f = NULL;
    sl_model_spec m = {0};
    sl_status st = sl_family_read(root, "is not a known family (", &f, err);
    if (st == SL_OK && f->nested)
        st = sl_json_object(root, f->nested, SL_JSON_REQUIRED, &root, err);
    if (st == SL_OK) st = sl_hf_read(root, f, &m, err);
    if (st != SL_OK) return st;
    *s = sl_family_shape(f, &m);
    return read_bytes(root, s, err);
}

sl_status sl_shape_config_parse(const char *file, const char *name, sl_span text, sl_shape *out,
                                sl_err *err) {
    sl_json_doc *doc = NULL;
    sl_shape s = {0};
    sl_status st = sl_json_parse(file, text, &doc, err);
    if (st == SL_OK) st = read_shape(sl_json_root(doc), &s, err);
    snprintf(s.name, sizeof s.name, "%s", name);
    if (st == SL_OK) *out = s;
    sl_json_doc_free(doc);
    return st;
}

static sl_status not_found(const char *model, sl_err *err) {
    char names[320] = "";
    for (size_t i = 0; sl_preset_model_name(i); i++) {
        size_t at = strlen(names);
        snprintf(names + at, sizeof names - at, "%s%s", i ? ", " : "", sl_preset_model_name(i));
    }
    return sl_fail(err, SL_ERR_NOTFOUND, "'%.150s' is no folder, no file and no preset (%s)", model,
                   names);
}

sl_status sl_shape_open(const char *model, sl_shape *out, sl_err *err) {
    char path[4096], name[SL_SHAPE_NAME];
    struct stat info;
    sl_map map = {0};
    if (stat(model, &info) != 0) {
        const sl_shape *preset = sl_preset_model(model);
        if (!preset) return not_found(model, err);
        *out = *preset;
        return SL_OK;
    }
    int n = snprintf(path, sizeof path, "%s%s", model, S_ISDIR(info.st_mode) ? "/config.json" : "");
    if (n < 0 || (size_t)n >= sizeof path)
        return sl_fail(err, SL_ERR_LIMIT, "path of %zu bytes, limit %zu", strlen(model),
                       sizeof path - 16);
    size_t end = strlen(model);
    while (end > 1 && model[end - 1] == '/') end--;
    size_t begin = end;
    while (begin > 0 && model[begin - 1] != '/') begin--;
    snprintf(name, sizeof name, "%.*s", (int)SL_MIN(end - begin, sizeof name - 1), model + begin);
    if (!S_ISDIR(info.st_mode) && sl_shape_in_gguf(model)) {
        sl_status st = sl_shape_of_gguf(model, out, err);
        if (st == SL_OK) memcpy(out->name, name, sizeof name);
        return st;
    }
    sl_status st = sl_map_open(path, SL_MAX_CONFIG_BYTES, &map, err);
    if (st == SL_OK) st = sl_shape_config_parse(path, name, map.bytes, out, err);
    sl_map_close(&map);
    return st;
}
