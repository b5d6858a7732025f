/* One line of input on a terminal, edited in place: arrows, history, UTF-8 of any width, pasted
 * text of many lines. The terminal is in raw mode only while a line is read, so that Ctrl-C is a
 * signal again while the program works. Thread: owner; one at a time. */
#ifndef SL_TOOLS_LINE_EDIT_H
#define SL_TOOLS_LINE_EDIT_H

#include "base/status.h"

#include <stddef.h>

#define SL_LINE_HISTORY   200u       /* lines kept */
#define SL_LINE_MAX_BYTES (1u << 20) /* of one line */

typedef struct sl_line_edit sl_line_edit;

typedef enum sl_line_result {
    SL_LINE_DONE,        /* Enter */
    SL_LINE_INTERRUPTED, /* Ctrl-C */
    SL_LINE_END,         /* Ctrl-D on an empty line, or the end of input */
} sl_line_result;

/* Input from descriptor `in`, display on `out`. NULL: they are not a terminal that can move its
 * cursor (or memory is short); read lines as they come. */
sl_line_edit *sl_line_edit_open(int in, int out) SL_MUST_CHECK;
void sl_line_edit_close(sl_line_edit *e); /* NULL-safe */

/* The line without its end, NUL-terminated, valid until the next call. Pasted line ends are '\n'
 * in it. Pieces of UTF-8 that are not characters come through as they are. */
sl_line_result sl_line_edit_read(sl_line_edit *e, const char *prompt, const char **line,
                                 size_t *len);

#endif
