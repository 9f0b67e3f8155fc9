#include <algorithm>
#include <optional>

#include "transport/copy/form_meter.hpp"

namespace cairn {
namespace {

// From a page to a block of a large model.
constexpr std::uint64_t kLeastPieceBytes = 4 << 10;
constexpr std::uint64_t kMostPieceBytes = 8 << 20;
// Piece size for finding the best numbers of pieces and rows: a layer of Llama 3 8B.
constexpr std::uint64_t kCommonPieceBytes = 32 << 10;
constexpr std::uint64_t kMostCounted = 256;
// A form must be this much faster, because rates vary by a few percent.
constexpr double kClearlyFaster = 1.05;

bool same_job(const FormRun& a, const FormRun& b) {
  return a.way == b.way && a.piece_bytes == b.piece_bytes && a.pieces == b.pieces &&
         a.rows == b.rows;
}

// Speed of the run's form divided by the speed of another form for the same job; nullopt if the
// other was not measured.
std::optional<double> gain(std::span<const FormRate> rates, const FormRate& rate, CopyForm over) {
  const auto other = std::ranges::find_if(rates, [&](const FormRate& candidate) {
    return candidate.run.form == over && same_job(candidate.run, rate.run);
  });
  if (other == rates.end() || other->bytes_per_second <= 0) return std::nullopt;
  return rate.bytes_per_second / other->bytes_per_second;
}

// Checks if one form is clearly faster than another for a job.
struct Wins {
  std::span<const FormRate> rates;
  CopyWay way;
  CopyForm form;
  CopyForm over;

  bool at(const FormRun& job) const {
    const auto rate = std::ranges::find_if(rates, [&](const FormRate& candidate) {
      return candidate.run.form == form && same_job(candidate.run, job);
    });
    if (rate == rates.end()) return false;
    const auto gained = gain(rates, *rate, over);
    return gained.has_value() && *gained >= kClearlyFaster;
  }
};

std::uint64_t pieces_of(std::uint64_t piece_bytes, std::uint64_t job_bytes) {
  return std::max<std::uint64_t>(job_bytes / piece_bytes, 1);
}

std::uint64_t job_bytes_of(std::span<const FormRate> rates) {
  std::uint64_t most = 0;
  for (const FormRate& rate : rates) most = std::max(most, rate.run.pieces * rate.run.piece_bytes);
  return most;
}

// Returns the smallest power of two from which on the form wins; 0 if it does not win at the
// largest.
std::uint32_t min_count(const Wins& wins, bool rows) {
  std::uint32_t least = 0;
  for (std::uint32_t count = kMostCounted; count >= 2; count /= 2) {
    const FormRun job{.way = wins.way,
                      .piece_bytes = kCommonPieceBytes,
                      .pieces = rows ? kMostCounted : count,
                      .rows = rows ? count : 0};
    if (!wins.at(job)) break;
    least = count;
  }
  return least;
}

FormThresholds derive(std::span<const FormRate> rates, CopyWay way) {
  FormThresholds result;
  const Wins kernel{rates, way, CopyForm::kernel, CopyForm::batch};
  const std::uint64_t job_bytes = job_bytes_of(rates);
  for (std::uint64_t size = kLeastPieceBytes; size <= kMostPieceBytes; size *= 2) {
    if (!kernel.at({.way = way, .piece_bytes = size, .pieces = pieces_of(size, job_bytes)})) break;
    result.kernel_most_piece_bytes = size;
  }
  // From the common size, if kernels win at that size.
  if (const std::uint32_t count = min_count(kernel, false); count != 0) {
    result.kernel_least_pieces = count;
  }
  // If a batch never wins, it does no harm for many pieces.
  const std::uint32_t batch =
      min_count({rates, way, CopyForm::batch, CopyForm::loop}, /*rows=*/false);
  result.batch_least_pieces = batch == 0 ? kMostCounted : batch;
  result.rows_least_rows = min_count({rates, way, CopyForm::rows, CopyForm::batch}, /*rows=*/true);
  return result;
}

}  // namespace

Result<std::vector<FormRate>> measure_forms(FormMeter& meter) {
  std::vector<FormRate> rates;
  const std::uint64_t job_bytes = meter.options().most_job_bytes;
  const auto add = [&](FormRun run) -> Result<> {
    if (run.pieces * run.piece_bytes > job_bytes) return {};
    for (const FormRate& known : rates) {
      if (known.run.form == run.form && same_job(known.run, run)) return {};
    }
    auto rate = meter.rate(run);
    if (!rate) return std::move(rate).error();
    rates.push_back({run, *rate});
    return {};
  };
  for (const CopyWay way : kCopyWays) {
    for (const CopyForm form : kCopyForms) {
      for (std::uint64_t size = kLeastPieceBytes; size <= kMostPieceBytes; size *= 2) {
        CAIRN_TRY(add({way, form, size, pieces_of(size, job_bytes)}));
      }
      for (std::uint64_t count = 2; count <= kMostCounted; count *= 2) {
        CAIRN_TRY(add({way, form, kCommonPieceBytes, count}));
        CAIRN_TRY(add({way, form, kCommonPieceBytes, kMostCounted, count}));
      }
    }
  }
  return rates;
}

CopyThresholds derive_thresholds(std::span<const FormRate> rates) {
  return {.load = derive(rates, CopyWay::load),
          .store = derive(rates, CopyWay::store),
          .device = derive(rates, CopyWay::device)};
}

}  // namespace cairn
