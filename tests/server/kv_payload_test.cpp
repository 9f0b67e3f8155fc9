// Events in the forms that routers read: their bytes, and how each router reads them.
#include "server/events/kv_payload.hpp"

#include <gmock/gmock.h>

#include <fstream>
#include <map>
#include <stdexcept>

#include "base/hex.hpp"
#include "tests/server/kv_routers.hpp"

namespace cairn {
namespace {

BlockKey golden_key(const json& hex) {
  const std::string text = hex.get<std::string>();
  std::vector<std::byte> bytes(text.size() / 2);
  EXPECT_TRUE(from_hex(text, bytes));
  return BlockKey(bytes);
}

EventTier golden_tier(const std::string& name) {
  for (const EventTier tier :
       {EventTier::device, EventTier::pinned, EventTier::disk, EventTier::shared}) {
    if (name == to_string(tier)) return tier;
  }
  throw std::runtime_error("no tier " + name);
}

class Golden {
 public:
  Golden() {
    std::ifstream file(CAIRN_GOLDEN_KV_EVENTS);
    file >> all_;
  }
  std::vector<KvEvent> events() const {
    std::vector<KvEvent> events;
    for (const json& sent : all_.at("events")) {
      KvEvent event{.group = {}, .tokens = {}, .block_size = all_.at("block_size")};
      EventGroup& group = event.group;
      group.kind = sent.at("kind") == "stored"    ? BlockEventKind::stored
                   : sent.at("kind") == "removed" ? BlockEventKind::removed
                                                  : BlockEventKind::cleared;
      group.unix_ms = sent.at("unix_ms");
      if (sent.contains("tier")) group.tier = golden_tier(sent.at("tier"));
      for (const json& key : sent.value("keys", json::array()))
        group.keys.push_back(golden_key(key));
      if (sent.contains("parent") && !sent.at("parent").is_null()) {
        group.parent = golden_key(sent.at("parent"));
      }
      event.tokens = sent.value("tokens", std::vector<std::uint32_t>());
      events.push_back(std::move(event));
    }
    return events;
  }
  // The events that are sent. A cleared tier is left out, because its blocks were reported before.
  std::vector<json> sent() const {
    std::vector<json> sent;
    for (const json& event : all_.at("events")) {
      if (event.at("kind") != "cleared" || !event.contains("tier")) sent.push_back(event);
    }
    return sent;
  }
  const json& payloads() const { return all_.at("payloads"); }
  KvEventForm form_of(const json& payload) const {
    KvEventForm form;
    using Form = KvEventForm;
    form.events = payload.at("events") == "maps" ? Form::Events::maps : Form::Events::arrays;
    form.hashes = payload.at("hashes") == "int64" ? Form::Hashes::int64 : Form::Hashes::bytes;
    form.shared = payload.at("shared") == "medium" ? Form::Shared::medium : Form::Shared::locality;
    form.rank = all_.at("rank");
    return form;
  }

