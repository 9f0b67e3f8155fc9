#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/result.hpp"
#include "transport/s3/http_session.hpp"
#include "transport/s3/rate_budget.hpp"
#include "transport/s3/s3_answers.hpp"
#include "transport/s3/s3_credentials.hpp"
#include "transport/s3/s3_settings.hpp"
#include "transport/store/circuit.hpp"

namespace cairn {

// A bucket's requests, signed, within their bounds, and paused after a failure. For one thread.
// Errors: unavailable (no answer, paused, or a bound is reached), forbidden, io_error (any other
// refusal), malformed (a listing), wrong_length (a read). Their texts have no secret.
class S3Bucket {
 public:
  enum class Call : std::uint8_t { get, put, list, remove };
  static constexpr std::size_t kNumCalls = 4;
  struct Counts {
    std::array<std::uint64_t, kNumCalls> requests{};
    std::uint64_t received_bytes = 0;
    std::uint64_t sent_bytes = 0;
    std::uint64_t over_bounds = 0;  // requests that were not sent because of a bound
  };

  explicit S3Bucket(const S3Settings& settings);

  // Fetches keys, and new ones before they expire. Call it again and again.
  void keep_keys();

  struct Read {
    std::string object;  // below the prefix
    std::uint64_t offset = 0;
    std::vector<iovec> into = {};  // a piece without a base is skipped
  };
  // False: there is no such object.
  void read(Read read, UniqueFunction<void(Result<bool>)> done);
  void write(const std::string& object, std::vector<iovec> body,
             UniqueFunction<void(Result<>)> done);
  // A page of the objects whose names follow `after`. Their keys are names below the prefix.
  void list(const std::string& after, UniqueFunction<void(Result<S3Listing>)> done);
  void remove(const std::string& object, UniqueFunction<void(Result<>)> done);

  bool is_paused() const { return circuit_.is_open(); }
  std::chrono::steady_clock::time_point paused_until() const { return circuit_.open_until(); }
  // Whether a request of this many bytes may be sent now: there are keys, and it is within the
  // bounds.
  bool may(std::uint64_t bytes);
  const std::string& last_error() const { return last_error_; }  // empty since a success
  const Counts& counts() const { return counts_; }
  HttpSession& session() { return session_; }

 private:
  struct Sent {
    Call call;
    std::uint64_t bytes;
  };
  // Why no request may be sent now.
  std::optional<Error> refusal(std::uint64_t bytes);
  void send(Sent what, HttpSession::Request request,
            UniqueFunction<void(HttpSession::Response)> done);
  std::string url_of(const std::string& object) const;
  // Notes the failure and describes it.
  Error failed(const HttpSession::Response& response);
  void succeeded();

  void renew_keys();

  const S3Settings settings_;
  const S3KeySource source_;
  const SystemClock clock_;
  const std::string url_;
  S3Keys keys_;  // without an id: not fetched yet
  bool is_fetching_ = false;
  std::chrono::steady_clock::time_point next_renewal_{};
  HttpSession session_;
  RateBudget requests_;
  RateBudget daily_requests_;
  RateBudget bytes_;
  Circuit circuit_;
  std::minstd_rand random_{std::random_device{}()};
  std::string last_error_;
  Counts counts_;
};

// Whether there are keys, or a role to fetch them of. Errors: as load_keys().
Result<> check_keys(const S3Settings& settings);

}  // namespace cairn
