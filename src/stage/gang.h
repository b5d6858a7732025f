/* The process of a gang's rank (docs/tensor-parallel.md). A device whose ranks are processes starts
 * them as `/proc/self/exe worker --rank-fd FD`: a program that opens such devices calls this where
 * it is started so. */
#ifndef SL_STAGE_GANG_H
#define SL_STAGE_GANG_H

#include "base/status.h"

/* Computes as the rank that who holds the other end of the socket says, until it is told to leave
 * (SL_OK) or that end is closed (SL_ERR_PEER_DOWN). Takes the socket. From here on SIGINT, SIGTERM
 * and SIGHUP do nothing to this process: it ends with the one that started it. Thread: the only
 * one. */
sl_status sl_gang_run_rank(int fd, sl_err *err) SL_MUST_CHECK;

#endif
