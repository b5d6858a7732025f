/* Formats of strings that are enforced, as regular expressions of the whole text. Days fit their
 * months, 29 February its leap years. */
#include "grammar/schema_int.h"

#define YEAR_MONTH_DAY                                                                             \
    "([0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|"      \
    "02-(0[1-9]|1[0-9]|2[0-8]))|([0-9]{2}(0[48]|[2468][048]|[13579][26])|"                         \
    "([02468][048]|[13579][26])00)-02-29)"
#define HOUR_MINUTE "([01][0-9]|2[0-3]):[0-5][0-9]"
#define OFFSET      "([Zz]|[+-]" HOUR_MINUTE ")"
/* a 60th second is one in UTC alone: written so where the offset is none */
#define TIME                                                                                       \
    "(" HOUR_MINUTE ":[0-5][0-9](\\.[0-9]+)?" OFFSET "|23:59:60(\\.[0-9]+)?([Zz]|[+-]00:00))"
#define HOST_LABEL "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
#define BYTE       "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
#define IPV4       BYTE "(\\." BYTE "){3}"
#define H16        "[0-9A-Fa-f]{1,4}"
#define LS32       "(" H16 ":" H16 "|" IPV4 ")"
#define IPV6                                                                                       \
    "((" H16 ":){6}" LS32 "|::(" H16 ":){5}" LS32 "|(" H16 ")?::(" H16 ":){4}" LS32 "|((" H16      \
    ":){0,1}" H16 ")?::(" H16 ":){3}" LS32 "|((" H16 ":){0,2}" H16 ")?::(" H16 ":){2}" LS32        \
    "|((" H16 ":){0,3}" H16 ")?::" H16 ":" LS32 "|((" H16 ":){0,4}" H16 ")?::" LS32 "|((" H16      \
    ":){0,5}" H16 ")?::" H16 "|((" H16 ":){0,6}" H16 ")?::)"
#define ATOM   "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
#define QUOTED "\"([ !#-\\[\\]-~]|\\\\[ -~])*\""
#define PCHAR  "([A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})"
#define AUTHORITY                                                                                  \
    "(([A-Za-z0-9._~!$&'()*+,;=:-]|%[0-9A-Fa-f]{2})*@)?(\\[(" IPV6                                 \
    "|[vV][0-9A-Fa-f]+\\.[A-Za-z0-9._~!$&'()*+,;=:-]+)\\]|"                                        \
    "([A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*)(:[0-9]*)?"
#define QUERY_FRAGMENT "(\\?(" PCHAR "|[/?])*)?(#(" PCHAR "|[/?])*)?"
#define URI                                                                                        \
    "[A-Za-z][A-Za-z0-9+.-]*:(//" AUTHORITY "(/" PCHAR "*)*|/(" PCHAR "+(/" PCHAR "*)*)?|" PCHAR   \
    "+(/" PCHAR "*)*|)" QUERY_FRAGMENT

#define SEGMENT "([A-Za-z0-9._~!$&'()*+,;=@-]|%[0-9A-Fa-f]{2})+" /* without a colon */
#define URI_REFERENCE                                                                              \
    "(" URI "|(//" AUTHORITY "(/" PCHAR "*)*|/(" PCHAR "+(/" PCHAR "*)*)?|" SEGMENT "(/" PCHAR     \
    "*)*|)" QUERY_FRAGMENT ")"

const sl_schema_form *sl_schema_format(const char *name) {
    static const sl_schema_form formats[] = {
        {"date", YEAR_MONTH_DAY, .exact = true},
        {"time", TIME},
        {"date-time", YEAR_MONTH_DAY "[Tt]" TIME},
        {"duration", "P((([0-9]+D)|([0-9]+M([0-9]+D)?)|([0-9]+Y([0-9]+M([0-9]+D)?)?))"
                     "(T([0-9]+H([0-9]+M([0-9]+S)?)?|[0-9]+M([0-9]+S)?|[0-9]+S))?|"
                     "T([0-9]+H([0-9]+M([0-9]+S)?)?|[0-9]+M([0-9]+S)?|[0-9]+S)|[0-9]+W)"},
        {"email", "(" ATOM "(\\." ATOM ")*|" QUOTED ")@(" HOST_LABEL "(\\." HOST_LABEL
                  ")*|\\[(" IPV4 "|IPv6:" IPV6 ")\\])"},
        {"hostname", HOST_LABEL "(\\." HOST_LABEL ")*"},
        {"ipv4", IPV4, .exact = true},
        {"ipv6", IPV6, .exact = true},
        {"uuid", "[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}",
         .exact = true},
        {"uri", URI},
        {"uri-reference", URI_REFERENCE},
        {"json-pointer", "(/([^/~]|~[01])*)*", .exact = true},
        {"relative-json-pointer", "(0|[1-9][0-9]*)(#|(/([^/~]|~[01])*)*)"},
        {"byte", "([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"}, /* OpenAPI */
        {"host-name", HOST_LABEL "(\\." HOST_LABEL ")*"},                       /* draft 3 */
        {"ip-address", IPV4, .exact = true},                                    /* draft 3 */
        {"idn-email", NULL},
        {"idn-hostname", NULL},
        {"iri", NULL},
        {"iri-reference", NULL},
        {"uri-template", NULL},
        {"regex", NULL},
        {"color", NULL},
        {"style", NULL},
        {"phone", NULL},
        {"utc-millisec", NULL},
    };
    for (size_t i = 0; i < SL_LEN(formats); i++)
        if (!strcmp(formats[i].name, name)) return &formats[i];
    return NULL;
}
