#include "transport/s3/s3_bucket.hpp"

#include <utility>

#include "base/pieces.hpp"

namespace cairn {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kDay{86'400'000};
// A day's bound may be used up within an hour, and is then used as it fills.
constexpr milliseconds kDayBurst{3'600'000};
// Keys of a role last an hour or more.
constexpr milliseconds kRenewBefore{300'000};
constexpr milliseconds kRenewalPause{1'000};

S3KeySource source_of(const S3Settings& settings) {
  return {.file = settings.credentials_file,
          .profile = settings.profile,
          .instance = settings.instance_role};
}

}  // namespace

Result<> check_keys(const S3Settings& settings) {
  const S3KeySource source = source_of(settings);
  if (has_role(source)) return {};
  if (auto keys = load_keys(source); !keys) return std::move(keys).error();
  return {};
}

S3Bucket::S3Bucket(const S3Settings& settings)
    : settings_(settings),
      source_(source_of(settings)),
      url_(bucket_url(settings)),
      session_({.connections = settings.connections,
                .timeout_ms = settings.timeout_ms,
                .ca = settings.ca,
                .proxy = settings.proxy}),
      requests_({.units = settings.bounds.requests_per_s}),
      daily_requests_({.units = settings.bounds.requests_per_day, .per = kDay, .burst = kDayBurst}),
      bytes_({.units = settings.bounds.bytes_per_s}) {
  if (auto keys = load_keys(source_)) keys_ = std::move(*keys);
}

std::string S3Bucket::url_of(const std::string& object) const {
  return url_ + "/" + settings_.prefix + "/" + object;
}

bool S3Bucket::may(std::uint64_t bytes) {
  if (keys_.id.empty()) return false;
  const auto now = std::chrono::steady_clock::now();
  return requests_.may(1, now) && daily_requests_.may(1, now) && bytes_.may(bytes, now);
}

std::optional<Error> S3Bucket::refusal(std::uint64_t bytes) {
  if (is_paused()) return Error{ErrorCode::unavailable, "paused after a failure: " + last_error_};
  if (keys_.id.empty()) return Error{ErrorCode::unavailable, "no keys for the bucket yet"};
  if (may(bytes)) return std::nullopt;
  ++counts_.over_bounds;
  return Error{ErrorCode::unavailable, settings_.bucket + ": a bound of shared.s3 is reached"};
}

void S3Bucket::keep_keys() {
  const std::int64_t now = clock_.unix_ms();
  const bool is_due = keys_.id.empty() || (keys_.expires_at_unix_ms != 0 &&
                                           keys_.expires_at_unix_ms - kRenewBefore.count() <= now);
  if (is_due && std::chrono::steady_clock::now() >= next_renewal_) renew_keys();
}

void S3Bucket::renew_keys() {
  if (is_fetching_) return;
  next_renewal_ = std::chrono::steady_clock::now() + kRenewalPause;
  if (auto keys = load_keys(source_)) {
    keys_ = std::move(*keys);
    return;
  }
  if (!has_role(source_)) return;
  is_fetching_ = true;
  fetch_keys(session_, source_, settings_.region, [this](Result<S3Keys> keys) {
    is_fetching_ = false;
    if (keys) {
      keys_ = std::move(*keys);
    } else {
      last_error_ = keys.error().detail;
    }
  });
}

void S3Bucket::send(Sent what, HttpSession::Request request,
                    UniqueFunction<void(HttpSession::Response)> done) {
  const auto now = std::chrono::steady_clock::now();
  requests_.use(1, now);
  daily_requests_.use(1, now);
  bytes_.use(what.bytes, now);
  ++counts_.requests[static_cast<std::size_t>(what.call)];
  (what.call == Call::put ? counts_.sent_bytes : counts_.received_bytes) += what.bytes;
  request.signature = {.scope = "aws:amz:" + settings_.region + ":s3",
                       .key_id = keys_.id,
                       .secret = keys_.secret,
                       .token = keys_.token};
  session_.start(std::move(request), std::move(done));
}

void S3Bucket::succeeded() {
  circuit_.answered();
  last_error_.clear();
}

Error S3Bucket::failed(const HttpSession::Response& response) {
  std::string text = response.status == 0 ? response.error : read_error(response.text);
  if (text.empty()) text = "status " + std::to_string(response.status);
  text = settings_.bucket + ": " + text;
  const bool is_refused =
      response.status == 400 || response.status == 401 || response.status == 403;
  circuit_.failed(random_);
  last_error_ = text;
  // Keys may have been replaced, as those of a session are.
  if (is_refused) renew_keys();
  const bool is_away = response.status == 0 || response.status == 429 || response.status >= 500;
  return {is_away      ? ErrorCode::unavailable
          : is_refused ? ErrorCode::forbidden
                       : ErrorCode::io_error,
          std::move(text)};
}

void S3Bucket::read(Read read, UniqueFunction<void(Result<bool>)> done) {
  const std::uint64_t bytes = total_bytes(read.into);
  if (auto error = refusal(bytes)) return done(std::move(*error));
  HttpSession::Request request{.verb = HttpSession::Verb::get,
                               .url = url_of(read.object),
                               .headers = {"Range: bytes=" + std::to_string(read.offset) + "-" +
                                           std::to_string(read.offset + bytes - 1)},
                               .into = std::move(read.into)};
  send({.call = Call::get, .bytes = bytes}, std::move(request),
       [this, done = std::move(done)](const HttpSession::Response& response) mutable {
         if (response.status == 206 && response.is_whole) {
           succeeded();
           return done(true);
         }
         if (response.status == 404 && read_error(response.text).starts_with("NoSuchKey")) {
           succeeded();
           return done(false);
         }
         if (response.status == 416 || response.status == 206 || response.status == 200) {
           succeeded();
           return done(
               Error{ErrorCode::wrong_length,
                     settings_.bucket + ": an object has another length than its name says"});
         }
         done(failed(response));
       });
}

void S3Bucket::write(const std::string& object, std::vector<iovec> body,
                     UniqueFunction<void(Result<>)> done) {
  const std::uint64_t bytes = total_bytes(body);
  if (auto error = refusal(bytes)) return done(std::move(*error));
  HttpSession::Request request{.verb = HttpSession::Verb::put,
                               .url = url_of(object),
                               .headers = {"Content-Type: application/octet-stream"},
                               .body = std::move(body)};
  send({.call = Call::put, .bytes = bytes}, std::move(request),
       [this, done = std::move(done)](const HttpSession::Response& response) mutable {
         if (response.status != 200) return done(failed(response));
         succeeded();
         done({});
       });
}

void S3Bucket::list(const std::string& after, UniqueFunction<void(Result<S3Listing>)> done) {
  if (auto error = refusal(0)) return done(std::move(*error));
  const std::string prefix = settings_.prefix + "/";
  // In the order of the signature's canonical form.
  std::string query = "?list-type=2&prefix=" + url_encoded(prefix);
  if (!after.empty()) query += "&start-after=" + url_encoded(prefix + after);
  HttpSession::Request request{.verb = HttpSession::Verb::get, .url = url_ + "/" + query};
  send({.call = Call::list, .bytes = 0}, std::move(request),
       [this, prefix, done = std::move(done)](const HttpSession::Response& response) mutable {
         if (response.status != 200) return done(failed(response));
         auto listing = read_listing(response.text);
         if (!listing) return done(failed({.error = listing.error().detail}));
         succeeded();
         std::erase_if(listing->objects, [&](S3Listing::Object& object) {
           if (!object.key.starts_with(prefix)) return true;
           object.key.erase(0, prefix.size());
           return false;
         });
         done(std::move(listing));
       });
}

void S3Bucket::remove(const std::string& object, UniqueFunction<void(Result<>)> done) {
  if (auto error = refusal(0)) return done(std::move(*error));
  send({.call = Call::remove, .bytes = 0},
       {.verb = HttpSession::Verb::remove, .url = url_of(object)},
       [this, done = std::move(done)](const HttpSession::Response& response) mutable {
         // It may be gone already.
         if (response.status != 200 && response.status != 204 && response.status != 404) {
           return done(failed(response));
         }
         succeeded();
         done({});
       });
}

}  // namespace cairn
