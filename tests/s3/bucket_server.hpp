#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "transport/s3/s3_settings.hpp"

namespace cairn::testing {

// A bucket "tests" in memory behind S3's HTTP, as far as the store uses it, with faults. Each
// connection has a thread. It does not check signatures, but refuses requests without one.
class BucketServer {
 public:
  struct Request {
    std::string verb;  // "GET"
    std::string key;   // empty: a listing
    std::string query = {};
    std::string range = {};
    std::string key_id = {};  // of the signature
    std::string token = {};

    bool puts_values() const { return verb == "PUT" && key.find("/uses/") == std::string::npos; }
  };
  // What happens instead of the answer.
  struct Fault {
    int status = 0;         // answers with this status and `code` instead; 0: the real answer
    std::string code = {};  // "SlowDown"
    std::string body = {};  // instead of an error's XML
    std::optional<std::size_t> cut_after = {};  // bytes of the body, then the connection ends
    std::optional<std::size_t> flip_at = {};    // a byte of the body that is changed
  };
  using Faults = std::function<std::optional<Fault>(const Request&)>;

  BucketServer();
  ~BucketServer();
  BucketServer(const BucketServer&) = delete;
  BucketServer& operator=(const BucketServer&) = delete;

  // Settings for a store in this bucket, with times that suit tests.
  S3Settings settings(const std::string& writer = "host1") const;
  std::string url() const;  // of the bucket
  // Sets or removes AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY for the process.
  static void set_keys();
  static void remove_keys();

  void set_faults(Faults faults);
  // Ends all connections and accepts none until start().
  void stop();
  void start();

  std::map<std::string, std::string> objects() const;
  // Those of them that hold values, by their names.
  std::map<std::string, std::string> packed() const;
  void put(const std::string& key, std::string bytes);
  void remove(const std::string& key);
  std::vector<Request> requests() const;
  std::size_t count(const std::string& verb) const;
  std::size_t uploads() const;  // of values

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace cairn::testing
