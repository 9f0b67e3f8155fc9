#pragma once

#include "transport/disk_route.hpp"

namespace cairn {

// Moves a group of a job's pairs into or out of a slot file: headers and checksums are written with
// the bytes, and what is read is compared with its checksum. What is read is in the destination
// before it is known to be right, so nobody may see it before the pair is reported.
class SlotMove {
 public:
  // Borrows all it is given. REQUIRES: job.slots.
  SlotMove(const TransferJob& job, CopyMode mode, DiskEquipment equipment, JobReport& report);

  std::size_t pairs_per_group() const;
  // Moves and reports each pair.
  void move_group(PairRange range, Lane& lane) const;

 private:
  struct Memory;
  Result<> store(PairRange range, Lane& lane) const;
  Result<> store_labels(PairRange range) const;
  // `wrong`: pairs of the range whose bytes do not have their checksum.
  Result<> load(PairRange range, Lane& lane, std::vector<std::uint32_t>& wrong) const;

  std::span<const BlockPair> pairs(PairRange range) const;
  const Place& memory_side() const { return storing_ ? source_ : destination_; }
  const Place& disk_side() const { return storing_ ? destination_ : source_; }
  std::uint32_t slot_of(const BlockPair& pair) const {
    return storing_ ? pair.destination : pair.source;
  }
  bool reached_directly(PairRange range) const;
  void put_header(std::size_t index, std::uint64_t checksum, std::byte* page) const;

  Result<> copy_to_image(PairRange range, const Memory& image, Lane& lane) const;
  Result<> copy_from_image(PairRange range, const Memory& image,
                           std::span<const std::uint32_t> wrong, Lane& lane) const;
  // From or to a slot's start.
  struct SlotRun {
    std::uint32_t slot = 0;
    std::uint64_t skip_bytes = 0;
    std::span<std::byte> memory;
  };
  Result<> transfer(std::span<const SlotRun> runs,
                    Result<> (DiskIo::*call)(int, std::span<const DiskRun>)) const;

  const TransferJob& job_;
  const Place source_;
  const Place destination_;
  const CopyMode mode_;
  const DiskEquipment equipment_;
  JobReport& report_;
  const bool storing_;
};

}  // namespace cairn
