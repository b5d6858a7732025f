/* Writes YAML that other programs read: maps and lists by indentation, every text in double quotes,
 * so that no value is taken for a number, a switch or a key. */
#ifndef SL_TOOLS_MANIFEST_H
#define SL_TOOLS_MANIFEST_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

typedef struct sl_manifest {
    FILE *out;
    int depth;
    bool dash; /* the next line is the first one of an item of a list */
} sl_manifest;

/* Keys are the caller's own words, and stand as they are. */
void sl_manifest_open(sl_manifest *m, const char *key); /* a map or a list, until _close */
void sl_manifest_close(sl_manifest *m);
void sl_manifest_item(sl_manifest *m);     /* in a list: a map, until _close */
void sl_manifest_document(sl_manifest *m); /* the next one */

/* Values: UTF-8. */
void sl_manifest_text(sl_manifest *m, const char *key, const char *value);
void sl_manifest_number(sl_manifest *m, const char *key, uint64_t value);
void sl_manifest_flag(sl_manifest *m, const char *key, bool value);
void sl_manifest_word(sl_manifest *m, const char *value); /* in a list */
/* "key: []" and "key: {}" */
void sl_manifest_empty(sl_manifest *m, const char *key);

#endif
