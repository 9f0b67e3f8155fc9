#include "transport/collective/nccl_library.hpp"

#include <dlfcn.h>

namespace cairn {
namespace {

template <class Function>
bool look_up(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  return function != nullptr;
}

Result<NcclLibrary> open_library() {
  void* const library = ::dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return Error{ErrorCode::unavailable, ::dlerror()};
  NcclLibrary found;
  const bool whole = look_up(library, "ncclGetUniqueId", found.get_unique_id) &&
                     look_up(library, "ncclCommInitRankConfig", found.comm_init_rank_config) &&
                     look_up(library, "ncclCommGetAsyncError", found.comm_get_async_error) &&
                     look_up(library, "ncclCommFinalize", found.comm_finalize) &&
                     look_up(library, "ncclCommDestroy", found.comm_destroy) &&
                     look_up(library, "ncclCommAbort", found.comm_abort) &&
                     look_up(library, "ncclAllReduce", found.all_reduce) &&
                     look_up(library, "ncclAllGather", found.all_gather) &&
                     look_up(library, "ncclBroadcast", found.broadcast) &&
                     look_up(library, "ncclSend", found.send) &&
                     look_up(library, "ncclRecv", found.recv) &&
                     look_up(library, "ncclGroupStart", found.group_start) &&
                     look_up(library, "ncclGroupEnd", found.group_end) &&
                     look_up(library, "ncclGetErrorString", found.get_error_string);
  if (whole) return found;
  return Error{ErrorCode::unavailable, "libnccl.so.2 is older than 2.14"};
}

}  // namespace

Result<const NcclLibrary*> NcclLibrary::load() {
  static const Result<NcclLibrary> library = open_library();
  if (!library) return library.error();
  return &*library;
}

Error NcclLibrary::error(const std::string& call, ncclResult_t result) const {
  const bool remote = result == ncclRemoteError || result == ncclSystemError;
  return {remote ? ErrorCode::peer_lost : ErrorCode::device_error,
          call + ": " + get_error_string(result)};
}

}  // namespace cairn
