/* What the ways to round activations are called in plans and options. */
#include "spec/activations.h"

const char *const sl_activations_names[SL_ACTIVATIONS_COUNT] = {"f32", "int8", "bf16",
                                                                "bf16-parts"};
