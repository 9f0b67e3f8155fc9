// Tests of every kind of collectives, on 1 to 8 ranks.
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <thread>

#include "tests/conformance/collective/collective_case.hpp"

namespace cairn::conformance {
namespace {

using Message = Communicator::Message;

constexpr std::array<std::uint32_t, 4> kWorlds = {1, 2, 3, 8};

INSTANTIATE_TEST_SUITE_P(Kinds, CollectiveTest, testing::ValuesIn(collective_cases()),
                         [](const auto& test) { return test.param.name; });

// Small whole numbers. Every type holds them exactly, and the sums and products of 8 of them.
double value_of(std::uint32_t rank, std::size_t index) {
  return 1.0 + static_cast<double>((rank + index) % 2);
}

double expected(Reduction reduction, std::uint32_t world, std::size_t index) {
  double result = value_of(0, index);
  for (std::uint32_t rank = 1; rank < world; ++rank) {
    const double value = value_of(rank, index);
    if (reduction == Reduction::sum || reduction == Reduction::avg) result += value;
    if (reduction == Reduction::prod) result *= value;
    if (reduction == Reduction::max) result = std::max(result, value);
    if (reduction == Reduction::min) result = std::min(result, value);
  }
  return reduction == Reduction::avg ? result / world : result;
}

// Writes a number in a type's format: a whole number up to 256, or one with few binary places.
void put(DataType type, double value, std::byte* out) {
  const auto store = [out](auto number) { std::memcpy(out, &number, sizeof number); };
  switch (type) {
    case DataType::int8:
    case DataType::uint8:
      return store(static_cast<std::uint8_t>(value));
    case DataType::int32:
    case DataType::uint32:
      return store(static_cast<std::uint32_t>(value));
    case DataType::int64:
    case DataType::uint64:
      return store(static_cast<std::uint64_t>(value));
    case DataType::float32:
      return store(static_cast<float>(value));
    case DataType::float64:
      return store(value);
    case DataType::bfloat16:
      return store(static_cast<std::uint16_t>(
          std::bit_cast<std::uint32_t>(static_cast<float>(value)) >> 16));
    case DataType::float16: {
      int exponent = 0;
      const double fraction = std::frexp(value, &exponent);  // in [0.5, 1)
      return store(static_cast<std::uint16_t>(((exponent + 14) << 10) +
                                              static_cast<int>(fraction * 2048) - 1024));
    }
  }
}

TEST_P(CollectiveTest, AllReduceSupportsEveryTypeAndReduction) {
  for (std::uint32_t world : {1U, 2U, 4U}) {
    if (!make(world)) return;
    for (std::size_t t = 0; t < kNumDataTypes; ++t) {
      for (std::size_t r = 0; r < kNumReductions; ++r) {
        const auto type = static_cast<DataType>(t);
        const auto reduction = static_cast<Reduction>(r);
        const std::size_t width = width_bytes(type);
        constexpr std::size_t kCount = 37;
        const auto answers = on_each(ranks_, [&](Communicator& rank) -> Result<> {
          std::vector<std::byte> mine(kCount * width);
          std::vector<std::byte> all(kCount * width);
          for (std::size_t i = 0; i < kCount; ++i) {
            put(type, value_of(rank.place().rank, i), &mine[i * width]);
          }
          CAIRN_TRY(rank.all_reduce({.source = mine.data(),
                                     .destination = all.data(),
                                     .elements = {.count = kCount, .type = type},
                                     .reduction = reduction}));
          for (std::size_t i = 0; i < kCount; ++i) {
            std::array<std::byte, 8> wanted{};
            put(type, expected(reduction, world, i), wanted.data());
            if (std::memcmp(wanted.data(), &all[i * width], width) != 0) {
              return Error{ErrorCode::internal, std::string(to_string(type)) + " " +
                                                    std::string(to_string(reduction)) + " at " +
                                                    std::to_string(i)};
            }
          }
          return {};
        });
        expect_all_done(answers);
      }
    }
  }
}

TEST_P(CollectiveTest, AllReduceOfAnyLengthInPlace) {
  for (std::uint32_t world : kWorlds) {
    if (!make(world)) return;
    // No piece, one piece, and several of the pieces that reductions pass on.
    for (std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{300'001}}) {
      expect_all_done(on_each(ranks_, [&](Communicator& rank) -> Result<> {
        std::vector<std::uint64_t> values(count);
        for (std::size_t i = 0; i < count; ++i) values[i] = i * (rank.place().rank + 1);
        auto* const bytes = reinterpret_cast<std::byte*>(values.data());
        CAIRN_TRY(rank.all_reduce({.source = bytes,
                                   .destination = bytes,
                                   .elements = {.count = count, .type = DataType::uint64}}));
        for (std::size_t i = 0; i < count; ++i) {
          if (values[i] != i * world * (world + 1) / 2) {
            return Error{ErrorCode::internal, "at " + std::to_string(i)};
          }
        }
        return {};
      }));
    }
  }
}

TEST_P(CollectiveTest, AllGatherOrdersByRank) {
  for (std::uint32_t world : kWorlds) {
    if (!make(world)) return;
    for (std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{50'000}}) {
      expect_all_done(on_each(ranks_, [&](Communicator& rank) -> Result<> {
        const std::vector<std::uint32_t> mine(count, rank.place().rank);
        std::vector<std::uint32_t> all(count * world, 99);
        CAIRN_TRY(rank.all_gather({.source = reinterpret_cast<const std::byte*>(mine.data()),
                                   .destination = reinterpret_cast<std::byte*>(all.data()),
                                   .elements = {.count = count, .type = DataType::uint32}}));
        for (std::size_t i = 0; i < all.size(); ++i) {
          if (all[i] != i / count) return Error{ErrorCode::internal, "at " + std::to_string(i)};
        }
        return {};
      }));
    }
  }
}

std::vector<std::byte> pattern(std::size_t size, std::uint32_t seed) {
  std::vector<std::byte> bytes(size);
  std::uint32_t state = seed * 2'654'435'761U + 1;
  for (std::byte& byte : bytes) {
    state = state * 1'664'525U + 1'013'904'223U;
    byte = static_cast<std::byte>(state >> 24);
  }
  return bytes;
}

// Cuts the bytes into pieces of that size.
std::vector<iovec> cut(std::vector<std::byte>& bytes, std::size_t piece_bytes) {
  std::vector<iovec> pieces;
  for (std::size_t at = 0; at < bytes.size(); at += piece_bytes) {
    pieces.push_back({&bytes[at], std::min(piece_bytes, bytes.size() - at)});
  }
  return pieces;
}

TEST_P(CollectiveTest, BroadcastSendsTheRootsBytesInAnyPieces) {
  constexpr std::size_t kSize = 1'000'003;
  for (std::uint32_t world : kWorlds) {
    if (!make(world)) return;
    for (std::uint32_t root = 0; root < world; ++root) {
      const auto wanted = pattern(kSize, root);
      expect_all_done(on_each(ranks_, [&](Communicator& rank) -> Result<> {
        const bool is_root = rank.place().rank == root;
        auto bytes = is_root ? wanted : std::vector<std::byte>(kSize);
        const auto pieces = cut(bytes, 4'000 + 1'777 * rank.place().rank);
        CAIRN_TRY(rank.broadcast({.root = root, .pieces = pieces}));
        if (bytes != wanted) return Error{ErrorCode::internal, "wrong bytes"};
        return {};
      }));
    }
  }
}

TEST_P(CollectiveTest, EveryRankExchangesWithEveryRankAndItself) {
  const auto size_of = [](std::uint32_t from, std::uint32_t to) { return 70'000 * from + to * 3; };
  for (std::uint32_t world : kWorlds) {
    if (!make(world)) return;
    expect_all_done(on_each(ranks_, [&](Communicator& rank) -> Result<> {
      const std::uint32_t me = rank.place().rank;
      std::vector<std::vector<std::byte>> buffers;
      std::vector<std::vector<iovec>> pieces;
      std::vector<Message> messages;
      for (std::uint32_t peer = 0; peer < world; ++peer) {
        buffers.push_back(pattern(size_of(me, peer), me * 100 + peer));
        buffers.emplace_back(size_of(peer, me));
      }
      for (std::size_t i = 0; i < buffers.size(); ++i) pieces.push_back(cut(buffers[i], 9'999 + i));
      for (std::uint32_t peer = 0; peer < world; ++peer) {
        messages.push_back({Message::Kind::send, peer, pieces[2 * peer]});
        messages.push_back({Message::Kind::receive, peer, pieces[2 * peer + 1]});
      }
      CAIRN_TRY(rank.exchange(messages));
      for (std::uint32_t peer = 0; peer < world; ++peer) {
        if (buffers[2 * peer + 1] != pattern(size_of(peer, me), peer * 100 + me)) {
          return Error{ErrorCode::internal, "wrong bytes from " + std::to_string(peer)};
        }
      }
      return {};
    }));
  }
}

TEST_P(CollectiveTest, APairMayExchangeWhileOthersBroadcast) {
  if (!make(3)) return;
  expect_all_done(on_each(ranks_, [&](Communicator& rank) -> Result<> {
    const std::uint32_t me = rank.place().rank;
    std::uint64_t number = me;
    const iovec piece{&number, sizeof number};
    if (me < 2) {
      const Message message{
          me == 0 ? Message::Kind::send : Message::Kind::receive, 1 - me, {&piece, 1}};
      CAIRN_TRY(rank.exchange({&message, 1}));
      if (number != 0) return Error{ErrorCode::internal, "wrong number"};
    }
    return rank.broadcast({.root = 2, .pieces = {&piece, 1}});
  }));
}

TEST_P(CollectiveTest, RefusesWrongRanksWithoutEffect) {
  if (!make(2)) return;
  expect_all_done(on_each(ranks_, [&](Communicator& rank) -> Result<> {
    std::byte byte{};
    const iovec piece{&byte, 1};
    const Message far{Message::Kind::send, 2, {&piece, 1}};
    const Message unmet{Message::Kind::send, rank.place().rank, {&piece, 1}};
    const auto broadcast = rank.broadcast({.root = 2, .pieces = {&piece, 1}});
    const auto sent = rank.exchange({&far, 1});
    const auto alone = rank.exchange({&unmet, 1});
    if (broadcast || broadcast.error().code != ErrorCode::out_of_range || sent ||
        sent.error().code != ErrorCode::out_of_range || alone ||
        alone.error().code != ErrorCode::impossible) {
      return Error{ErrorCode::internal, "not refused"};
    }
    return rank.finalize();
  }));
}

Result<> meet(Communicator& rank) {
  std::uint64_t one = 1;
  auto* const bytes = reinterpret_cast<std::byte*>(&one);
  return rank.all_reduce(
      {.source = bytes, .destination = bytes, .elements = {.count = 1, .type = DataType::uint64}});
}

TEST_P(CollectiveTest, ALostRankFailsAllRemainingRanks) {
  if (!make(3)) return;
  expect_all_done(on_each(ranks_, meet));
  const auto answers = on_each(ranks_, [&](Communicator& rank) -> Result<> {
    if (rank.place().rank != 1) return meet(rank);
    ranks_[1].reset();
    return {};
  });
  for (std::uint32_t left : {0U, 2U}) {
    ASSERT_FALSE(answers[left].has_value());
    EXPECT_EQ(answers[left].error().code, ErrorCode::peer_lost) << answers[left].error().detail;
    const auto again = meet(*ranks_[left]);
    ASSERT_FALSE(again.has_value());
    EXPECT_EQ(again.error().detail, answers[left].error().detail) << "the error must stay";
  }
  ranks_.clear();
  ASSERT_TRUE(make(3)) << "the group can be made again";
  expect_all_done(on_each(ranks_, meet));
}

TEST_P(CollectiveTest, AnAbsentRankTimesOutAllOthers) {
  if (!make(3, kSoon)) return;
  const auto answers = on_each(ranks_, [&](Communicator& rank) -> Result<> {
    return rank.place().rank == 1 ? Result<>() : meet(rank);
  });
  for (std::uint32_t left : {0U, 2U}) {
    // One rank may learn from the other that it gave up.
    ASSERT_FALSE(answers[left].has_value());
    const ErrorCode code = answers[left].error().code;
    EXPECT_TRUE(code == ErrorCode::deadline_exceeded || code == ErrorCode::peer_lost)
        << answers[left].error().detail;
  }
  EXPECT_FALSE(meet(*ranks_[1]).has_value()) << "it is too late";
}

TEST_P(CollectiveTest, AbortEndsACallUnderWay) {
  if (!make(2)) return;
  std::jthread aborting([&] { ranks_[0]->abort({ErrorCode::cancelled, "enough"}); });
  const auto answer = meet(*ranks_[0]);
  ASSERT_FALSE(answer.has_value());
  EXPECT_EQ(answer.error().code, ErrorCode::cancelled);
  EXPECT_EQ(answer.error().detail, "enough");
  const auto other = meet(*ranks_[1]);
  ASSERT_FALSE(other.has_value());
  EXPECT_EQ(other.error().code, ErrorCode::peer_lost) << other.error().detail;
}

TEST_P(CollectiveTest, RanksAtDifferentCallsFailAndDoNotHang) {
  if (!make(2, kSoon)) return;
  const auto answers = on_each(ranks_, [&](Communicator& rank) -> Result<> {
    if (rank.place().rank == 0) return meet(rank);
    std::array<std::byte, 64> bytes{};
    const iovec piece{bytes.data(), bytes.size()};
    return rank.broadcast({.root = 1, .pieces = {&piece, 1}});
  });
  // One side may have received all its bytes before it learns of the other's failure.
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    EXPECT_FALSE(answers[rank].has_value() && meet(*ranks_[rank]).has_value()) << rank;
  }
}

TEST_P(CollectiveTest, FinalizedRanksMayBeDestroyed) {
  for (std::uint32_t world : kWorlds) {
    if (!make(world)) return;
    expect_all_done(on_each(ranks_, [&](Communicator& rank) -> Result<> {
      CAIRN_TRY(rank.finalize());
      ranks_[rank.place().rank].reset();
      return {};
    }));
  }
}

}  // namespace
}  // namespace cairn::conformance
