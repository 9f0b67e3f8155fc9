#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "blockmgr/index/block_quota.hpp"

namespace cairn {

// The quota that counts a key, in two bytes of its entry; 0: none.
using QuotaNumber = std::uint16_t;

// The quotas that count the keys of one cache. The destructor subtracts everything it added. Not
// thread-safe.
class QuotaTable {
 public:
  QuotaTable() = default;
  ~QuotaTable() {
    for (const Row& row : rows_) {
      for (Tier tier : kTiers) {
        if (row.quota) row.quota->remove(tier, row.copies[index_of(tier)]);
      }
    }
  }
  QuotaTable(const QuotaTable&) = delete;
  QuotaTable& operator=(const QuotaTable&) = delete;

  // Adds a key. Returns 0 for a null quota, and if no number is left.
  QuotaNumber open(const std::shared_ptr<BlockQuota>& quota) {
    if (quota == nullptr) return 0;
    Row* unused = nullptr;
    for (Row& row : rows_) {
      if (row.quota == quota) return take(row);
      if (row.quota == nullptr) unused = &row;
    }
    if (unused == nullptr) {
      if (rows_.size() == kMaxRows) return 0;
      unused = &rows_.emplace_back();
    }
    unused->quota = quota;
    return take(*unused);
  }
  // Returns 0 if no key of this cache counts under the quota.
  QuotaNumber find(const std::shared_ptr<BlockQuota>& quota) const {
    if (quota == nullptr) return 0;
    for (const Row& row : rows_) {
      if (row.quota == quota) return number_of(row);
    }
    return 0;
  }
  // Call when a key has lost its last copy.
  void close(QuotaNumber number) {
    if (number == 0) return;
    Row& row = rows_[number - 1u];
    if (--row.keys == 0) row.quota.reset();
  }

  void add(QuotaNumber number, Tier tier) {
    if (number == 0) return;
    Row& row = rows_[number - 1u];
    ++row.copies[index_of(tier)];
    row.quota->add(tier);
  }
  void remove(QuotaNumber number, Tier tier) {
    if (number == 0) return;
    Row& row = rows_[number - 1u];
    --row.copies[index_of(tier)];
    row.quota->remove(tier, 1);
  }

 private:
  static constexpr std::size_t kMaxRows = UINT16_MAX;
  struct Row {
    std::shared_ptr<BlockQuota> quota;  // null: unused
    std::uint32_t keys = 0;
    std::array<std::uint32_t, kNumTiers> copies{};
  };

  QuotaNumber take(Row& row) {
    ++row.keys;
    return number_of(row);
  }
  QuotaNumber number_of(const Row& row) const {
    return static_cast<QuotaNumber>(&row - rows_.data() + 1);
  }

  std::vector<Row> rows_;
};

}  // namespace cairn
