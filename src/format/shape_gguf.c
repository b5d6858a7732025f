/* The shape of a model that lies in a GGUF file. */
#include "format/family.h"
#include "format/shape_config.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

bool sl_shape_in_gguf(const char *path) {
    char magic[4] = "";
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    bool is = fd >= 0 && read(fd, magic, sizeof magic) == sizeof magic &&
              memcmp(magic, "GGUF", sizeof magic) == 0;
    if (fd >= 0) close(fd);
    return is;
}

/* Experts of a block are one tensor "blk.7.ffn_up_exps.weight". */
static void read_bytes(const sl_gguf *g, sl_shape *s) {
    double bytes[2] = {0}, values[2] = {0};
    for (size_t i = 0; i < sl_gguf_tensors(g); i++) {
        const sl_gguf_tensor *t = sl_gguf_tensor_at(g, i);
        bool expert = strstr(t->name, "_exps.") != NULL;
        double n = 1;
        for (uint32_t k = 0; k < t->n_dims; k++) n *= (double)t->dim[k];
        bytes[expert] += (double)(t->end - t->begin);
        values[expert] += n;
    }
    s->attention_weight_bytes = values[0] > 0 ? bytes[0] / values[0] : 2;
    s->expert_weight_bytes = values[1] > 0 ? bytes[1] / values[1] : 2;
    s->kv_value_bytes = 2;
}

sl_status sl_shape_of_gguf(const char *path, sl_shape *out, sl_err *err) {
    sl_gguf *g = NULL;
    sl_model_spec m = {0};
    sl_status st = sl_gguf_open(path, &g, err);
    if (st == SL_OK) st = sl_gguf_config_parse(g, &m, NULL, err);
    if (st == SL_OK) {
        sl_span class = {(const uint8_t *)m.arch, strlen(m.arch)};
        *out = sl_family_shape(sl_family_of_class(class), &m);
        read_bytes(g, out);
    }
    sl_gguf_close(g);
    return st;
}
