#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cairn {

// Returns "; did you mean 'NAME'?" with the name that is one or two letters away from the word:
// changed, added, left out, or swapped with the next. Empty if no name is, or if several are
// equally near. For messages about names that people write.
std::string did_you_mean(std::string_view word, std::span<const std::string_view> names);

// The same for an option, among `described` of Boost.Program_options.
template <class Options>
std::string did_you_mean_option(std::string_view option, const Options& described) {
  std::vector<std::string> names;
  for (const auto& one : described.options()) names.push_back("--" + one->long_name());
  const std::vector<std::string_view> views(names.begin(), names.end());
  return did_you_mean(option, views);
}

}  // namespace cairn
