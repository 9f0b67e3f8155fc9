#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace cairn {

struct MemoryCopy {
  std::byte* destination = nullptr;
  const std::byte* source = nullptr;
  std::uint64_t size_bytes = 0;
};

// Whether the copy writes bytes that it reads; every stream refuses such a copy.
inline bool overlaps_itself(const MemoryCopy& copy) {
  const auto source = reinterpret_cast<std::uintptr_t>(copy.source);
  const auto destination = reinterpret_cast<std::uintptr_t>(copy.destination);
  return source < destination ? destination - source < copy.size_bytes
                              : source - destination < copy.size_bytes;
}

// How the pieces of one call of Stream::copy() are issued. Every form moves the same bytes; they
// differ in the cost of a piece. If a form cannot copy a piece, the piece is copied as with
// `batch`.
enum class CopyForm : std::uint8_t {
  loop,    // one after another
  batch,   // many in one call, if there are enough
  rows,    // pieces at even distances on both sides, as one two-dimensional copy
  kernel,  // by threads of the device, which read and write the memory themselves
};
inline constexpr CopyForm kCopyForms[] = {CopyForm::loop, CopyForm::batch, CopyForm::rows,
                                          CopyForm::kernel};
std::string_view to_string(CopyForm form);

}  // namespace cairn
