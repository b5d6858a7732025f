/* What the ways to guess are called in plans and options. */
#include "spec/speculate.h"

const char *const sl_speculate_names[SL_SPECULATE_COUNT] = {
    "off", "lookup", "always", "mtp", "mtp-always", "both", "both-always"};
