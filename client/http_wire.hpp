#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "client/answer.hpp"
#include "client/blocks.hpp"

// The contract's values as JSON. If a response lacks something, the error is kBadAnswer and names
// it.
namespace cairn::client {

std::string percent_encoded(std::string_view text);

nlohmann::json hex_list(KeyList keys);
// Each key's parent: `parent` for the first (null if empty), the key before it for the others.
nlohmann::json parent_list(KeyList keys, std::span<const std::byte> parent);
nlohmann::json json_of(const BlockHandle& handle);

Answer<nlohmann::json> json_from(std::string_view text);
// Reads a problem+json body. A body of any other form becomes the detail.
ClientError problem_from(unsigned status, std::string_view body);

// `asked` are the keys of the request. Returns an error if the response is not a prefix of them.
Answer<Match> match_from(const nlohmann::json& answer, KeyList asked);
Answer<GroupMatch> group_match_from(const nlohmann::json& answer);
Answer<Allocation> allocation_from(const nlohmann::json& answer);
Answer<Transfer> transfer_from(const nlohmann::json& answer);
// The `status` of each of the response's `blocks`. Returns an error unless there are `count`.
Answer<std::vector<StoreStatus>> statuses_from(const nlohmann::json& answer, std::size_t count);

// Turns nlohmann's exceptions for a missing field or a wrong type into kBadAnswer.
template <class Read>
auto guarded(Read&& read) -> Answer<decltype(read())> {
  try {
    return read();
  } catch (const nlohmann::json::exception& broken) {
    return ClientError{0, kBadAnswer, broken.what()};
  }
}

template <class T>
Answer<T> field_from(const nlohmann::json& answer, const char* name) {
  return guarded([&] { return answer.at(name).get<T>(); });
}

}  // namespace cairn::client
