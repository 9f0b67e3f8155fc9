#pragma once

#include "base/result.hpp"
#include "server/codec/document.hpp"
#include "server/codec/requests.hpp"

// The hot requests read from a document (MessagePack), with the errors of hot_json.
namespace cairn::hot_document {

Result<> read_match(const json& body, const MatchLimits& limits, MatchBody& out);
Result<AllocateBody> read_allocate(const json& body);
Result<CommitBody> read_commit(const json& body, std::size_t max_blocks);
Result<ReleaseBody> read_release(const json& body, std::size_t max_blocks);
Result<RenewBody> read_renew(const json& body);

}  // namespace cairn::hot_document
