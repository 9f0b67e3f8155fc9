#include "blockmgr/remote_tier/remote_source_read.hpp"

#include <algorithm>
#include <utility>

#include "base/hex.hpp"
#include "base/pieces.hpp"

namespace cairn {
namespace {

// Sources tried per block. Each may take its full time-out.
constexpr std::size_t kMaxTries = 3;
// Bytes per request, so that the blocks are still in the CPU cache when they are checked.
constexpr std::uint64_t kRequestBytes = 512 * 1024;

class SourceReading : public std::enable_shared_from_this<SourceReading> {
 public:
  explicit SourceReading(SourceRead read) : read_(std::move(read)), tries_(read_.blocks.size()) {}

  void start() {
    Group all;
    for (std::size_t i = 0; i < read_.blocks.size(); ++i) all.push_back(i);
    ask_their_sources(all);
  }

 private:
  using Group = std::vector<std::size_t>;  // block numbers, in order

  const BlockSource* source_of(std::size_t block) const {
    const BlockSources& sources = *read_.blocks[block].sources;
    const std::size_t next = tries_[block];
    return next < std::min(sources.size(), kMaxTries) ? &sources[next] : nullptr;
  }

  // REQUIRES: each has a source that was not asked yet.
  void ask_their_sources(const Group& blocks) {
    if (blocks.empty()) return;
    const std::uint64_t part_bytes = total_bytes(read_.blocks[blocks.front()].into);
    const std::uint64_t most = (kRequestBytes + part_bytes - 1) / part_bytes;
    std::vector<Group> groups;
    for (const std::size_t block : blocks) {
      const BlockSource* const source = source_of(block);
      const auto same = std::ranges::find_if(groups, [&](const Group& group) {
        const BlockSource* const other = source_of(group.front());
        return group.size() < most && other->server == source->server &&
               other->cache == source->cache;
      });
      (same != groups.end() ? *same : groups.emplace_back()).push_back(block);
    }
    for (Group& group : groups) ask(std::move(group));
  }

  void ask(Group group) {
    const RemoteContext& context = *read_.context;
    const BlockSource& source = *source_of(group.front());
    BlockPeers::Read read{
        .server = source.server,
        .target = "/v1/caches/" + source.cache + "/read?shared=" + context.name_space,
        .body = R"({"keys":[)",
        .part_bytes = total_bytes(read_.blocks[group.front()].into)};
    for (const std::size_t block : group) {
      read.body += block == group.front() ? "\"" : ",\"";
      append_hex(read.body, read_.blocks[block].key.view().bytes());
      read.body += '"';
      const auto& into = read_.blocks[block].into;
      read.into.insert(read.into.end(), into.begin(), into.end());
    }
    read.body += "]}";
    context.peers->read(std::move(read),
                        [self = shared_from_this(), group = std::move(group)](
                            const Result<std::size_t>& come) { self->answered(group, come); });
  }

  void answered(const Group& group, const Result<std::size_t>& come) {
    const bool is_wrong = !come && come.error().code == ErrorCode::wrong_length;
    if (!come && !is_wrong) {
      for (const std::size_t block : group) ++tries_[block];
      return ask_again(group, come.error());
    }
    Group failed;
    std::optional<Error> why;
    const auto go_on_elsewhere = [&](std::size_t block, const Error& error) {
      read_.is_not_there(block, *source_of(block));
      ++tries_[block];
      failed.push_back(block);
      why = error;
    };
    const std::size_t count = is_wrong ? group.size() : *come;
    for (const std::size_t block : std::span(group).first(count)) {
      const Result<> looked =
          read_.look(block, is_wrong ? Result<bool>(come.error()) : Result<bool>(true));
      if (looked) {
        read_.ended(block, {});
      } else {
        go_on_elsewhere(block, looked.error());
      }
    }
    Group not_answered;
    if (count < group.size()) {
      ++read_.context->counters.absent;
      go_on_elsewhere(group[count], absent_from_tier(read_.blocks[group[count]].key));
      not_answered.assign(group.begin() + static_cast<std::ptrdiff_t>(count) + 1, group.end());
    }
    if (!failed.empty()) ask_again(failed, *why);
    // A response ends at the first missing block, and says nothing about the others.
    if (!not_answered.empty()) ask(std::move(not_answered));
  }

  void ask_again(const Group& blocks, const Error& why) {
    Group left;
    for (const std::size_t block : blocks) {
      if (source_of(block) != nullptr) {
        left.push_back(block);
      } else {
        read_.ended(block, why);
      }
    }
    ask_their_sources(left);
  }

  SourceRead read_;
  std::vector<std::size_t> tries_;  // per block; only its group uses it
};

}  // namespace

Error absent_from_tier(const BlockKey& key) {
  return {ErrorCode::unknown_key,
          "key " + to_hex(key.view().bytes()) + " is no longer in the shared tier"};
}

void start_source_read(SourceRead read) {
  std::make_shared<SourceReading>(std::move(read))->start();
}

}  // namespace cairn
