#include "blockmgr/disk/learnt_file.hpp"

#include "base/assert.hpp"

namespace cairn {
namespace {

constexpr SideFileKind kLearnt{.name = "learnt",
                               .magic = {'C', 'A', 'I', 'R', 'N', 'L', 'R', 'N'},
                               .max_bytes = kMaxLearntBytes};

}  // namespace

Result<> write_learnt(const SideFile& file, std::span<const std::byte> learnt) {
  CAIRN_ASSERT(learnt.size() <= kMaxLearntBytes, "the next start would refuse it");
  return write_side_file(file, kLearnt, learnt);
}

Result<std::vector<std::byte>> read_learnt(const SideFile& file) {
  return read_side_file(file, kLearnt);
}

void remove_learnt(const std::filesystem::path& slot_file) { remove_side_file(slot_file, kLearnt); }

}  // namespace cairn
