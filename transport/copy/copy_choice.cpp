#include "transport/copy/copy_choice.hpp"

#include "base/assert.hpp"

namespace cairn {

std::string_view to_string(CopyWay way) {
  switch (way) {
    case CopyWay::load:
      return "load";
    case CopyWay::store:
      return "store";
    case CopyWay::device:
      return "device";
  }
  invariant_broken("CopyWay", "a value outside the enumeration");
}

std::string_view to_string(CopyStrategy strategy) {
  switch (strategy) {
    case CopyStrategy::automatic:
      return "auto";
    case CopyStrategy::sync:
      return "sync";
    case CopyStrategy::async:
      return "async";
    case CopyStrategy::polling:
      return "polling";
    case CopyStrategy::unified:
      return "unified";
  }
  invariant_broken("CopyStrategy", "a value outside the enumeration");
}

std::optional<CopyWay> way_of(StorageKinds kinds) {
  const bool from = is_on_device(kinds.source);
  const bool to = is_on_device(kinds.destination);
  if (from && to) return CopyWay::device;
  if (to) return CopyWay::load;
  if (from) return CopyWay::store;
  return std::nullopt;
}

CopyStrategy CopyStrategies::of(CopyWay way) const {
  switch (way) {
    case CopyWay::load:
      return load;
    case CopyWay::store:
      return store;
    case CopyWay::device:
      return device;
  }
  invariant_broken("CopyWay", "a value outside the enumeration");
}

CopyStrategy choose_strategy(StorageKinds kinds, const CopyStrategies& wanted) {
  const std::optional<CopyWay> way = way_of(kinds);
  // The CPU copies host to host anyway; a stream would only add thread switches.
  if (!way) return CopyStrategy::sync;
  const bool unified_side =
      kinds.source == StorageKind::unified || kinds.destination == StorageKind::unified;
  const CopyStrategy asked = wanted.of(*way);
  if (asked == CopyStrategy::automatic || (asked == CopyStrategy::unified && !unified_side)) {
    return unified_side ? CopyStrategy::unified : CopyStrategy::async;
  }
  return asked;
}

const FormThresholds* thresholds_of(StorageKinds kinds, const CopyThresholds& thresholds) {
  const bool from_device = kinds.source == StorageKind::device;
  const bool to_device = kinds.destination == StorageKind::device;
  if (from_device && to_device) return &thresholds.device;
  if (to_device && kinds.source == StorageKind::pinned) return &thresholds.load;
  if (from_device && kinds.destination == StorageKind::pinned) return &thresholds.store;
  return nullptr;
}

CopyForm choose_form(const CopyFacts& facts, const CopyThresholds& thresholds,
                     MemoryVisibility visibility) {
  const FormThresholds* const of_way = thresholds_of(facts.kinds, thresholds);
  if (of_way == nullptr || facts.pieces == 0) return CopyForm::batch;
  const bool within_device = of_way == &thresholds.device;
  const bool kernel_sees_both = within_device || visibility != MemoryVisibility::device;
  if (kernel_sees_both && facts.pieces >= of_way->kernel_least_pieces &&
      facts.bytes / facts.pieces <= of_way->kernel_most_piece_bytes &&
      of_way->kernel_most_piece_bytes != 0) {
    return CopyForm::kernel;
  }
  if (of_way->rows_least_rows != 0 && facts.strided_runs != 0 &&
      facts.pieces / facts.strided_runs >= of_way->rows_least_rows) {
    return CopyForm::rows;
  }
  return facts.pieces < of_way->batch_least_pieces ? CopyForm::loop : CopyForm::batch;
}

}  // namespace cairn
