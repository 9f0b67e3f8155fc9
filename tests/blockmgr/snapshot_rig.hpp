#pragma once

#include <fstream>
#include <future>
#include <iterator>

#include "tests/blockmgr/rig.hpp"

namespace cairn::testing {

// A rig whose snapshots can be waited for.
class SnapshotRig : public Rig {
 public:
  using Rig::Rig;

  Snapshots& snapshots() { return manager->snapshots(); }
  std::filesystem::path file(const std::string& name, const std::string& cache = "test") {
    return snapshots().file_of(cache, name).value();
  }

  TransferStatus wait(TransferId id) {
    auto ended = std::make_shared<std::promise<TransferStatus>>();
    auto watched = manager->watch_transfer(
        id, [ended](const TransferStatus& status) { ended->set_value(status); });
    if (!watched) throw std::runtime_error(watched.error().detail);
    return ended->get_future().get();
  }
  // Waits for the job. Returns its error if it was refused or failed.
  Result<TransferStatus> end_of(const Result<TransferId>& id) {
    if (!id) return id.error();
    TransferStatus status = wait(*id);
    if (status.error) return std::move(*status.error);
    return status;
  }
  Result<TransferStatus> make(const std::shared_ptr<Cache>& cache, const std::string& name,
                              bool compress = false) {
    return end_of(snapshots().make(cache, {.name = name, .compress = compress}));
  }
  Result<TransferStatus> restore(const std::shared_ptr<Cache>& cache, const std::string& name,
                                 bool partial = false) {
    return end_of(snapshots().restore(cache, {.file = file(name), .partial = partial}));
  }
  Result<TransferStatus> replace(const std::shared_ptr<Cache>& cache, const std::string& name,
                                 bool partial = false) {
    return end_of(
        snapshots().restore(cache, {.file = file(name), .partial = partial, .replace = true}));
  }
};

inline std::string contents(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline void overwrite(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

// The files in the cache's folder of snapshots.
inline std::vector<std::string> files_of(const Rig& rig, const std::string& cache = "test") {
  std::vector<std::string> names;
  std::error_code none;
  for (const auto& entry :
       std::filesystem::directory_iterator(rig.dir.path() / "snapshots" / cache, none)) {
    names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace cairn::testing
