/* Which Sluice this is. */
#ifndef SL_BASE_VERSION_H
#define SL_BASE_VERSION_H

/* As packaging/version.py has it, "0.1.0+g1a2b3c4d"; of a build that is nobody's release, as of the
 * tree's developers, "0.1.0+dev". Thread: any. */
const char *sl_version(void);

#endif
