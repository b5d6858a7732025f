/* What the types of KV pages are called in plans and options. */
#include "spec/kv_type.h"

const char *const sl_kv_type_names[SL_KV_TYPES + 1] = {"f32", "f16", "bf16", "q8_0", "fp8", "auto"};
