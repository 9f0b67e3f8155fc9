#pragma once

#include "transport/copy/stream_copier.hpp"

namespace cairn {

// Copies blocks between two places in memory in the way that suits both. Blocks in one piece in
// pinned memory and in many small pieces on a device behind a bus cross the bus in one piece, and
// are gathered or scattered within the device. All others are copied directly. Borrows its
// arguments.
class BlockCopier {
 public:
  BlockCopier(StreamSet& streams, StreamCopier::Route route, CopyMode mode);

  // Like StreamCopier::begin(). Without scratch memory on the device, copies piece by piece.
  Result<std::unique_ptr<Event>> begin(std::span<const BlockPair> pairs);
  // Waits until nothing issued here is moving. Destroy the events from begin() first.
  void abandon() { direct_.abandon(); }
  // begin(), wait_for_event(), and abandon() if either fails.
  Result<> copy(std::span<const BlockPair> pairs);

 private:
  // no_capacity: no scratch memory; nothing was issued.
  Result<std::unique_ptr<Event>> begin_by_scratch(std::span<const BlockPair> pairs);

  StreamSet& streams_;
  const StreamCopier::Route route_;
  const CopyMode mode_;
  StreamCopier direct_;
  bool by_scratch_;
};

}  // namespace cairn
