#include "memory/storage_kind.hpp"

#include "base/assert.hpp"

namespace cairn {

std::string_view to_string(StorageKind kind) {
  switch (kind) {
    case StorageKind::system:
      return "system";
    case StorageKind::pinned:
      return "pinned";
    case StorageKind::device:
      return "device";
    case StorageKind::unified:
      return "unified";
    case StorageKind::disk:
      return "disk";
  }
  invariant_broken("StorageKind", "a value outside the enumeration");
}

}  // namespace cairn
