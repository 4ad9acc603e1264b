/* Two towers a rank, averaged over ranks and towers, in C11. Build and run:
 *
 *   cc -std=c11 average.c $(python -m dl_comm --cflags --libs) -o average
 *   mpiexec -n 4 ./average
 */
#include <dl_comm.h>

#include <stdio.h>
#include <stdlib.h>

static void need(int code, const char *what) {
  if (code == DL_COMM_OK) return;
  fprintf(stderr, "%s: %s\n", what, dl_comm_last_error());
  exit(1);
}

int main(void) {
  need(dl_comm_init(), "init");
  const int rank = dl_comm_get_rank(), ranks = dl_comm_get_nranks();
  need(dl_create_team(0, 1, 0), "create team");

  enum { towers = 2, arrays = 2, weights = 1000, biases = 10 };
  static float weight[towers][weights];
  static double bias[towers][biases];
  for (int t = 0; t < towers; ++t) {
    for (int i = 0; i < weights; ++i) weight[t][i] = (float)(rank * towers + t);
    for (int i = 0; i < biases; ++i) bias[t][i] = rank;
  }

  void *first[arrays] = {weight[0], bias[0]}, *second[arrays] = {weight[1], bias[1]};
  void **tensors[towers] = {first, second};
  int length[arrays] = {weights, biases}, *lengths[towers] = {length, length};
  dlDataType_t type[arrays] = {DL_COMM_FLOAT32, DL_COMM_FLOAT64}, *types[towers] = {type, type};
  int counts[towers] = {arrays, arrays};
  need(dl_comm_gradients(tensors, lengths, types, counts, towers, 0), "gradients");

  const float mean = (float)(ranks * towers - 1) / 2;
  for (int t = 0; t < towers; ++t)
    if (weight[t][0] != mean || weight[t][weights - 1] != mean || bias[t][0] != (ranks - 1) / 2.0) {
      fprintf(stderr, "rank %d: %g is not %g\n", rank, (double)weight[t][0], (double)mean);
      return 1;
    }
  printf("rank %d of %d: the mean is %g\n", rank, ranks, (double)mean);
  need(dl_comm_finalize(), "finalize");
  return 0;
}
