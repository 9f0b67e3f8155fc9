#pragma once

#include <future>
#include <memory>
#include <string>
#include <vector>

#include "tests/base/eventually.hpp"
#include "tests/s3/bucket_server.hpp"
#include "transport/s3/s3_store.hpp"

namespace cairn::testing {

// A store that waits for each answer.
class S3Client {
 public:
  using Presence = RemoteStore::Presence;
  using Reply = std::future<Result<bool>>;

  explicit S3Client(S3Settings settings) : store_(*make_s3_store(std::move(settings))) {}

  RemoteStore& operator*() { return *store_; }

  // The value stays valid until the end of this client.
  Reply begin_write(const std::string& name, const std::string& value, std::uint64_t ttl_ms = 0) {
    auto& kept = kept_.emplace_back(std::make_unique<std::string>(value));
    return call([&](auto done) {
      store_->write({.name = name, .from = halves(*kept), .ttl_ms = ttl_ms}, std::move(done));
    });
  }
  // Cuts each of `into` to the size of its value. False: there is none.
  std::vector<Reply> begin_reads(const std::vector<std::string>& names,
                                 std::vector<std::string>& into) {
    std::vector<Reply> replies;
    std::vector<RemoteStore::Read> reads;
    auto promises = std::make_shared<std::vector<std::promise<Result<bool>>>>(names.size());
    for (std::size_t i = 0; i < names.size(); ++i) {
      replies.push_back((*promises)[i].get_future());
      reads.push_back({.name = names[i], .into = halves(into[i])});
    }
    store_->read(std::move(reads),
                 [&into, promises](std::size_t i, const RemoteStore::ReadResult& size) {
                   if (!size) return (*promises)[i].set_value(size.error());
                   if (*size) into[i].resize(**size);
                   (*promises)[i].set_value(size->has_value());
                 });
    return replies;
  }
  Result<bool> write(const std::string& name, const std::string& value, std::uint64_t ttl_ms = 0) {
    return begin_write(name, value, ttl_ms).get();
  }
  // Writes them all into the same objects.
  void write_all(const std::vector<std::string>& names, std::size_t bytes) {
    std::vector<Reply> replies;
    for (const std::string& name : names) replies.push_back(begin_write(name, value(name, bytes)));
    for (Reply& reply : replies) reply.get().value();
  }
  Result<bool> read(const std::string& name, std::string& into) {
    std::vector<std::string> one{std::move(into)};
    auto there = begin_reads({name}, one)[0].get();
    into = std::move(one[0]);
    return there;
  }
  // "same", "other", "absent", or the error.
  std::string look(const std::string& name, std::size_t bytes) {
    std::string back(bytes, '\0');
    const auto there = read(name, back);
    if (!there) return std::string(to_string(there.error().code));
    if (!*there) return "absent";
    return back == value(name, bytes) ? "same" : "other";
  }
  std::vector<Presence> probe(const std::vector<std::string>& names) {
    auto promise = std::make_shared<std::promise<std::vector<Presence>>>();
    auto future = promise->get_future();
    store_->probe({.names = names, .within = std::chrono::seconds(10)},
                  [promise](std::vector<Presence> found) { promise->set_value(std::move(found)); });
    return future.get();
  }
  bool has(const std::string& name) { return probe({name})[0] == Presence::present; }
  void until_ready() {
    EXPECT_TRUE(eventually([&] { return store_->stats().is_ready; }));
  }

  // Bytes that only this name has.
  static std::string value(const std::string& name, std::size_t bytes) {
    std::string made(bytes, '\0');
    std::uint64_t state = std::hash<std::string>()(name) | 1;
    for (char& byte : made) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      byte = static_cast<char>(state >> 56);
    }
    return made;
  }

 private:
  static std::vector<iovec> halves(std::string& value) {
    const std::size_t half = value.size() / 2;
    return {{value.data(), half}, {value.data() + half, value.size() - half}};
  }
  template <class Call>
  static Reply call(Call&& call) {
    auto promise = std::make_shared<std::promise<Result<bool>>>();
    auto future = promise->get_future();
    call([promise](Result<bool> result) { promise->set_value(std::move(result)); });
    return future;
  }

  std::vector<std::unique_ptr<std::string>> kept_;
  std::unique_ptr<RemoteStore> store_;  // last: it reads what is kept
};

}  // namespace cairn::testing
