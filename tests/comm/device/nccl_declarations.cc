// Compiles only if dl_comm's declarations of NCCL's functions agree with NCCL's own, as declarations.cc does for CUDA's.
#include <nccl.h>

#include <cstddef>

#include "agreement.h"
#include "device/nccl.h"

#define CHECK(mine, theirs) AGREE(dl::Nccl, mine, theirs)

CHECK(get_version, ncclGetVersion);
CHECK(unique_id, ncclGetUniqueId);
CHECK(init_rank, ncclCommInitRankConfig);
CHECK(async_error, ncclCommGetAsyncError);
CHECK(abort, ncclCommAbort);
CHECK(group_start, ncclGroupStart);
CHECK(group_end, ncclGroupEnd);
CHECK(all_reduce, ncclAllReduce);
CHECK(reduce_scatter, ncclReduceScatter);
CHECK(all_gather, ncclAllGather);
CHECK(broadcast, ncclBroadcast);

using Config = dl::Nccl::Config;
static_assert(offsetof(ncclConfig_t, size) == offsetof(Config, size) && offsetof(ncclConfig_t, magic) == offsetof(Config, magic));
static_assert(offsetof(ncclConfig_t, version) == offsetof(Config, version));
static_assert(offsetof(ncclConfig_t, blocking) == offsetof(Config, blocking));
constexpr ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;
static_assert(theirs.magic == Config{}.magic && Config{}.version == NCCL_VERSION(2, 14, 0));
static_assert(sizeof(ncclUniqueId) == sizeof(dl::Nccl::Id) && ncclInProgress == dl::Nccl::in_progress);
static_assert(ncclSum == 0 && ncclProd == 1 && ncclMax == 2 && ncclMin == 3 && ncclAvg == 4);
static_assert(ncclInt8 == 0 && ncclUint8 == 1 && ncclInt32 == 2 && ncclInt64 == 4 && ncclFloat32 == 7 && ncclFloat64 == 8);
