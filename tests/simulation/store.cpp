#include "tests/simulation/store.hpp"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "base/pieces.hpp"
#include "blockmgr/remote_tier/remote_value.hpp"
#include "transport/record/plane_codec.hpp"

namespace cairn::sim {
namespace {

Error down() { return {ErrorCode::unavailable, "the simulated store fails this call"}; }

// Copies the bytes from `first` to `end` of a value into the pieces, or out of them.
struct Part {
  std::size_t first = 0;
  std::size_t end = 0;
};
template <class Copy>
void for_part(const std::vector<iovec>& pieces, const Part& part, Copy copy) {
  std::size_t at = 0;
  for (const iovec& piece : pieces) {
    const std::size_t first = std::max(at, part.first);
    const std::size_t end = std::min(at + piece.iov_len, part.end);
    if (first < end)
      copy(static_cast<std::byte*>(piece.iov_base) + (first - at), first, end - first);
    at += piece.iov_len;
  }
}

void copy_in(testing::Bytes& value, const std::vector<iovec>& from, const Part& part) {
  for_part(from, part, [&](const std::byte* data, std::size_t at, std::size_t size) {
    std::memcpy(value.data() + at, data, size);
  });
}

void copy_out(const testing::Bytes& value, const std::vector<iovec>& into, const Part& part) {
  for_part(into, part, [&](std::byte* data, std::size_t at, std::size_t size) {
    std::memcpy(data, value.data() + at, size);
  });
}

// A block from its value. Empty if the value cannot be decoded.
testing::Bytes plain_of(testing::Bytes& value) {
  const auto header = decode_record<std::uint64_t>(std::span(value).first(kRemoteHeaderBytes));
  if (!header) return {};
  const std::span<std::byte> bytes = std::span(value).subspan(kRemoteHeaderBytes);
  testing::Bytes plain(header->block.data_bytes);
  if (bytes.size() == plain.size()) {
    std::ranges::copy(bytes, plain.begin());
    return plain;
  }
  const iovec into{plain.data(), plain.size()};
  if (!PlaneCodec().decode(bytes, {&into, 1})) plain.clear();
  return plain;
}

}  // namespace

void Store::probe(Probe probe, UniqueFunction<void(std::vector<Presence>)> done) {
  const Duration takes = parts_.queue.some_delay();
  const bool is_late = takes > probe.within || happens(parts_.faults.fails_once_in);
  parts_.queue.after(
      std::min<Duration>(takes, probe.within),
      [this, names = std::move(probe.names), is_late, done = std::move(done)]() mutable {
        const std::size_t in_time = is_late ? random().below(names.size() + 1) : names.size();
        std::vector<Presence> there(names.size(), Presence::unknown);
        for (std::size_t i = 0; i < in_time; ++i) {
          lose_some(names[i]);
          there[i] = parts_.values.contains(names[i]) ? Presence::present : Presence::absent;
        }
        done(std::move(there));
      });
}

void Store::read(std::vector<Read> reads, ReadDone done) {
  const auto shared = std::make_shared<ReadDone>(std::move(done));
  for (std::size_t i = 0; i < reads.size(); ++i) {
    read_one(std::move(reads[i]),
             [i, shared](ReadResult result) { (*shared)(i, std::move(result)); });
  }
}

void Store::read_one(Read read, UniqueFunction<void(ReadResult)> done) {
  lose_some(read.name);
  const bool fails = happens(parts_.faults.fails_once_in);
  const auto at = parts_.values.find(read.name);
  if (at == parts_.values.end()) {
    return parts_.queue.after(parts_.queue.some_delay(), [fails, done = std::move(done)]() mutable {
      done(fails ? ReadResult(down()) : ReadResult(std::nullopt));
    });
  }
  // The value as the store sends it, even if it is erased meanwhile.
  auto value = std::make_shared<testing::Bytes>(at->second);
  if (value->empty() || value->size() > total_bytes(read.into)) {
    return parts_.queue.after(parts_.queue.some_delay(), [done = std::move(done)]() mutable {
      done(Error{ErrorCode::wrong_length, "the simulated store has another length"});
    });
  }
  if (happens(parts_.faults.flips_once_in)) {
    (*value)[random().below(value->size())] ^= static_cast<std::byte>(1 << random().below(8));
  }
  const std::size_t half = random().below(value->size() + 1);
  parts_.queue.after(
      parts_.queue.some_delay(),
      [this, value, half, fails, into = std::move(read.into), done = std::move(done)]() mutable {
        copy_out(*value, into, {.first = 0, .end = half});
        parts_.queue.after(parts_.queue.some_delay(), [value, half, fails, into = std::move(into),
                                                       done = std::move(done)]() mutable {
          if (fails) return done(down());
          copy_out(*value, into, {.first = half, .end = value->size()});
          done(std::optional<std::uint64_t>(value->size()));
        });
      });
}

void Store::write(Write write, UniqueFunction<void(Result<bool>)> done) {
  const auto key = parts_.names.find(write.name);
  if (key == parts_.names.end()) {
    parts_.oracle.finding().report("the store gets a value with an unknown name");
    return done(down());
  }
  // The upload may release its block before the step ends.
  parts_.oracle.held_in_this_step({&key->second, 1});
  auto value = std::make_shared<testing::Bytes>(total_bytes(write.from));
  const std::size_t half = random().below(value->size() + 1);
  copy_in(*value, write.from, {.first = 0, .end = half});
  parts_.queue.after(parts_.queue.some_delay(), [this, value, half, key, write = std::move(write),
                                                 done = std::move(done)]() mutable {
    copy_in(*value, write.from, {.first = half, .end = value->size()});
    parts_.oracle.held_in_this_step({&key->second, 1});
    testing::Bytes plain = plain_of(*value);
    const iovec block{plain.data(), plain.size()};
    parts_.oracle.check(key->second, {&block, 1}, "stored in the shared tier");
    const bool fails = happens(parts_.faults.fails_once_in);
    if (fails && random().once_in(2)) return done(down());
    const bool is_new = parts_.values.emplace(write.name, std::move(*value)).second;
    if (!parts_.is_far) parts_.oracle.reached_store(key->second);
    done(fails ? Result<bool>(down()) : Result<bool>(is_new));
  });
}

void Store::touch(Touch touch, UniqueFunction<void(Result<bool>)> done) {
  parts_.queue.after(parts_.queue.some_delay(),
                     [this, name = std::move(touch.name), done = std::move(done)]() mutable {
                       lose_some(name);
                       if (happens(parts_.faults.fails_once_in)) return done(down());
                       done(parts_.values.contains(name));
                     });
}

void Store::erase(std::string name) {
  if (!parts_.faults.any()) {
    parts_.oracle.finding().report("a right value is erased from the store");
  }
  parts_.values.erase(name);
}

void Store::lose_some(const std::string& name) {
  const auto at = parts_.values.find(name);
  if (at == parts_.values.end() || !happens(parts_.faults.loses_once_in)) return;
  if (random().once_in(2)) {
    parts_.values.erase(at);
  } else {
    at->second.resize(random().below(at->second.size()));
  }
}

}  // namespace cairn::sim
