/* JSON's own rules, shared by descriptions that hold JSON. Thread: owner of the grammar. */
#ifndef SL_GRAMMAR_JSON_RULES_H
#define SL_GRAMMAR_JSON_RULES_H

#include "grammar/grammar_int.h"

/* A text with whitespace before and behind it, as the grammar's policy has that. */
sl_rx sl_json_mark(sl_grammar *g, const char *text, bool before, bool behind);

/* Rules of any JSON; each is made when it is first asked for. Zero-initialise. */
typedef struct sl_json_rules {
    bool made;
    uint32_t value, object, array;
} sl_json_rules;
const sl_json_rules *sl_json_rules_of(sl_grammar *g, sl_json_rules *r);

#endif
