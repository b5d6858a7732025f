/* A line of input with history and keys. */
#include "line_edit.h"

#include "base/mem.h"
#include "base/options.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>
#include <utf8proc.h>

#define ESCAPE_MS 50 /* an escape key alone sends nothing for so long */
#define SHOWN     4096u

struct sl_line_edit {
    int in, out;
    struct termios cooked, raw;
    char *text; /* the line, NUL after len bytes */
    size_t len, cap, at;
    const char *prompt;
    char *history[SL_LINE_HISTORY];
    size_t n_history, browse; /* browse == n_history: the line being written */
    char *draft;              /* that line, while another is shown */
    char *killed;             /* what Ctrl-K, -U or -W took */
    bool pasting;
};

enum key {
    KEY_NONE = 256,
    KEY_END_OF_INPUT,
    KEY_LEFT,
    KEY_RIGHT,
    KEY_UP,
    KEY_DOWN,
    KEY_HOME,
    KEY_END,
    KEY_DELETE,
    KEY_WORD_LEFT,
    KEY_WORD_RIGHT,
    KEY_NEWLINE, /* into the text */
    KEY_PASTE_BEGIN,
    KEY_PASTE_END,
};

#define KEY_CTRL(c) ((c)&0x1F)

/* ---- the terminal ---- */

static void put(const sl_line_edit *e, const char *s, size_t n) {
    while (n > 0) {
        ssize_t done = write(e->out, s, n);
        if (done < 0 && errno != EINTR) return; /* nobody looks */
        if (done > 0) {
            s += done;
            n -= (size_t)done;
        }
    }
}

static void puts_to(const sl_line_edit *e, const char *s) {
    put(e, s, strlen(s));
}

/* The next byte, or -1: none within ms (-1: waits), -2: end of input. */
static int read_byte(const sl_line_edit *e, int ms) {
    for (;;) {
        struct pollfd p = {.fd = e->in, .events = POLLIN};
        unsigned char c;
        int ready = poll(&p, 1, ms);
        if (ready == 0) return -1;
        ssize_t n = ready < 0 ? -1 : read(e->in, &c, 1);
        if (n == 1) return c;
        if (n == 0 || errno != EINTR) return -2;
    }
}

/* Numbers of "ESC [ number ~". */
static int numbered_key(int number) {
    switch (number) {
    case 1:
    case 7:
        return KEY_HOME;
    case 3:
        return KEY_DELETE;
    case 4:
    case 8:
        return KEY_END;
    case 200:
        return KEY_PASTE_BEGIN;
    case 201:
        return KEY_PASTE_END;
    default:
        return KEY_NONE;
    }
}

static int lettered_key(int c, bool modified) {
    switch (c) {
    case 'A':
        return KEY_UP;
    case 'B':
        return KEY_DOWN;
    case 'C':
        return modified ? KEY_WORD_RIGHT : KEY_RIGHT;
    case 'D':
        return modified ? KEY_WORD_LEFT : KEY_LEFT;
    case 'H':
        return KEY_HOME;
    case 'F':
        return KEY_END;
    default:
        return KEY_NONE;
    }
}

/* After ESC: "[ parameters letter", "O letter", or a key with Alt. */
static int read_escape(const sl_line_edit *e) {
    int c = read_byte(e, ESCAPE_MS), number = 0;
    bool modified = false;
    if (c == '\n' || c == '\r') return KEY_NEWLINE;
    if (c == 'b') return KEY_WORD_LEFT;
    if (c == 'f') return KEY_WORD_RIGHT;
    if (c == 'O') return lettered_key(read_byte(e, ESCAPE_MS), false);
    if (c != '[') return KEY_NONE;
    for (;;) {
        c = read_byte(e, ESCAPE_MS);
        if (c >= '0' && c <= '9')
            number = SL_MIN(10 * number + c - '0', 9999);
        else if (c == ';')
            modified = true;
        else
            break;
    }
    return c == '~' ? numbered_key(number) : c < 0 ? KEY_NONE : lettered_key(c, modified);
}

