/* Leaves that judge decimal numbers digit by digit: multiples, and bounds. */
#include "grammar/expr_int.h"

#include "base/mem.h"

enum { EQUAL, LESS, GREATER, ORDER = 3, IN_FRACTION = 4 };

static sl_rx leaf(sl_rx_store *s, sl_rx_kind kind, sl_rx_condition *c) {
    uint32_t i = 0;
    if (!c) {
        sl_rx_spoil(s, SL_ERR_NOMEM, "", 0);
        return SL_RX_NONE;
    }
    for (; i < s->n_conditions; i++) {
        const sl_rx_condition *x = s->conditions[i];
        if (x->compare == c->compare && x->m == c->m && x->decimals == c->decimals &&
            x->order == c->order && x->n_whole == c->n_whole && x->n_fraction == c->n_fraction &&
            !memcmp(x->digits, c->digits, c->n_whole + c->n_fraction))
            break;
    }
    if (i < s->n_conditions) {
        sl_free(c);
    } else {
        if (!sl_rx_room(s, (void **)&s->conditions, &s->cap_conditions, i + 1,
                        sizeof *s->conditions)) {
            sl_free(c);
            return SL_RX_NONE;
        }
        s->conditions[s->n_conditions++] = c;
    }
    sl_rx_node node = {.kind = (uint8_t)kind, .fancy = true, .a = i};
    node.nullable = sl_rx_condition_ends(s->conditions[i], &node);
    return sl_rx_intern(s, node);
}

sl_rx sl_rx_multiple(sl_rx_store *s, uint32_t m, uint32_t decimals) {
    sl_rx_condition *c = sl_alloc(1, sizeof *c);
    if (c) *c = (sl_rx_condition){.m = m, .decimals = decimals};
    return leaf(s, SL_RX_K_MULT, c);
}

sl_rx sl_rx_compare(sl_rx_store *s, sl_rx_order order, sl_span whole, sl_span fraction) {
    while (fraction.len && fraction.data[fraction.len - 1] == '0') fraction.len--;
    sl_rx_condition *c = sl_alloc(1, sizeof *c + whole.len + fraction.len);
    if (c) {
        *c = (sl_rx_condition){.compare = true,
                               .order = order,
                               .n_whole = (uint32_t)whole.len,
                               .n_fraction = (uint32_t)fraction.len};
        memcpy(c->digits, whole.data, whole.len);
        if (fraction.len) memcpy(c->digits + whole.len, fraction.data, fraction.len);
    }
    return leaf(s, SL_RX_K_CMP, c);
}

static unsigned order_of(const sl_rx_condition *c, const sl_rx_node *node) {
    const unsigned order = node->c & ORDER;
    if (node->c & IN_FRACTION) return order == EQUAL && node->b < c->n_fraction ? LESS : order;
    if (node->b != c->n_whole) return node->b < c->n_whole ? LESS : GREATER;
    return order == EQUAL && c->n_fraction ? LESS : order;
}

bool sl_rx_condition_ends(const sl_rx_condition *c, const sl_rx_node *node) {
    if (!c->compare) {
        uint64_t rest = node->b;
        for (uint32_t d = node->c ? node->c - 1 : 0; d < c->decimals; d++) rest = rest * 10 % c->m;
        return rest == 0;
    }
    switch (order_of(c, node)) {
    case EQUAL:
        return c->order == SL_RX_GE || c->order == SL_RX_LE;
    case LESS:
        return c->order == SL_RX_LE || c->order == SL_RX_LT;
    default:
        return c->order == SL_RX_GE || c->order == SL_RX_GT;
    }
}

static bool step_multiple(const sl_rx_condition *c, uint8_t byte, sl_rx_node *out) {
    if (byte == '.') {
        if (out->c) return false;
        out->c = 1;
        return true;
    }
    if (out->c && out->c - 1 >= c->decimals) return byte == '0';
    out->b = (uint32_t)(((uint64_t)out->b * 10 + (unsigned)(byte - '0')) % c->m);
    if (out->c) out->c++;
    return true;
}

/* Whether what follows can still bring the number into the order. */
static bool hopeless(const sl_rx_condition *c, const sl_rx_node *node) {
    const unsigned order = node->c & ORDER;
    const bool fraction = node->c & IN_FRACTION,
               below = c->order == SL_RX_LE || c->order == SL_RX_LT;
    if (fraction) return below ? order == GREATER : order == LESS;
    if (!below) return false;
    return node->b > c->n_whole || (node->b == c->n_whole && order == GREATER);
}

static bool step_compare(const sl_rx_condition *c, uint8_t byte, sl_rx_node *out) {
    unsigned order = out->c & ORDER;
    const bool fraction = out->c & IN_FRACTION;
    if (byte == '.') {
        if (fraction) return false;
        if (out->b != c->n_whole) order = out->b < c->n_whole ? LESS : GREATER;
        out->b = 0;
        out->c = order | IN_FRACTION;
        return !hopeless(c, out);
    }
    const uint32_t n = fraction ? c->n_fraction : c->n_whole;
    const uint8_t *digits = c->digits + (fraction ? c->n_whole : 0);
    if (order == EQUAL && out->b < n) {
        if (byte != digits[out->b]) order = byte < digits[out->b] ? LESS : GREATER;
    } else if (order == EQUAL && fraction && byte != '0') {
        order = GREATER;
    }
    /* what can change nothing any more is one state */
    if (fraction && order != EQUAL)
        out->b = 0;
    else if (out->b < n + !fraction)
        out->b++;
    out->c = order | (fraction ? IN_FRACTION : 0);
    if (!fraction && out->b > n) out->c = GREATER;
    return !hopeless(c, out);
}

bool sl_rx_condition_step(const sl_rx_condition *c, const sl_rx_node *node, uint8_t byte,
                          sl_rx_node *out) {
    *out = *node;
    if (byte != '.' && (byte < '0' || byte > '9')) return false;
    return c->compare ? step_compare(c, byte, out) : step_multiple(c, byte, out);
}
