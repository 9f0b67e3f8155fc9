#pragma once

#include <gmock/gmock.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/store/redis_process.hpp"
#include "transport/store/redis_store.hpp"

namespace cairn::testing {

using e2e::RedisProcess;

// A store client that waits for each reply.
class StoreClient {
 public:
  using Presence = RemoteStore::Presence;

  explicit StoreClient(RedisSettings settings) : store_(*make_redis_store(std::move(settings))) {}
  explicit StoreClient(const RedisProcess& redis)
      : StoreClient(patient(redis_settings_from(redis.url()).value())) {}

  // With a timeout so long that a busy machine causes none.
  static RedisSettings patient(RedisSettings settings) {
    settings.timeout_ms = 30'000;
    return settings;
  }

  RemoteStore& operator*() { return *store_; }

  Result<bool> write(const std::string& name, std::string value, std::uint64_t ttl_ms = 0) {
    return wait([&](auto done) {
      store_->write({.name = name, .from = pieces(value), .ttl_ms = ttl_ms}, std::move(done));
    });
  }
  // Cuts `into` to the size of the value. False: there is none.
  Result<bool> read(const std::string& name, std::string& into) {
    return wait([&](auto done) {
      store_->read({{.name = name, .into = pieces(into)}},
                   [&into, done = std::move(done)](std::size_t,
                                                   const RemoteStore::ReadResult& size) mutable {
                     if (!size) return done(size.error());
                     if (*size) into.resize(**size);
                     done(size->has_value());
                   });
    });
  }
  Result<bool> touch(const std::string& name, std::uint64_t ttl_ms = 0) {
    return wait(
        [&](auto done) { store_->touch({.name = name, .ttl_ms = ttl_ms}, std::move(done)); });
  }
  std::vector<Presence> probe(const std::vector<std::string>& names,
                              std::chrono::microseconds within = std::chrono::seconds(10)) {
    auto promise = std::make_shared<std::promise<std::vector<Presence>>>();
    auto future = promise->get_future();
    store_->probe({.names = names, .within = within},
                  [promise](std::vector<Presence> there) { promise->set_value(std::move(there)); });
    return future.get();
  }
  std::size_t announce(const std::vector<std::string>& names, const std::string& who,
                       std::uint64_t ttl_ms = 60'000, std::uint8_t mark = 0) {
    auto promise = std::make_shared<std::promise<std::size_t>>();
    auto future = promise->get_future();
    RemoteStore::Announce announce{.blocks = {}, .who = who, .ttl_ms = ttl_ms};
    for (const std::string& name : names) announce.blocks.push_back({.name = name, .mark = mark});
    store_->announce(std::move(announce),
                     [promise](std::size_t accepted) { promise->set_value(accepted); });
    return future.get();
  }
  // "WHO/MARK" of each holder, sorted; nullopt if unknown in time.
  std::vector<std::optional<std::vector<std::string>>> holders(
      const std::vector<std::string>& names,
      std::chrono::microseconds within = std::chrono::seconds(10)) {
    using All = std::vector<std::optional<RemoteStore::Holders>>;
    auto promise = std::make_shared<std::promise<All>>();
    auto future = promise->get_future();
    store_->find_holders({.names = names, .within = within},
                         [promise](All all) { promise->set_value(std::move(all)); });
    std::vector<std::optional<std::vector<std::string>>> all_holders;
    for (const auto& one : future.get()) {
      all_holders.emplace_back();
      if (!one) continue;
      all_holders.back().emplace();
      for (const auto& holder : *one) {
        all_holders.back()->push_back(holder.who + "/" + std::to_string(holder.mark));
      }
      std::ranges::sort(*all_holders.back());
    }
    return all_holders;
  }
  // Waits until a touch succeeds: the store is found, or is back.
  void until_ready() {
    while (!touch("anything")) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }

 private:
  // Cuts the value into three pieces.
  static std::vector<iovec> pieces(std::string& value) {
    const std::size_t third = value.size() / 3;
    return {{value.data(), third},
            {value.data() + third, third},
            {value.data() + 2 * third, value.size() - 2 * third}};
  }
  template <class Call>
  static Result<bool> wait(Call&& call) {
    auto promise = std::make_shared<std::promise<Result<bool>>>();
    auto future = promise->get_future();
    call([promise](Result<bool> result) { promise->set_value(std::move(result)); });
    return future.get();
  }

  std::unique_ptr<RemoteStore> store_;
};

inline std::string some_bytes(std::size_t size, unsigned seed) {
  std::string bytes(size, '\0');
  for (std::size_t i = 0; i < size; ++i) {
    bytes[i] = static_cast<char>((i * 2654435761u + seed * 97u) >> 13);
  }
  return bytes;
}

}  // namespace cairn::testing
