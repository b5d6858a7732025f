/* Limits that rooms on both sides of a wall have to agree on. */
#ifndef SL_SPEC_LIMITS_H
#define SL_SPEC_LIMITS_H

/* Tokens of a request that an attention worker generates at most past what it knows the coordinator
 * to have seen: what a lost worker, a slow link or a cancelled request may cost. Pages are granted
 * so far ahead. */
#define SL_MAX_AHEAD 32u

/* Of one request. */
#define SL_MAX_LOGIT_BIAS 1024u /* tokens whose logits it changes... */
#define SL_MAX_BIAS       100   /* ...by so much at most, up or down */
#define SL_MAX_STOP_IDS   64u   /* ids that end it besides the model's */
#define SL_MAX_LOGPROBS   20u   /* likeliest tokens reported beside the chosen one */

#endif