static int read_key(const sl_line_edit *e) {
    int c = read_byte(e, -1);
    if (c == -2) return KEY_END_OF_INPUT;
    return c == 27 ? read_escape(e) : c;
}

/* ---- characters ---- */

/* Columns of the character at s, and its bytes; what is no character takes a byte and a column. */
static size_t columns_at(const char *s, size_t n, size_t *bytes) {
    utf8proc_int32_t c = -1;
    utf8proc_ssize_t k = utf8proc_iterate((const utf8proc_uint8_t *)s, (utf8proc_ssize_t)n, &c);
    *bytes = k > 0 ? (size_t)k : 1;
    if (k <= 0 || c < 32 || c == 127) return 1; /* shown by one sign */
    int width = utf8proc_charwidth(c);
    return width < 0 ? 1 : (size_t)width;
}

/* The end of the character at `at`, with the marks that combine with it. */
static size_t next_of(const sl_line_edit *e, size_t at) {
    size_t bytes = 0;
    if (at >= e->len) return e->len;
    columns_at(e->text + at, e->len - at, &bytes);
    at += bytes;
    while (at < e->len && columns_at(e->text + at, e->len - at, &bytes) == 0) at += bytes;
    return at;
}

static size_t previous_of(const sl_line_edit *e, size_t at) {
    size_t before = 0;
    /* back far enough to meet the border of a character, then forward again */
    size_t from = at > 64 ? at - 64 : 0;
    while (from > 0 && ((unsigned char)e->text[from] & 0xC0u) == 0x80u) from--;
    for (before = from; before < at;) {
        size_t next = next_of(e, before);
        if (next >= at) break;
        before = next;
    }
    return before;
}

static bool is_space(char c) {
    return c == ' ' || c == '\n' || c == '\t';
}

static size_t word_left(const sl_line_edit *e, size_t at) {
    while (at > 0 && is_space(e->text[at - 1])) at--;
    while (at > 0 && !is_space(e->text[at - 1])) at--;
    return at;
}

static size_t word_right(const sl_line_edit *e, size_t at) {
    while (at < e->len && is_space(e->text[at])) at++;
    while (at < e->len && !is_space(e->text[at])) at++;
    return at;
}

/* ---- the display: one row, scrolled so that the cursor is seen ---- */

static size_t width_of(const sl_line_edit *e) {
    struct winsize w;
    if (ioctl(e->out, TIOCGWINSZ, &w) != 0 || w.ws_col < 10) return 80;
    return w.ws_col;
}

static size_t columns_between(const sl_line_edit *e, size_t from, size_t to) {
    size_t columns = 0, bytes;
    for (; from < to; from += bytes) columns += columns_at(e->text + from, e->len - from, &bytes);
    return columns;
}

/* The character as shown: line ends and other controls have a sign. */
static size_t show(const char *s, size_t bytes, char *out) {
    unsigned char c = (unsigned char)*s;
    const char *sign = c == '\n' ? "\xe2\x86\xb5" : c < 32 || c == 127 ? "\xc2\xb7" : NULL;
    if (bytes == 1 && c >= 0x80) sign = "?";
    if (sign) bytes = strlen(sign);
    memcpy(out, sign ? sign : s, bytes);
    return bytes;
}

static void refresh(const sl_line_edit *e) {
    char row[SHOWN], move[32];
    size_t room = width_of(e) - strlen(e->prompt) - 1, first = e->at, n = 0, columns = 0, bytes;
    /* as much as fits before the cursor */
    while (first > 0) {
        size_t before = previous_of(e, first);
        if (columns_between(e, before, e->at) > room) break;
        first = before;
    }
    for (size_t i = first; i < e->len && n + 8 < sizeof row; i += bytes) {
        columns += columns_at(e->text + i, e->len - i, &bytes);
        if (columns > room) break;
        n += show(e->text + i, bytes, row + n);
    }
    puts_to(e, "\r");
    puts_to(e, e->prompt);
    put(e, row, n);
    snprintf(move, sizeof move, "\x1b[K\r\x1b[%zuC",
             strlen(e->prompt) + columns_between(e, first, e->at));
    puts_to(e, move);
}

