/* Limits that more than one place has to agree on, each with what it bounds. One that a single file
 * keeps stands there. Options and documents that quote one of these are compared with it (CTest
 * house.rows). */
#ifndef SL_SPEC_LIMITS_H
#define SL_SPEC_LIMITS_H

/* Of one request. */
#define SL_MAX_LOGIT_BIAS  1024u  /* tokens whose logits it changes... */
#define SL_MAX_BIAS        100    /* ...by so much at most, up or down */
#define SL_MAX_STOP_IDS    64u    /* ids that end it besides the model's */
#define SL_MAX_BAD_WORDS   1024u  /* sequences of tokens that it never ends in... */
#define SL_MAX_BAD_TOKENS  16384u /* ...and the tokens of all of them */
#define SL_MAX_LOGPROBS    20u    /* likeliest tokens reported beside the chosen one... */
#define SL_MAX_SCORED      128u   /* ...and ids that it names, which are reported, too; so... */
#define SL_MAX_REPORTED    (1 + SL_MAX_LOGPROBS + SL_MAX_SCORED) /* ...with a token at most */
#define SL_MAX_SHAPE       (4u << 20) /* bytes that describe its answer (grammar/grammar.h) */
#define SL_MAX_TEMPERATURE 100        /* a client may ask for less: spec/sampling.def */
#define SL_MAX_REPETITION  100        /* repetition_penalty */

/* Tokens of a request that an attention worker generates at most past what it knows the coordinator
 * to have seen: what a lost worker, a slow link or a cancelled request may cost. Pages are granted
 * so far ahead. */
#define SL_MAX_AHEAD 32u

/* KV pages that an attention worker is told to fetch at most before it has said what became of the
 * ones before. */
#define SL_MAX_FETCHES 8u

/* Workers of a plan, members of a round, ids in a message's set; ids of a plan's workers are below
 * it. It bounds what is read; nothing is sized by it, but by the plan's own number of workers. */
#define SL_MAX_WORKERS 16384u

/* Of one attention worker, as a plan may say. */
#define SL_PLAN_MAX_SEQS    4096u      /* requests that run at once */
#define SL_PLAN_MAX_BATCH   16384u     /* rows of one lane's step */
#define SL_PLAN_MAX_CONTEXT (1u << 20) /* positions of a request */
#define SL_PLAN_MAX_PAGES   (1u << 22) /* KV pages */
#define SL_PLAN_MAX_STRETCH 1e6        /* times a step without prompts */
#define SL_PLAN_MAX_THREADS 256u       /* of one worker's kernels */
#define SL_PLAN_MAX_LANES   16u        /* micro-batches in flight */
#define SL_PLAN_MAX_RESOLVE 1000000u   /* steps after which a schedule is chosen anew */
#define SL_PLAN_MAX_CHUNKS  32u        /* of one micro-batch */

/* Of one message of the fabric: a plan whose messages would be larger is refused. */
#define SL_WIRE_TIMES_BYTES 8u           /* behind rows that come back (net/wire.h) */
#define SL_WIRE_MAX_BYTES   (256u << 20) /* of its payload */
#define SL_WIRE_MAX_ROWS    65536u       /* of a batch of rows */

/* Of a model that is read, from whatever file. */
#define SL_MAX_LAYERS         512        /* blocks */
#define SL_MAX_D_MODEL        (1u << 17) /* hidden size; also of latents */
#define SL_MAX_VOCAB          (1u << 24) /* ids */
#define SL_MAX_POSITION       (1u << 30) /* context it was made for */
#define SL_MAX_HEADS          4096u      /* of queries, of keys */
#define SL_HEAD_DIM_MAX       1024       /* values of a head */
#define SL_DELTA_DIM          256u       /* of a head of linear attention, */
#define SL_DELTA_VALUES       4096u      /* of all value heads of a key head, */
#define SL_DELTA_TAPS         8u         /* and positions of its convolution */
#define SL_MAX_ROPE_DIM       512u       /* of those of a latent's key that are rotated */
#define SL_MAX_ROPE_FACTOR    1024       /* by which a context is stretched */
#define SL_MAX_WIDTH          (1u << 20) /* of a feed-forward */
#define SL_MAX_EXPERTS        4096       /* routed ones of a block */
#define SL_MAX_SHARED_EXPERTS 64u        /* of a block */
#define SL_MAX_TOP_K          64         /* experts of a token: bits of a row's mask */
#define SL_MAX_GROUPS         256        /* of experts */
#define SL_MAX_MTP            16u        /* blocks behind the last that predict further tokens */
#define SL_MAX_EOS            16         /* ids that end generation */

/* Bytes of a model's config.json. */
#define SL_MAX_CONFIG_BYTES (4u << 20)

#endif
