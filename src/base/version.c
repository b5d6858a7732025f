/* Which Sluice this is: alone in its file, so that another version compiles nothing else. */
#include "base/version.h"

const char *sl_version(void) {
    return SL_VERSION;
}