/* ---- changes ---- */

static bool reserve(sl_line_edit *e, size_t len) {
    if (len > SL_LINE_MAX_BYTES) return false;
    if (len + 1 <= e->cap) return true;
    size_t cap = SL_MAX(2 * e->cap, len + 1);
    char *grown = sl_grow(e->text, e->cap, cap, 1);
    if (!grown) return false;
    e->text = grown;
    e->cap = cap;
    return true;
}

static void insert(sl_line_edit *e, const char *s, size_t n) {
    if (!reserve(e, e->len + n)) {
        puts_to(e, "\a");
        return;
    }
    memmove(e->text + e->at + n, e->text + e->at, e->len - e->at + 1);
    memcpy(e->text + e->at, s, n);
    e->len += n;
    e->at += n;
}

static void erase(sl_line_edit *e, size_t from, size_t to, bool keep) {
    if (keep && to > from) {
        free(e->killed);
        e->killed = strndup(e->text + from, to - from);
    }
    memmove(e->text + from, e->text + to, e->len - to + 1);
    e->len -= to - from;
    e->at = from;
}

static void set_line(sl_line_edit *e, const char *s) {
    erase(e, 0, e->len, false);
    insert(e, s, strlen(s));
}

static void browse(sl_line_edit *e, bool up) {
    if (up ? e->browse == 0 : e->browse == e->n_history) return;
    if (e->browse == e->n_history) {
        free(e->draft);
        e->draft = strdup(e->text);
    }
    e->browse += up ? (size_t)-1 : 1;
    const char *draft = e->draft ? e->draft : "";
    set_line(e, e->browse == e->n_history ? draft : e->history[e->browse]);
}

static void remember(sl_line_edit *e) {
    if (e->len == 0 || (e->n_history && !strcmp(e->history[e->n_history - 1], e->text))) return;
    char *copy = strdup(e->text);
    if (!copy) return; /* the line itself is not lost */
    if (e->n_history == SL_LINE_HISTORY) {
        free(e->history[0]);
        memmove(e->history, e->history + 1, --e->n_history * sizeof *e->history);
    }
    e->history[e->n_history++] = copy;
}

/* ---- keys ---- */

static void move_or_erase(sl_line_edit *e, int key) {
    switch (key) {
    case KEY_LEFT:
    case KEY_CTRL('b'):
        e->at = previous_of(e, e->at);
        break;
    case KEY_RIGHT:
    case KEY_CTRL('f'):
        e->at = next_of(e, e->at);
        break;
    case KEY_WORD_LEFT:
        e->at = word_left(e, e->at);
        break;
    case KEY_WORD_RIGHT:
        e->at = word_right(e, e->at);
        break;
    case KEY_HOME:
    case KEY_CTRL('a'):
        e->at = 0;
        break;
    case KEY_END:
    case KEY_CTRL('e'):
        e->at = e->len;
        break;
    case KEY_CTRL('h'):
    case 127:
        erase(e, previous_of(e, e->at), e->at, false);
        break;
    case KEY_DELETE:
    case KEY_CTRL('d'):
        erase(e, e->at, next_of(e, e->at), false);
        break;
    case KEY_CTRL('k'):
        erase(e, e->at, e->len, true);
        break;
    case KEY_CTRL('u'):
        erase(e, 0, e->at, true);
        break;
    case KEY_CTRL('w'):
        erase(e, word_left(e, e->at), e->at, true);
        break;
    default:
        break;
    }
}

/* Stops the program as Ctrl-Z does, the terminal being as it was. */
static void suspend(sl_line_edit *e) {
    tcsetattr(e->in, TCSADRAIN, &e->cooked);
    raise(SIGTSTP);
    tcsetattr(e->in, TCSADRAIN, &e->raw);
}

