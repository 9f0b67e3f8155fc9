#include "blockmgr/disk/learnt_file.hpp"

#include <array>
#include <cstring>
#include <string>
#include <system_error>

#include "base/assert.hpp"
#include "base/durable_file.hpp"
#include "base/hash.hpp"
#include "base/mapped_data.hpp"
#include "blockmgr/disk/index_file.hpp"
#include "transport/io/slot_file.hpp"

namespace cairn {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kLearnt = "learnt";
constexpr std::array<char, 8> kLearntMagic = {'C', 'A', 'I', 'R', 'N', 'L', 'R', 'N'};
constexpr std::uint64_t kLearntVersion = 1;

struct LearntHead {
  std::array<char, 8> magic = kLearntMagic;
  std::uint64_t version = kLearntVersion;
  std::uint64_t file_id = 0;
  std::uint64_t checksum = 0;  // of the bytes after the head
};
static_assert(sizeof(LearntHead) == 32);

}  // namespace

Result<> write_learnt(const LearntFile& file, std::span<const std::byte> learnt) {
  CAIRN_ASSERT(learnt.size() <= kMaxLearntBytes, "the next start would refuse it");
  const fs::path path = beside_slot_file(file.slot_file, kLearnt);
  if (learnt.empty()) {
    std::error_code failure;
    fs::remove(path, failure);
    if (failure) return Error{ErrorCode::io_error, path.string() + ": " + failure.message()};
    return {};
  }
  const LearntHead head{.file_id = file.file_id, .checksum = hash_bytes(learnt, 0)};
  std::vector<std::byte> bytes(sizeof(head) + learnt.size());
  std::memcpy(bytes.data(), &head, sizeof(head));
  std::memcpy(bytes.data() + sizeof(head), learnt.data(), learnt.size());
  return write_durably(path, bytes);
}

Result<std::vector<std::byte>> read_learnt(const LearntFile& file) {
  const fs::path path = beside_slot_file(file.slot_file, kLearnt);
  auto mapped = MappedData::open(path, {});
  if (!mapped) return std::move(mapped).error();
  const std::span<const std::byte> bytes = mapped->bytes();
  LearntHead head;
  const bool fits = bytes.size() >= sizeof(head) && bytes.size() - sizeof(head) <= kMaxLearntBytes;
  if (fits) std::memcpy(&head, bytes.data(), sizeof(head));
  const bool is_whole = fits && head.magic == kLearntMagic && head.version == kLearntVersion &&
                        head.file_id == file.file_id &&
                        head.checksum == hash_bytes(bytes.subspan(sizeof(head)), 0);
  if (!is_whole) {
    return Error{ErrorCode::checksum_mismatch,
                 path.string() + " is damaged, or of another version or slot file"};
  }
  const auto learnt = bytes.subspan(sizeof(head));
  return std::vector<std::byte>(learnt.begin(), learnt.end());
}

void remove_learnt(const fs::path& slot_file) {
  const fs::path path = beside_slot_file(slot_file, kLearnt);
  std::error_code ignored;
  fs::remove(path, ignored);
  fs::remove(path.string() + ".new", ignored);  // left by an interrupted write
}

}  // namespace cairn
