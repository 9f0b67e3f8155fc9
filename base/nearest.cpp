#include "base/nearest.hpp"

#include <algorithm>
#include <array>
#include <cstddef>

namespace cairn {
namespace {

// No name is longer. A longer word cannot be near one.
constexpr std::size_t kMaxLetters = 64;
constexpr std::size_t kMaxChanges = 2;

// The optimal string alignment distance: each letter takes part in one change at most.
std::size_t changes(std::string_view word, std::string_view name) {
  std::array<std::array<std::size_t, kMaxLetters + 1>, kMaxLetters + 1> least;
  for (std::size_t i = 0; i <= word.size(); ++i) least[i][0] = i;
  for (std::size_t j = 0; j <= name.size(); ++j) least[0][j] = j;
  for (std::size_t i = 1; i <= word.size(); ++i) {
    for (std::size_t j = 1; j <= name.size(); ++j) {
      const std::size_t is_other = word[i - 1] == name[j - 1] ? 0 : 1;
      least[i][j] =
          std::min({least[i - 1][j] + 1, least[i][j - 1] + 1, least[i - 1][j - 1] + is_other});
      const bool swapped =
          i > 1 && j > 1 && word[i - 1] == name[j - 2] && word[i - 2] == name[j - 1];
      if (swapped) least[i][j] = std::min(least[i][j], least[i - 2][j - 2] + 1);
    }
  }
  return least[word.size()][name.size()];
}

}  // namespace

std::string did_you_mean(std::string_view word, std::span<const std::string_view> names) {
  if (word.size() > kMaxLetters) return {};
  // Of three letters, two would be nearly all.
  std::size_t best = std::min(kMaxChanges, word.size() / 2) + 1;
  std::string_view nearest;
  for (const std::string_view name : names) {
    const std::size_t longer = std::max(word.size(), name.size());
    if (name.size() > kMaxLetters || longer - std::min(word.size(), name.size()) >= best + 1) {
      continue;
    }
    const std::size_t count = changes(word, name);
    if (count == best) nearest = {};
    if (count < best) {
      best = count;
      nearest = name;
    }
  }
  return nearest.empty() ? "" : "; did you mean '" + std::string(nearest) + "'?";
}

}  // namespace cairn