 private:
  json all_;
};

TEST(KvPayload, MatchesTheGoldenBytesInEveryForm) {
  const Golden golden;
  ASSERT_EQ(golden.payloads().size(), 6U);
  for (const json& payload : golden.payloads()) {
    const auto written = kv_payload(golden.events(), golden.form_of(payload));
    ASSERT_TRUE(written);
    EXPECT_EQ(to_hex(std::as_bytes(std::span(*written))), payload.at("hex").get<std::string>())
        << payload.at("events") << payload.at("hashes") << payload.at("shared");
  }
}

TEST(KvPayload, EventsThatNoRouterKnowsHaveNoPayload) {
  KvEvent cleared;
  cleared.group.kind = BlockEventKind::cleared;
  cleared.group.tier = EventTier::pinned;
  EXPECT_FALSE(kv_payload(std::vector<KvEvent>{cleared}, {}));
  EXPECT_FALSE(kv_payload({}, {}));
}

std::uint64_t golden_number(const json& hex) {
  std::uint64_t number = 0;
  const std::string whole = hex.get<std::string>();
  const std::string last = whole.substr(whole.size() > 16 ? whole.size() - 16 : 0);
  for (std::size_t i = 0; i < last.size(); i += 2) {
    number = number << 8 | std::stoul(last.substr(i, 2), nullptr, 16);
  }
  return number;
}

// Checks that each event is there with its values.
void expect_all_events(const std::vector<RoutedEvent>& read,
                       const std::map<std::string, std::string>& tiers) {
  const std::vector<json> sent = Golden().sent();
  ASSERT_EQ(read.size(), sent.size());
  for (std::size_t i = 0; i < sent.size(); ++i) {
    const std::string kind = sent[i].at("kind");
    EXPECT_EQ(read[i].kind, kind == "stored"    ? "BlockStored"
                            : kind == "removed" ? "BlockRemoved"
                                                : "AllBlocksCleared");
    if (kind == "cleared") continue;
    std::vector<std::uint64_t> hashes;
    for (const json& key : sent[i].at("keys")) hashes.push_back(golden_number(key));
    EXPECT_EQ(read[i].hashes, hashes);
    if (!tiers.empty()) {
      EXPECT_EQ(read[i].tier, tiers.at(sent[i].at("tier")));
    }
    if (kind == "removed") continue;
    EXPECT_EQ(read[i].tokens, sent[i].at("tokens").get<std::vector<std::uint32_t>>());
    const json& parent = sent[i].at("parent");
    EXPECT_EQ(read[i].parent,
              parent.is_null() ? std::nullopt : std::optional(golden_number(parent)));
  }
}

json golden_batch(const KvEventForm& form) {
  return json::from_msgpack(kv_payload(Golden().events(), form).value());
}

TEST(KvPayload, DynamoReadsEveryEvent) {
  for (const auto events : {KvEventForm::Events::maps, KvEventForm::Events::arrays}) {
    expect_all_events(
        read_by_dynamo(golden_batch({.events = events})),
        {{"device", "device"}, {"pinned", "host"}, {"disk", "disk"}, {"shared", "external"}});
  }
}

TEST(KvPayload, LlmDReadsEveryEvent) {
  for (const auto events : {KvEventForm::Events::maps, KvEventForm::Events::arrays}) {
    for (const auto hashes : {KvEventForm::Hashes::int64, KvEventForm::Hashes::bytes}) {
      expect_all_events(
          read_by_llm_d(golden_batch({.events = events, .hashes = hashes}), LlmD::today),
          {{"device", "gpu"}, {"pinned", "cpu"}, {"disk", "storage"}, {"shared", "remote"}});
    }
  }
}

TEST(KvPayload, OlderLlmDReadsTheArrays) {
  for (const auto hashes : {KvEventForm::Hashes::int64, KvEventForm::Hashes::bytes}) {
    const json batch = golden_batch({.events = KvEventForm::Events::arrays, .hashes = hashes});
    expect_all_events(read_by_llm_d(batch, LlmD::before_maps), {});
  }
}

TEST(KvPayload, SglangReadersReadTheArrays) {
  expect_all_events(read_as_sglangs_arrays(golden_batch({.events = KvEventForm::Events::arrays})),
                    {});
}

// In vLLM's form a shared block is not local, and Dynamo does not index such blocks.
TEST(KvPayload, VllmFormMarksSharedBlocksAsRemoteStorage) {
  const json batch = golden_batch({.shared = KvEventForm::Shared::locality});
  int shared = 0;
  for (const json& event : batch.at(1)) {
    if (event.value("locality", "") != "REMOTE") continue;
    EXPECT_EQ(event.at("medium"), "STORAGE");
    ++shared;
  }
  EXPECT_EQ(shared, 2);
  EXPECT_THROW(read_by_dynamo(batch), std::runtime_error);
}

KvEvent event_of_group(KvGroupNumber number, const KvGroupConfig& group) {
  const std::array<std::byte, 8> bytes{std::byte{1}};
  KvEvent event{.group = {}, .tokens = {}, .block_size = 16, .kv_group = group};
  event.group.kv_group = number;
  event.group.tier = EventTier::pinned;
  event.group.keys = {BlockKey(bytes, number)};
  return event;
}

TEST(KvPayload, EventsOfKvGroupsNameThemAsVllmDoes) {
  const std::vector<KvEvent> events = {
      event_of_group(0, {.name = "full"}),
      event_of_group(1, {.name = "swa", .kind = KvGroupKind::window, .window_tokens = 1024}),
      event_of_group(2, {.name = "state", .kind = KvGroupKind::state})};
  const json batch = json::from_msgpack(kv_payload(events, {}).value());
  ASSERT_EQ(batch.at(1).size(), 3u);
  const json& window = batch.at(1).at(1);
  EXPECT_EQ(window.at("group_idx"), 1);
  EXPECT_EQ(window.at("kv_cache_spec_kind"), "sliding_window");
  EXPECT_EQ(window.at("kv_cache_spec_sliding_window"), 1024);
  EXPECT_EQ(batch.at(1).at(2).at("group_idx"), 2);
  EXPECT_EQ(batch.at(1).at(2).at("kv_cache_spec_kind"), "mamba");
}

TEST(KvPayload, ReadersOfArraysGetTheFullGroupOnly) {
  const std::vector<KvEvent> events = {
      event_of_group(0, {.name = "full"}),
      event_of_group(1, {.name = "swa", .kind = KvGroupKind::window, .window_tokens = 1024})};
  const json batch =
      json::from_msgpack(kv_payload(events, {.events = KvEventForm::Events::arrays}).value());
  ASSERT_EQ(batch.at(1).size(), 1u);
  EXPECT_EQ(kv_payload(std::span(events).subspan(1), {.events = KvEventForm::Events::arrays}),
            std::nullopt);
}

}  // namespace
}  // namespace cairn
