#include "transport/disk_route.hpp"

#include <algorithm>

#include "transport/job_rules.hpp"
#include "transport/slot_route.hpp"

namespace cairn {
namespace {

// Blocks are moved in groups of this size (of one block where blocks are larger): below 1 MiB a
// disk does not reach its throughput, above it the groups overlap less.
constexpr std::uint64_t kGroupBytes = 1ull << 20;

// A run of bytes in a file and the memory it is copied from or to.
struct FileRun {
  int fd = -1;
  DiskRun run;
};

FileRun file_run(const Place& file, PieceLocation at, std::byte* memory, std::uint64_t size_bytes) {
  const RegionView& region = file.regions[at.region];
  return {region.fd(), {memory, region.file_offset_bytes() + at.offset_bytes, size_bytes}};
}

class DiskMove {
 public:
  DiskMove(const TransferJob& job, CopyMode mode, DiskEquipment equipment, JobReport& report)
      : job_(job),
        source_(Place::of(*job.source)),
        destination_(Place::of(*job.destination)),
        mode_(mode),
        equipment_(equipment),
        report_(report) {}

  std::size_t pairs_per_group() const {
    return static_cast<std::size_t>(
        std::max<std::uint64_t>(kGroupBytes / source_.geometry->block_bytes(), 1));
  }

  // Moves and reports a group. Where it fails each of its pairs is tried alone, so that only those
  // that really cannot be moved are named.
  void move_group(PairRange range, Lane& lane) const {
    Result<> moved = try_move(range, lane);
    if (moved) {
      report_.arrived(range);
    } else if (range.count == 1) {
      report_.failed(range, moved.error());
    } else {
      for (std::size_t i = 0; i < range.count; ++i) move_group({range.first + i, 1}, lane);
    }
  }

 private:
  Result<> try_move(PairRange range, Lane& lane) const {
    const auto pairs = std::span(job_.pairs).subspan(range.first, range.count);
    const Place& other_side = source_.on_disk() ? destination_ : source_;
    if (cpu_reaches(other_side.kind(), mode_.visibility))
      return move_leg(source_, destination_, pairs, lane);
    return move_staged(pairs, lane);
  }

  // Through pinned memory that holds the blocks of `pairs` one after another, in canonical order.
  Result<> move_staged(std::span<const BlockPair> pairs, Lane& lane) const {
    LayoutConfig shape = source_.geometry->config();
    shape.num_blocks = pairs.size();
    shape.alignment = 1;
    const Geometry geometry = Geometry::fully_contiguous(shape);
    auto slot = equipment_.staging.acquire(geometry.region_bytes());
    if (!slot) return std::move(slot).error();
    const RegionView memory = slot->view();
    const Place staging{&geometry, {&memory, 1}};

    std::vector<BlockPair> in(pairs.begin(), pairs.end());
    std::vector<BlockPair> out(pairs.begin(), pairs.end());
    for (std::uint32_t i = 0; i < pairs.size(); ++i) in[i].destination = out[i].source = i;
    CAIRN_TRY(move_leg(source_, staging, in, lane));
    return move_leg(staging, destination_, out, lane);
  }

  // One step: between a file and memory that the CPU reaches, or between two kinds of memory.
  Result<> move_leg(const Place& from, const Place& to, std::span<const BlockPair> pairs,
                    Lane& lane) const {
    if (!from.on_disk() && !to.on_disk()) {
      return StreamCopier(lane, {from, to}, mode_).copy(pairs);
    }
    std::vector<CopySpan> spans;
    plan_copy(*from.geometry, *to.geometry, pairs, spans);
    std::vector<FileRun> runs;
    runs.reserve(spans.size());
    for (const CopySpan& span : spans) {
      runs.push_back(
          from.on_disk()
              ? file_run(from, span.source, to.address(span.destination), span.size_bytes)
              : file_run(to, span.destination, from.address(span.source), span.size_bytes));
    }
    return from.on_disk() ? transfer(runs, &DiskIo::read) : transfer(runs, &DiskIo::write);
  }

  // One call for each file, its runs by rising offset so that neighbours can be joined.
  Result<> transfer(std::vector<FileRun>& runs,
                    Result<> (DiskIo::*call)(int, std::span<const DiskRun>)) const {
    std::ranges::sort(
        runs, {}, [](const FileRun& file) { return std::pair(file.fd, file.run.offset_bytes); });
    std::vector<DiskRun> batch;
    for (std::size_t i = 0; i < runs.size(); ++i) {
      batch.push_back(runs[i].run);
      if (i + 1 < runs.size() && runs[i + 1].fd == runs[i].fd) continue;
      CAIRN_TRY((equipment_.disk.*call)(runs[i].fd, batch));
      batch.clear();
    }
    return {};
  }

  const TransferJob& job_;
  const Place source_;
  const Place destination_;
  const CopyMode mode_;
  const DiskEquipment equipment_;
  JobReport& report_;
};

void move_in_groups(const TransferJob& job, const auto& move, LaneCrew& crew, Lane& lane) {
  const std::size_t step = move.pairs_per_group();
  const std::size_t groups = (job.pairs.size() + step - 1) / step;
  crew.for_each(groups, lane, [&](std::size_t group, Lane& part_lane) {
    const std::size_t first = group * step;
    move.move_group({first, std::min(step, job.pairs.size() - first)}, part_lane);
  });
}

}  // namespace

void move_with_disk(const TransferJob& job, CopyMode mode, DiskEquipment equipment, Lane& lane,
                    JobReport& report) {
  if (job.slots != nullptr) {
    move_in_groups(job, SlotMove(job, mode, equipment, report), equipment.crew, lane);
  } else {
    move_in_groups(job, DiskMove(job, mode, equipment, report), equipment.crew, lane);
  }
}

}  // namespace cairn
