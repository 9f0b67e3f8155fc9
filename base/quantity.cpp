#include "base/quantity.hpp"

#include <charconv>
#include <cmath>
#include <span>
#include <string>

namespace cairn {
namespace {

struct Unit {
  std::string_view name;
  double factor;
};

constexpr double kKi = 1024.0;
constexpr Unit kByteUnits[] = {
    {"B", 1.0},
    {"KiB", kKi},
    {"MiB", kKi* kKi},
    {"GiB", kKi* kKi* kKi},
    {"TiB", kKi* kKi* kKi* kKi},
    {"Ki", kKi},
    {"Mi", kKi* kKi},
    {"Gi", kKi* kKi* kKi},
    {"Ti", kKi* kKi* kKi* kKi},
    {"kB", 1e3},
    {"KB", 1e3},
    {"MB", 1e6},
    {"GB", 1e9},
    {"TB", 1e12},
};
constexpr Unit kDurationUnits[] = {
    {"ms", 1.0}, {"s", 1e3}, {"m", 60e3}, {"h", 3600e3}, {"d", 86400e3}};

constexpr double kMost = 9007199254740992.0;  // 2^53

std::optional<std::uint64_t> parse(std::string_view text, std::span<const Unit> units) {
  double number = 0.0;
  const char* const end = text.data() + text.size();
  const auto [unit, failure] = std::from_chars(text.data(), end, number, std::chars_format::fixed);
  if (failure != std::errc() || number < 0.0) return std::nullopt;
  const std::string_view name(unit, static_cast<std::size_t>(end - unit));
  for (const Unit& one : units) {
    if (one.name != name) continue;
    const double result = number * one.factor;
    if (!(result <= kMost) || std::trunc(result) != result) return std::nullopt;
    return static_cast<std::uint64_t>(result);
  }
  return std::nullopt;
}

enum class Kind { none, bytes, bytes_per_s, duration };

Kind kind_of(std::string_view name) {
  std::string words(name);
  for (char& letter : words) letter = letter == '-' ? '_' : letter;
  const auto is = [&](std::string_view end) {
    return words == end || words.ends_with("_" + std::string(end));
  };
  if (is("bytes_per_s")) return Kind::bytes_per_s;
  if (is("bytes")) return Kind::bytes;
  return is("ms") ? Kind::duration : Kind::none;
}

}  // namespace

std::optional<std::uint64_t> parse_bytes(std::string_view text) { return parse(text, kByteUnits); }

std::optional<std::uint64_t> parse_duration_ms(std::string_view text) {
  return parse(text, kDurationUnits);
}

std::optional<std::uint64_t> parse_quantity(std::string_view name, std::string_view text) {
  switch (kind_of(name)) {
    case Kind::bytes:
      return parse_bytes(text);
    case Kind::bytes_per_s:
      return parse_bytes(text.ends_with("/s") ? text.substr(0, text.size() - 2) : text);
    case Kind::duration:
      return parse_duration_ms(text);
    case Kind::none:
      break;
  }
  return std::nullopt;
}

std::string_view quantity_example(std::string_view name) {
  switch (kind_of(name)) {
    case Kind::bytes:
      return "16GiB";
    case Kind::bytes_per_s:
      return "200MiB/s";
    case Kind::duration:
      return "10s";
    case Kind::none:
      break;
  }
  return "";
}

}  // namespace cairn
