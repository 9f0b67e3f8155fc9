#include "tests/replay/fake_cairn.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/hex.hpp"

namespace cairn::replay_test {
namespace {

using nlohmann::json;

ScriptedAnswer problem(unsigned status, const char* code, std::string_view headers = "") {
  return answer(status, json{{"status", status}, {"code", code}, {"detail", "as told"}}.dump(),
                "application/problem+json", headers);
}

std::string query_value(const std::string& target, const std::string& name) {
  const std::size_t at = target.find(name + "=");
  if (at == std::string::npos) return "";
  const std::size_t begin = at + name.size() + 1;
  return target.substr(begin, target.find('&', begin) - begin);
}

bool has(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

}  // namespace

ScriptedAnswer FakeCairn::handle(const ReceivedRequest& request) {
  const std::lock_guard lock(mutex_);
  const std::string& target = request.target;
  ++time_;
  if (target == "/metrics") return metrics();
  if (request.method == "DELETE" && target.starts_with("/v1/leases/")) {
    const bool known = leases_.erase(target.substr(11)) > 0;
    return known ? ScriptedAnswer{{"HTTP/1.1 204 No Content\r\n\r\n"}}
                 : problem(404, "unknown_lease");
  }
  if (has(target, "/match?")) return match(request);
  const bool stores = has(target, "/allocate") || has(target, "/write");
  if (stores && faults_.busy_answers > 0) {
    --faults_.busy_answers;
    return problem(503, "unavailable", "Retry-After: 1\r\n");
  }
  if (has(target, "/allocate")) return allocate(request);
  if (has(target, "/data?")) return write_slot(request);
  if (has(target, "/commit")) return commit(request);
  if (has(target, "/read")) return read(request);
  if (has(target, "/write")) return write(request);
  if (has(target, "/keys/")) return get_key(target.substr(target.find("/keys/") + 6));
  if (request.method == "PUT") {
    cache_ = target.substr(11);
    json body = json::parse(request.body);
    body["block_bytes"] = kBlockBytes;
    return answer(201, body.dump());
  }
  if (request.method == "DELETE") {
    cache_.clear();
    return answer(200, "{}");
  }
  return problem(404, "unknown_cache");
}

ScriptedAnswer FakeCairn::match(const ReceivedRequest& request) {
  const std::size_t key_bytes = std::stoul(query_value(request.target, "key_bytes"));
  json blocks = json::array();
  const std::string lease = std::to_string(next_lease_++).append("m");
  std::size_t at = 0;
  for (; at < request.body.size(); at += key_bytes) {
    const std::string key = to_hex(std::as_bytes(std::span(request.body)).subspan(at, key_bytes));
    const auto found = index_.find(key);
    if (found == index_.end()) break;
    slots_[found->second].last_use = time_;
    leases_[lease].insert(found->second);
    blocks.push_back(
        {{"key", key}, {"tier", "pinned"}, {"slot", found->second}, {"generation", 1}});
  }
  hits_ += blocks.size();
  misses_ += request.body.size() / key_bytes - blocks.size();
  const json held = blocks.empty() ? json(nullptr) : json(lease);
  return answer(
      200,
      json{{"matched", blocks.size()}, {"lease", held}, {"expires_at_ms", 1}, {"blocks", blocks}}
          .dump());
}

bool FakeCairn::make_room(std::size_t count) {
  if (count > faults_.capacity_blocks) return false;
  std::set<std::uint64_t> held;
  for (const auto& [lease, slots] : leases_) held.insert(slots.begin(), slots.end());
  std::vector<std::pair<std::uint64_t, std::uint64_t>> evictable;  // (last use, slot)
  for (const auto& [slot, what] : slots_) {
    if (!held.contains(slot)) evictable.emplace_back(what.last_use, slot);
  }
  if (slots_.size() - evictable.size() + count > faults_.capacity_blocks) return false;
  std::sort(evictable.begin(), evictable.end());
  for (const auto& [use, slot] : evictable) {
    if (slots_.size() + count <= faults_.capacity_blocks) break;
    index_.erase(slots_[slot].key);
    slots_.erase(slot);
  }
  return true;
}

ScriptedAnswer FakeCairn::allocate(const ReceivedRequest& request) {
  const json body = json::parse(request.body);
  const std::size_t count = body.at("count");
  if (!make_room(count)) return problem(507, "no_capacity");
  const std::string lease = std::to_string(next_lease_++).append("a");
  json blocks = json::array();
  for (std::size_t i = 0; i < count; ++i) {
    slots_[next_slot_] = {};
    leases_[lease].insert(next_slot_);
    blocks.push_back({{"tier", body.at("tier")}, {"slot", next_slot_++}, {"generation", 1}});
  }
  return answer(200, json{{"lease", lease}, {"expires_at_ms", 1}, {"blocks", blocks}}.dump());
}

ScriptedAnswer FakeCairn::write_slot(const ReceivedRequest& request) {
  const std::size_t at = request.target.find("/slots/pinned/") + 14;
  const std::uint64_t slot = std::stoull(request.target.substr(at));
  const auto lease = leases_.find(query_value(request.target, "lease"));
  if (lease == leases_.end() || !lease->second.contains(slot)) return problem(409, "foreign_lease");
  if (request.body.size() != kBlockBytes) return problem(400, "wrong_length");
  slots_[slot].bytes = request.body;
  return answer(200, "{}");
}

std::string FakeCairn::store(std::uint64_t slot, const std::string& key,
                             const std::string& parent) {
  if (index_.contains(key)) return "duplicate";
  slots_[slot].key = key;
  slots_[slot].last_use = time_;
  index_[key] = slot;
  parents_[key] = parent;
  return "committed";
}

ScriptedAnswer FakeCairn::commit(const ReceivedRequest& request) {
  json statuses = json::array();
  const json body = json::parse(request.body);
  for (const json& block : body.at("blocks")) {
    statuses.push_back(
        {{"status", store(block.at("slot"), block.at("key"), block.value("parent", ""))}});
  }
  return answer(200, json{{"blocks", statuses}}.dump());
}

ScriptedAnswer FakeCairn::write(const ReceivedRequest& request) {
  const auto byte = [&request](std::size_t i) {
    return static_cast<std::size_t>(static_cast<unsigned char>(request.body[i]));
  };
  const std::size_t length = byte(0) | byte(1) << 8U | byte(2) << 16U | byte(3) << 24U;
  const json header = json::parse(request.body.substr(4, length));
  const json& keys = header.at("keys");
  if (request.body.size() != 4 + length + keys.size() * kBlockBytes) {
    return problem(400, "wrong_length");
  }
  if (!make_room(keys.size())) return problem(507, "no_capacity");
  json statuses = json::array();
  for (std::size_t i = 0; i < keys.size(); ++i) {
    json parent = i > 0 ? keys[i - 1] : json(nullptr);
    if (header.contains("parents")) parent = header.at("parents")[i];
    slots_[next_slot_] = {request.body.substr(4 + length + i * kBlockBytes, kBlockBytes), "", 0};
    const std::string status =
        store(next_slot_, keys[i], parent.is_null() ? "" : parent.get<std::string>());
    if (status == "duplicate") slots_.erase(next_slot_);
    ++next_slot_;
    statuses.push_back({{"status", status}});
  }
  return answer(200, json{{"blocks", statuses}}.dump());
}

std::string FakeCairn::bytes_of(const std::string& key) const {
  std::string bytes = slots_.at(index_.at(key)).bytes;
  if (faults_.flip_a_bit) bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  return bytes;
}

ScriptedAnswer FakeCairn::read(const ReceivedRequest& request) {
  std::vector<std::string> blocks;
  const json asked = json::parse(request.body);
  for (const std::string key : asked.at("keys")) {
    if (faults_.lose_leased || !index_.contains(key)) break;
    blocks.push_back(bytes_of(key));
  }
  if (faults_.swap_blocks && blocks.size() > 1) std::swap(blocks[0], blocks[1]);
  std::string body;
  for (const std::string& block : blocks) body += block;
  return answer(200, body, "application/octet-stream",
                "Cairn-Matched: " + std::to_string(blocks.size()) + "\r\n");
}

ScriptedAnswer FakeCairn::get_key(const std::string& key) {
  if (faults_.lose_leased || !index_.contains(key)) return problem(404, "unknown_key");
  return answer(200, bytes_of(key), "application/octet-stream", "Cairn-Tier: pinned\r\n");
}

ScriptedAnswer FakeCairn::metrics() const {
  const std::string series = "cairn_match_blocks_total{cache=\"" + cache_ + "\",result=\"";
  return answer(200,
                "# TYPE cairn_match_blocks_total counter\n" + series + "pinned\"} " +
                    std::to_string(hits_) + "\n" + series + "miss\"} " +
                    std::to_string(misses_ + (misses_ > 0 ? faults_.extra_misses : 0)) + "\n",
                "text/plain");
}

std::size_t FakeCairn::committed() const {
  const std::lock_guard lock(mutex_);
  return index_.size();
}

std::size_t FakeCairn::leases() const {
  const std::lock_guard lock(mutex_);
  return leases_.size();
}

bool FakeCairn::cache_exists() const {
  const std::lock_guard lock(mutex_);
  return !cache_.empty();
}

std::map<std::string, std::string> FakeCairn::parents() const {
  const std::lock_guard lock(mutex_);
  return parents_;
}

}  // namespace cairn::replay_test
