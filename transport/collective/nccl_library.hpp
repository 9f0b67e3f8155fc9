#pragma once

#include <nccl.h>

#include <string>

#include "base/result.hpp"

namespace cairn {

// NCCL's functions. The library is 300 MB, so it is loaded on first use, and a server without NCCL
// groups runs without it.
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

  // Loads once per process and never unloads, because NCCL has threads. Returns unavailable with
  // the loader's message.
  static Result<const NcclLibrary*> load();

  // peer_lost if the other side is to blame, else device_error.
  Error error(const std::string& call, ncclResult_t result) const;
};

}  // namespace cairn
