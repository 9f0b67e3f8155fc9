#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace cairn {

// Sizes and durations as people write them: a number, which may have a fraction, and a unit behind
// it without a space. nullopt: another form, no unit, a result that is no whole number, or one
// beyond 2^53, the largest whole number that each JSON reader represents.

// B, KiB, MiB, GiB, TiB (powers of 1024), kB, MB, GB, TB (powers of 1000): "16GiB", "1.5TB". Also
// Ki, Mi, Gi, Ti, as Kubernetes writes them.
std::optional<std::uint64_t> parse_bytes(std::string_view text);

// ms, s, m, h, d: "10s", "5m", "1.5h". In milliseconds.
std::optional<std::uint64_t> parse_duration_ms(std::string_view text);

// By the unit at the end of the name of what is set: "..._ms" is a duration, "..._bytes" a size,
// "..._bytes_per_s" a size, which may be written with "/s". nullopt also for other names. A name
// may have hyphens, as in flags.
std::optional<std::uint64_t> parse_quantity(std::string_view name, std::string_view text);

// An example for an error: "16GiB", "10s"; empty for names that parse_quantity() does not know.
std::string_view quantity_example(std::string_view name);

}  // namespace cairn
