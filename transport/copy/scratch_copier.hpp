#pragma once

#include <optional>

#include "transport/copy/stream_copier.hpp"

namespace cairn {

// Copies blocks between host memory where they are whole and a device where they lie in many small
// pieces: over the bus in one piece, which it carries at its full speed, and from or into the
// pieces within the device. Borrows all it is given.
class ScratchCopier {
 public:
  // Nothing where that is not such a pair of places, or the set has no scratch memory.
  static std::optional<ScratchCopier> make(StreamSet& streams, StreamCopier::Route route,
                                           CopyMode mode);

  // As StreamCopier::begin(). no_capacity: there is no scratch memory; nothing was issued.
  Result<std::unique_ptr<Event>> begin(std::span<const BlockPair> pairs);

 private:
  ScratchCopier(StreamSet& streams, StreamCopier::Route route, CopyMode mode)
      : streams_(streams), route_(route), mode_(mode) {}

  StreamSet& streams_;
  const StreamCopier::Route route_;
  const CopyMode mode_;
};

}  // namespace cairn
