#pragma once

#include "replay/frontend.hpp"
#include "replay/kv_model.hpp"

namespace cairn::replay {

// As Frontend, for a cache of several KV groups. It uses the cache as GroupUse says, so that it
// finds what ShadowGroups finds. Besides the bytes, it compares the blocks that each match lists
// with those that a match of its length needs. For one thread at a time.
class GroupFrontend final : public PromptRunner {
 public:
  // REQUIRES: config.target.kv_model.
  GroupFrontend(Frontend::Config config, const KeyMaker& keys);

  bool run(const PromptRequest& request) override;
  StepCalls& calls() override { return calls_; }
  client::CacheClient& client() override { return client_; }

 private:
  // Blocks of one group, in the order of their keys.
  using Blocks = std::span<const UsedBlock>;

  std::span<const std::byte> key(std::uint32_t index) const;
  const KvModel::Group& group(std::uint32_t number) const { return model_.groups[number]; }
  std::vector<std::byte> keys_of(Blocks blocks) const;
  std::span<const std::byte> parent_of(const UsedBlock& block) const;
  BlockPattern pattern_of(const UsedBlock& block) const;

  bool lists_what_it_needs(const client::GroupMatch& match);
  void read(Blocks blocks);
  bool read_some(Blocks blocks);
  void compare(Blocks blocks);
  std::vector<UsedBlock> stored_by(const GroupUse::Prompt& prompt) const;
  void store(GroupUse::Prompt prompt);
  enum class Stored : std::uint8_t { yes, no_room, failed };
  Stored store_slots(Blocks blocks);
  Stored store_written(Blocks blocks);
  Stored write_some(Blocks blocks);
  Stored given_up(Step step, const client::ClientError& error);
  void count_statuses(std::span<const client::StoreStatus> statuses);
  void release(const PromptRequest& request);

  const Frontend::Config config_;
  const KvModel model_;
  const GroupUse use_;
  const KeyMaker& key_maker_;
  client::CacheClient client_;
  StepCalls calls_;
  Tally& tally_;
  std::vector<std::byte> keys_;  // of the current request, one after the other
  std::vector<std::byte> buffer_;
  std::vector<std::string> leases_;  // the match's is the last
};

}  // namespace cairn::replay
