#include "transport/copy/copy_choice.hpp"

namespace cairn {

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
  const bool kernel_sees_both = within_device || visibility == MemoryVisibility::system;
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