static void on_key(sl_line_edit *e, int key) {
    char byte = (char)key;
    if (key == KEY_PASTE_BEGIN || key == KEY_PASTE_END)
        e->pasting = key == KEY_PASTE_BEGIN;
    else if (e->pasting && (key == '\r' || key == '\n' || key == '\t'))
        insert(e, key == '\t' ? "\t" : "\n", 1);
    else if (key == KEY_NEWLINE)
        insert(e, "\n", 1);
    else if (key == KEY_UP || key == KEY_CTRL('p'))
        browse(e, true);
    else if (key == KEY_DOWN || key == KEY_CTRL('n'))
        browse(e, false);
    else if (key == KEY_CTRL('y') && e->killed)
        insert(e, e->killed, strlen(e->killed));
    else if (key == KEY_CTRL('l'))
        puts_to(e, "\x1b[H\x1b[2J");
    else if (key == KEY_CTRL('z'))
        suspend(e);
    else if (key == '\t' || (key >= 32 && key < 256 && key != 127))
        insert(e, &byte, 1);
    else
        move_or_erase(e, key);
}

/* Whether more input waits: then what was typed need not be shown yet. */
static bool more_waits(const sl_line_edit *e) {
    struct pollfd p = {.fd = e->in, .events = POLLIN};
    return poll(&p, 1, 0) > 0;
}

/* A plain character at the end of a short line is only written, which slow links like. */
static bool show_typed(const sl_line_edit *e, int key, size_t len_before) {
    if (key < 32 || key >= 127 || e->at != e->len || e->len != len_before + 1) return false;
    if (strlen(e->prompt) + columns_between(e, 0, e->len) >= width_of(e) - 1) return false;
    put(e, e->text + e->len - 1, 1);
    return true;
}

sl_line_result sl_line_edit_read(sl_line_edit *e, const char *prompt, const char **line,
                                 size_t *len) {
    sl_line_result result = SL_LINE_DONE;
    bool stale = false;
    e->len = e->at = 0;
    e->text[0] = '\0';
    e->prompt = prompt;
    e->browse = e->n_history;
    tcsetattr(e->in, TCSADRAIN, &e->raw);
    puts_to(e, prompt);
    for (;;) {
        int key = read_key(e);
        size_t before = e->len;
        bool end = key == KEY_END_OF_INPUT || (key == KEY_CTRL('d') && e->len == 0);
        if (end || (key == KEY_CTRL('c') && !e->pasting)) {
            result = end ? SL_LINE_END : SL_LINE_INTERRUPTED;
            break;
        }
        if ((key == '\r' || key == '\n') && !e->pasting) break;
        on_key(e, key);
        stale = stale || !show_typed(e, key, before);
        if (stale && !more_waits(e)) {
            refresh(e);
            stale = false;
        }
    }
    e->at = e->len;
    if (stale) refresh(e);
    if (result == SL_LINE_DONE) puts_to(e, "\n");
    tcsetattr(e->in, TCSADRAIN, &e->cooked);
    if (result == SL_LINE_DONE) remember(e);
    *line = e->text;
    *len = e->len;
    return result;
}

sl_line_edit *sl_line_edit_open(int in, int out) {
    const char *term = sl_options_terminal();
    if (!isatty(in) || !isatty(out) || !term || !term[0] || !strcmp(term, "dumb")) return NULL;
    sl_line_edit *e = sl_alloc(1, sizeof *e);
    if (!e) return NULL;
    e->in = in;
    e->out = out;
    if (tcgetattr(in, &e->cooked) != 0 || !reserve(e, 0)) {
        sl_line_edit_close(e);
        return NULL;
    }
    e->raw = e->cooked;
    e->raw.c_iflag &= ~(tcflag_t)(IXON | ISTRIP);
    e->raw.c_lflag &= ~(tcflag_t)(ECHO | ICANON | IEXTEN | ISIG);
    e->raw.c_cc[VMIN] = 1;
    e->raw.c_cc[VTIME] = 0;
    puts_to(e, "\x1b[?2004h"); /* pasted text is marked as such */
    return e;
}

void sl_line_edit_close(sl_line_edit *e) {
    if (!e) return;
    if (e->text) puts_to(e, "\x1b[?2004l");
    for (size_t i = 0; i < e->n_history; i++) free(e->history[i]);
    free(e->draft);
    free(e->killed);
    sl_free(e->text);
    sl_free(e);
}
