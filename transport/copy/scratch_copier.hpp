#pragma once

#include <optional>

#include "transport/copy/stream_copier.hpp"

namespace cairn {

// Copies between contiguous blocks in host memory and blocks in many small pieces on a device.
// Crosses the bus in one piece at full speed, and gathers or scatters within the device. Borrows
// its arguments.
class ScratchCopier {
 public:
  // Returns nullopt for other pairs of places, or if the set has no scratch memory.
  static std::optional<ScratchCopier> make(StreamSet& streams, StreamCopier::Route route,
                                           CopyMode mode);

  // Like StreamCopier::begin(). no_capacity: no scratch memory; nothing was issued.
  Result<std::unique_ptr<Event>> begin(std::span<const BlockPair> pairs);

 private:
  ScratchCopier(StreamSet& streams, StreamCopier::Route route, CopyMode mode)
      : streams_(streams), route_(route), mode_(mode) {}

  StreamSet& streams_;
  const StreamCopier::Route route_;
  const CopyMode mode_;
};

}  // namespace cairn
