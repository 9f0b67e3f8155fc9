#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "blockmgr/cache/cache.hpp"
#include "blockmgr/core/partial_blocks.hpp"
#include "transport/transfer/transfer_job.hpp"

namespace cairn {

// Gives slots their keys as whole blocks. REQUIRES: what Cache::commit() checks of the request.
void commit_blocks(std::shared_ptr<CacheCore> core, const LeaseId& lease,
                   std::vector<CommitBlock> blocks, Done<std::vector<CommitStatus>> done,
                   CommitTerms terms);

// A commit in a cache with shards, of parts and of whole blocks. REQUIRES: as commit_blocks().
void commit_with_parts(std::shared_ptr<CacheCore> core, const LeaseId& lease,
                       std::vector<CommitBlock> blocks, Done<std::vector<CommitStatus>> done,
                       CommitTerms terms);

// A slot that holds a shard of a key's block, all of it written.
struct StoredPart {
  CommitBlock block;                              // with its handle and its shard
  std::shared_ptr<PartialBlocks::Keeper> keeper;  // holds the slot; entered by the caller
};
// Joins the parts to their keys' blocks. Gives up the slots that no key keeps, and releases those
// of blocks that it commits.
void commit_stored_parts(std::shared_ptr<CacheCore> core, std::vector<StoredPart> parts,
                         Done<std::vector<CommitStatus>> done, RequestHint hint);

// Why a job failed. REQUIRES: it is not done.
Error error_of(const JobOutcome& outcome);

// The shards of the layout that a part covers. REQUIRES: check_part().
std::vector<std::uint32_t> units_of(const LayoutConfig& shape, ShardSelector part);

}  // namespace cairn
