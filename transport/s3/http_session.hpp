#pragma once

#include <sys/uio.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/unique_function.hpp"

namespace cairn {

// HTTP requests over kept connections, many at a time, on the caller's thread: libcurl's multi
// interface. For one thread, but for wake().
class HttpSession {
 public:
  struct Settings {
    std::uint32_t connections = 8;
    std::uint32_t timeout_ms = 5'000;  // without a byte
    std::string ca = {};               // PEM file; empty: the system's
    std::string proxy = {};            // empty: the environment's
  };
  // How a request is signed: AWS signature version 4.
  struct Signature {
    std::string scope;  // "aws:amz:REGION:s3"
    std::string key_id;
    std::string secret;
    std::string token = {};  // of a session; empty: none
  };
  enum class Verb : std::uint8_t { get, put, remove };
  struct Request {
    Verb verb = Verb::get;
    std::string url = {};  // encoded, with its query's fields in order, as the signature needs them
    std::vector<std::string> headers = {};  // "name: value"
    std::vector<iovec> body = {};           // of a put
    // Where the body of a response with status 200 or 206 goes, which must fill it. A piece without
    // a base is skipped. Empty: to Response::text.
    std::vector<iovec> into = {};
    Signature signature = {};
  };
  struct Response {
    long status = 0;        // 0: no response, see `error`
    std::string text = {};  // at most kMaxTextBytes
    std::string error = {};
    bool is_whole = false;  // as many bytes as `into` has
  };
  static constexpr std::size_t kMaxTextBytes = 2u << 20;  // a page of a listing has 1,000 keys

  explicit HttpSession(Settings settings);
  ~HttpSession();

  // The request's memory must stay valid until `done`, which poll() calls.
  void start(Request request, UniqueFunction<void(Response)> done);
  std::size_t in_progress() const;
  // Moves bytes and calls what is done, for at most this long.
  void poll(std::chrono::milliseconds at_most);
  // Ends poll(). Thread-safe.
  void wake();
  // Ends all requests with status 0.
  void cancel_all(const std::string& why);

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace cairn
