/* dl_comm: averages gradients over the ranks of a data-parallel job, from C. The names are the Cray PE DL Plugin's.
 *
 * The contract
 *
 *   Returns      Every function returns 0 on success and a DL_COMM_ERR_ code otherwise, except those that return a rank
 *                or a number of ranks, which return -1 on failure. dl_comm_last_error() then says what is so and what to
 *                do, in this thread's words. No function ends the process.
 *   Collective   init, create_team, gradients, broadcast, average, barrier and finalize are called by all ranks, in the
 *                same order, with the same number of arrays, of the same lengths and types. Ranks that differ all get
 *                DL_COMM_ERR_DISAGREE, and may go on. After any other error a team is lost.
 *   Launcher     Under mpiexec, srun or the like; MPI is found and loaded at run time, and is initialised if the program
 *                has not done so. Without a launcher the process is rank 0 of 1.
 *   Memory       Arrays belong to the caller, are changed in place, and are not touched after the call returns.
 *   Threads      Any thread may call. Calls on one team are done one after the other; different teams work at once.
 *   Limits       Lengths are ints in Cray's functions: 2^31 - 1 elements an array. The functions ending in 64 have no
 *                such limit.
 *   Environment  DL_COMM_* variables, listed in the documentation; a bad value makes init fail and is named.
 */
#ifndef DL_COMM_H
#define DL_COMM_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum dlDataType_t {
  DL_COMM_FLOAT64 = 0,
  DL_COMM_FLOAT32 = 1,
  DL_COMM_FLOAT16 = 2,
  DL_COMM_BFLOAT16 = 3,
  DL_COMM_INT8 = 4,
  DL_COMM_INT16 = 5,
  DL_COMM_INT32 = 6,
  DL_COMM_INT64 = 7,
  DL_COMM_UINT8 = 8
} dlDataType_t;

enum {
  DL_COMM_OK = 0,
  DL_COMM_ERR_COMM = 1,     /* a rank died, did not come in time, or MPI failed */
  DL_COMM_ERR_DISAGREE = 2, /* the ranks made different calls */
  DL_COMM_ERR_OTHER = 3     /* out of memory, and whatever else */
};

/* Joins the ranks; after it the ranks and sizes are known. Idempotent. */
int dl_comm_init_mpi(void);

/* The same, for a program that needs nothing between the two. Teams are made by dl_create_team or at first use. */
int dl_comm_init(void);

/* Leaves, once every rank does. Finalizes MPI if dl_comm initialised it. Idempotent. */
int dl_comm_finalize(void);

/* Makes team `teamID` (0 to 399) with this many threads. prec_level 1 sums floats in double; 0 in their own precision,
 * and the half types in float32. */
int dl_create_team(int teamID, int nthreads_in_team, int prec_level);
int dl_comm_create_team(int teamID, int nthreads_in_team, int prec_level);

/* Replaces every array by its mean over all ranks and towers (models in this process), in place.
 *
 * all_tensors[t][i] is array i of tower t, lengths[t][i] its elements, dtypes[t][i] their type. Every tower holds the
 * same arrays: ntensors_on_tower[t], their lengths and types are equal for all t. Towers are averaged first, and the
 * result is rounded to the arrays' type before the ranks are. */
int dl_comm_gradients(void ***all_tensors, int **lengths, dlDataType_t **dtypes, int *ntensors_on_tower, int ntowers,
                      int teamID);
int dl_comm_gradients64(void ***all_tensors, int64_t **lengths, dlDataType_t **dtypes, int *ntensors_on_tower,
                        int ntowers, int teamID);

/* Gives every array of every tower the values of tower 0 of rank `root`. */
int dl_comm_broadcast(void ***all_tensors, int **lengths, dlDataType_t **dtypes, int *ntensors_on_tower, int ntowers,
                      int root);
int dl_comm_broadcast64(void ***all_tensors, int64_t **lengths, dlDataType_t **dtypes, int *ntensors_on_tower,
                        int ntowers, int root);

/* Replaces `length` floats by their mean over all ranks. */
int dl_comm_average(float *values, int64_t length);

/* Returns once every rank has called. */
int dl_comm_barrier(void);

/* Memory shared by the ranks of this node: arrays in it are reduced where they lie, without a copy. *memory points to
 * `bytes` zeroed bytes that live as long as the process. */
int dl_comm_arena(int64_t bytes, void **memory);

int dl_comm_get_rank(void);      /* number of this rank, from 0 */
int dl_comm_get_nranks(void);    /* number of ranks */
int dl_comm_localrank(void);     /* number of this rank among those of its node */
int dl_comm_get_localrank(void); /* the same */
int dl_comm_get_localsize(void); /* number of ranks on this node */

/* What the last failed call of this thread met, and what to do; "" if none failed. Valid until its next failed call. */
const char *dl_comm_last_error(void);

#ifdef __cplusplus
}
#endif

#endif
