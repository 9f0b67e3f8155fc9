#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace cairn {

enum class StoreOperation : std::uint8_t { probe, read, write, touch, announce, withdraw };
inline constexpr std::size_t kNumStoreOperations = 6;
std::string_view to_string(StoreOperation operation);

}  // namespace cairn
