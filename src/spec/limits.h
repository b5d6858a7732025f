/* Limits that rooms on both sides of a wall have to agree on. */
#ifndef SL_SPEC_LIMITS_H
#define SL_SPEC_LIMITS_H

/* Tokens of a request that an attention worker generates at most past what it knows the coordinator
 * to have seen: what a lost worker, a slow link or a cancelled request may cost. Pages are granted
 * so far ahead. */
#define SL_MAX_AHEAD 32u

#endif
