// Values out of a Redis into memory of the caller's: by the store's own reader, and by hiredis,
// which copies a value into a buffer of its own, then into a string, from where it is copied into
// its place. In turn; one value under way each, and each connection on the caller's machine. usage:
// cairn-bench-store PORT VALUE_BYTES COUNT; prints "WHICH BYTES_A_SECOND CPU_US_A_MIB" a line and
// round.
#include <hiredis/hiredis.h>
#include <sys/resource.h>

#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "bench/must.hpp"
#include "transport/store/redis_store.hpp"

namespace {

using namespace cairn;
constexpr int kRounds = 7;

double cpu_us() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  const auto us = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_usec);
  };
  return us(used.ru_utime) + us(used.ru_stime);
}

template <class Read>
void measure(const char* which, std::size_t bytes, std::size_t count, Read&& read) {
  const double cpu = cpu_us();
  const auto began = std::chrono::steady_clock::now();
  for (std::size_t i = 0; i < count; ++i) read();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  const double total = static_cast<double>(bytes * count);
  std::printf("%s %.0f %.0f\n", which, total / took.count(), (cpu_us() - cpu) * 1048576.0 / total);
}

std::size_t number(std::string_view text) {
  std::size_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const std::size_t bytes = number(argv[2]);
  const std::size_t count = number(argv[3]);
  // As a block in the store: behind a header, and read to where a slot begins.
  constexpr std::size_t kHeaderBytes = 176;
  const std::string value(kHeaderBytes + bytes, 'Z');
  std::string header(kHeaderBytes, '\0');
  const std::unique_ptr<char, decltype(&std::free)> slot(
      static_cast<char*>(std::aligned_alloc(4'096, (bytes + 4'095) / 4'096 * 4'096)), std::free);
  std::memset(slot.get(), 0, bytes);
  const std::vector<iovec> place{{header.data(), kHeaderBytes}, {slot.get(), bytes}};

  const std::string name = "cairn-bench:" + std::to_string(bytes);
  RedisSettings settings = must(redis_settings_from("redis://127.0.0.1:" + std::string(argv[1])));
  settings.connections = 1;
  const auto store = must(make_redis_store(settings));
  const auto wait = [](auto&& call) {
    std::promise<Result<bool>> promise;
    call([&promise](Result<bool> result) { promise.set_value(std::move(result)); });
    return promise.get_future().get();
  };
  while (!wait([&](auto done) { store->touch({.name = name}, std::move(done)); })) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  must(wait([&](auto done) {
    store->write({.name = name, .from = {{const_cast<char*>(value.data()), value.size()}}},
                 std::move(done));
  }));

  const std::unique_ptr<redisContext, void (*)(redisContext*)> plain(
      redisConnect("127.0.0.1", static_cast<int>(number(argv[1]))), redisFree);
  if (!plain || plain->err != 0) return 1;
  for (int round = 0; round < kRounds; ++round) {
    measure("ours", bytes, count, [&] {
      must(wait([&](auto done) {
        store->read({{.name = name, .into = place}},
                    [done](std::size_t, const RemoteStore::ReadResult& size) mutable {
                      size ? done(size->has_value()) : done(size.error());
                    });
      }));
    });
    measure("hiredis", bytes, count, [&] {
      auto* const reply =
          static_cast<redisReply*>(redisCommand(plain.get(), "GET %s", name.c_str()));
      std::memcpy(header.data(), reply->str, kHeaderBytes);
      std::memcpy(slot.get(), reply->str + kHeaderBytes, bytes);
      freeReplyObject(reply);
    });
  }
  return std::memcmp(slot.get(), value.data() + kHeaderBytes, bytes) == 0 ? 0 : 1;
}
