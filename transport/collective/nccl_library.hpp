#pragma once

#include <nccl.h>

#include <string>

#include "base/result.hpp"

namespace cairn {

// NCCL's functions, from the library that is found when they are first needed: it is 300 MB, and a
// server without groups over NCCL runs without it.
struct NcclLibrary {
  decltype(&ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&ncclCommInitRankConfig) comm_init_rank_config = nullptr;
  decltype(&ncclCommGetAsyncError) comm_get_async_error = nullptr;
  decltype(&ncclCommFinalize) comm_finalize = nullptr;
  decltype(&ncclCommDestroy) comm_destroy = nullptr;
  decltype(&ncclCommAbort) comm_abort = nullptr;
  decltype(&ncclAllReduce) all_reduce = nullptr;
  decltype(&ncclAllGather) all_gather = nullptr;
  decltype(&ncclBroadcast) broadcast = nullptr;
  decltype(&ncclSend) send = nullptr;
  decltype(&ncclRecv) recv = nullptr;
  decltype(&ncclGroupStart) group_start = nullptr;
  decltype(&ncclGroupEnd) group_end = nullptr;
  decltype(&ncclGetErrorString) get_error_string = nullptr;

  // The process's; never unloaded, since NCCL has threads. unavailable, with the loader's words.
  static Result<const NcclLibrary*> load();

  // peer_lost where the other side is to blame, device_error else.
  Error error(const std::string& call, ncclResult_t result) const;
};

}  // namespace cairn
