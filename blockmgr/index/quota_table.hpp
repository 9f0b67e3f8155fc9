#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "blockmgr/index/block_quota.hpp"

namespace cairn {

// Under which quota a key counts, in two bytes of its entry; 0 is none.
using QuotaNumber = std::uint16_t;

// The quotas that keys of one cache count under. Gives all that it has counted back at its end. Not
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

  // A key more. 0 for a null quota, and for more quotas than can be numbered.
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
  // 0 where no key of this cache counts under it.
  QuotaNumber find(const std::shared_ptr<BlockQuota>& quota) const {
    if (quota == nullptr) return 0;
    for (const Row& row : rows_) {
      if (row.quota == quota) return number_of(row);
    }
    return 0;
  }
  // The key is gone, with every copy.
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
