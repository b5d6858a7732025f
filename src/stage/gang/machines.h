/* Jobs for one rank of a gang whose ranks are on machines, which a pipeline gives (pipeline.h):
 * several may be under way, and a rank answers them one after the other. Whoever is gone, or
 * answers wrongly, is the worker's end: these do not return then. For src/stage/gang only. Thread:
 * rank 0's. */
#ifndef SL_STAGE_GANG_MACHINES_H
#define SL_STAGE_GANG_MACHINES_H

#include "stage/gang/gang_int.h"

/* Bytes of the memory that jobs travel through, where this one needs more than there is; 0: it has
 * room. */
size_t gang_machines_lack(const gang *g, const gang_job *j);
/* So much of it, for which all ranks are asked: no job may be under way, and rank 0 may not be in
 * one. */
void gang_machines_reserve(gang *g, size_t bytes);
/* Its number. There has to be room for it, and GANG_MOST_JOBS of a rank at most may be under way.
 */
uint64_t gang_machines_give(gang *g, uint32_t rank, const gang_job *j);
/* The rank's next answer has come. */
bool gang_machines_have_answer(gang *g, uint32_t rank);
/* Waits for it; own: the job with that number as it was given, to which its results go. */
void gang_machines_take_answer(gang *g, uint32_t rank, uint64_t number, const gang_job *own);

#endif
