#include "server/routes/problem.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace cairn {
namespace {

struct Expected {
  ErrorCode code;
  unsigned status;
};

// Every code, with its status in the contract.
constexpr Expected kAll[] = {
    {ErrorCode::malformed, 400},
    {ErrorCode::unknown_field, 400},
    {ErrorCode::missing_field, 400},
    {ErrorCode::wrong_type, 400},
    {ErrorCode::out_of_range, 400},
    {ErrorCode::wrong_length, 400},
    {ErrorCode::unauthorized, 401},
    {ErrorCode::forbidden, 403},
    {ErrorCode::unknown_host, 421},
    {ErrorCode::cross_site, 403},
    {ErrorCode::unknown_cache, 404},
    {ErrorCode::unknown_lease, 404},
    {ErrorCode::unknown_pin, 404},
    {ErrorCode::unknown_key, 404},
    {ErrorCode::unknown_transfer, 404},
    {ErrorCode::unknown_slot, 404},
    {ErrorCode::unknown_snapshot, 404},
    {ErrorCode::unknown_group, 404},
    {ErrorCode::unknown_agent, 404},
    {ErrorCode::not_found, 404},
    {ErrorCode::method_not_allowed, 405},
    {ErrorCode::stale_generation, 409},
    {ErrorCode::state_conflict, 409},
    {ErrorCode::foreign_lease, 409},
    {ErrorCode::leased, 409},
    {ErrorCode::cache_exists, 409},
    {ErrorCode::exists, 409},
    {ErrorCode::group_exists, 409},
    {ErrorCode::agent_exists, 409},
    {ErrorCode::rank_taken, 409},
    {ErrorCode::lease_expired, 410},
    {ErrorCode::body_too_large, 413},
    {ErrorCode::unsupported_media_type, 415},
    {ErrorCode::range_not_satisfiable, 416},
    {ErrorCode::impossible, 422},
    {ErrorCode::impossible_shape, 422},
    {ErrorCode::unknown_tier, 422},
    {ErrorCode::unknown_kv_group, 422},
    {ErrorCode::broken_snapshot, 422},
    {ErrorCode::queue_full, 429},
    {ErrorCode::too_many, 429},
    {ErrorCode::lease_quota, 429},
    {ErrorCode::unavailable, 503},
    {ErrorCode::peer_lost, 503},
    {ErrorCode::no_capacity, 507},
    {ErrorCode::io_error, 500},
    {ErrorCode::checksum_mismatch, 500},
    {ErrorCode::device_error, 500},
    {ErrorCode::cancelled, 503},
    {ErrorCode::deadline_exceeded, 503},
    {ErrorCode::not_implemented, 501},
    {ErrorCode::internal, 500},
};

TEST(Status, FollowsTheContract) {
  for (std::size_t i = 0; i < std::size(kAll); ++i) {
    SCOPED_TRACE(to_string(kAll[i].code));
    ASSERT_EQ(static_cast<std::size_t>(kAll[i].code), i) << "the table leaves out a code";
    EXPECT_EQ(http_status(kAll[i].code), kAll[i].status);
  }
  EXPECT_EQ(static_cast<std::size_t>(ErrorCode::internal) + 1, std::size(kAll));
}

TEST(Problem, HasTheMembersOfTheStandardAndACode) {
  const auto response = problem({ErrorCode::stale_generation, "slot 3 is at generation 2"});
  EXPECT_EQ(response.status, 409u);
  EXPECT_EQ(response.content_type, "application/problem+json");
  const auto body = nlohmann::json::parse(response.body);
  EXPECT_EQ(body["type"], "urn:cairn:error:stale_generation");
  EXPECT_EQ(body["title"], "Stale generation");
  EXPECT_EQ(body["status"], 409);
  EXPECT_EQ(body["detail"], "slot 3 is at generation 2");
  EXPECT_EQ(body["code"], "stale_generation");
}

TEST(Problem, SetsRetryAfterFor429And503) {
  for (const Expected& one : kAll) {
    const bool says = problem({one.code, ""}).headers.find("Retry-After: ") != std::string::npos;
    EXPECT_EQ(says, one.status == 429 || one.status == 503) << to_string(one.code);
  }
}

TEST(Problem, EscapesInvalidText) {
  const auto response = problem({ErrorCode::malformed, "name is '\xff\x01\"'"});
  EXPECT_TRUE(nlohmann::json::accept(response.body)) << response.body;
}

}  // namespace
}  // namespace cairn
