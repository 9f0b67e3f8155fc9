#include "server/config/data_dir.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>
#include <span>
#include <sstream>
#include <system_error>
#include <utility>

#include "base/durable_file.hpp"
#include "base/file_error.hpp"
#include "base/hash.hpp"
#include "base/hex.hpp"
#include "base/random.hpp"

namespace cairn {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kIdentityFile = "identity";
// No slot file has a '~' in its name.
constexpr std::string_view kMarkFile = "cairn~folder";
constexpr std::string_view kIdentityTitle = "Cairn data directory";
constexpr std::string_view kMarkTitle = "Cairn disk folder";

// Both files consist of lines: a title, words with their values, and a checksum of everything
// before it.
struct Line {
  std::string word;
  std::string value;
};
using Lines = std::vector<Line>;

std::string checksum_line(const std::string& text) {
  const std::uint64_t hash = hash_bytes(std::as_bytes(std::span(text)), 0);
  return "checksum " + to_hex(std::as_bytes(std::span(&hash, 1))) + "\n";
}

Result<> write_lines(const fs::path& path, std::string_view title, const Lines& lines) {
  std::string text = std::string(title) + "\n";
  for (const Line& line : lines) text += line.word + " " + line.value + "\n";
  text += checksum_line(text);
  return write_durably(path, std::as_bytes(std::span(text)));
}

// Errors: not_found; checksum_mismatch; io_error.
Result<Lines> read_lines(const fs::path& path, std::string_view title) {
  const auto failed = [&path](int number) {
    return Error{number == ENOENT ? ErrorCode::not_found : file_error_code(number),
                 path.string() + " cannot be read: " + std::generic_category().message(number)};
  };
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return failed(errno);
  std::string text;
  std::array<char, 4096> piece{};
  ::ssize_t got = 0;
  while ((got = ::read(file.get(), piece.data(), piece.size())) > 0) {
    text.append(piece.data(), static_cast<std::size_t>(got));
  }
  if (got < 0) return failed(errno);
  const Error damaged{ErrorCode::checksum_mismatch, path.string() + " is damaged"};
  const std::size_t end = text.rfind("checksum ");
  if (end == std::string::npos || text.substr(end) != checksum_line(text.substr(0, end))) {
    return damaged;
  }
  std::istringstream words(text.substr(0, end));
  std::string line;
  if (!std::getline(words, line) || line != title) return damaged;
  Lines lines;
  while (std::getline(words, line)) {
    const std::size_t space = line.find(' ');
    if (space == std::string::npos) return damaged;
    lines.push_back({line.substr(0, space), line.substr(space + 1)});
  }
  return lines;
}

std::string value_of(const Lines& lines, std::string_view word) {
  const auto at = std::ranges::find(lines, word, &Line::word);
  return at == lines.end() ? "" : at->value;
}

// Returns the folder's owner; empty if the mark is damaged. Other errors as for read_lines().
Result<std::string> read_mark(const fs::path& folder) {
  const auto lines = read_lines(folder / kMarkFile, kMarkTitle);
  if (lines) return value_of(*lines, "owner");
  if (lines.error().code == ErrorCode::checksum_mismatch) return std::string();
  return lines.error();
}

std::string new_name() {
  RandomBytes random;
  const std::array<std::uint64_t, 2> numbers = {random.next_u64(), random.next_u64()};
  return to_hex(std::as_bytes(std::span(numbers)));
}

bool is_same_folder(const fs::path& a, const fs::path& b) {
  std::error_code error;
  return fs::equivalent(a, b, error) && !error;
}

// Returns impossible if a retry cannot help.
ErrorCode code_of(int error_number) {
  constexpr std::array kWrong = {ENOTDIR, EEXIST, EACCES, EPERM, ENAMETOOLONG, ELOOP, EISDIR};
  const bool is_wrong = std::ranges::find(kWrong, error_number) != kWrong.end();
  return is_wrong ? ErrorCode::impossible : file_error_code(error_number);
}

Error failed_on(const fs::path& path, const char* what, int error_number) {
  return {code_of(error_number), "the data directory '" + path.string() + "' " + what + ": " +
                                     std::generic_category().message(error_number)};
}

}  // namespace

Result<> DataDir::check(const fs::path& path) {
  std::error_code error;
  auto there = fs::absolute(path, error);
  while (!fs::exists(there, error) && there.has_relative_path()) there = there.parent_path();
  const bool is_usable =
      fs::is_directory(there, error) && ::access(there.c_str(), W_OK | X_OK) == 0;
  if (is_usable) return {};
  return Error{ErrorCode::io_error, "the data directory '" + path.string() +
                                        "' cannot be made or written to: '" + there.string() +
                                        "' is not a folder, or this user cannot write to it"};
}

Result<DataDir> DataDir::open(const Place& place, Logger& log) {
  const fs::path& path = place.path;
  std::error_code error;
  if (place.must_be_known && !fs::exists(path / kIdentityFile, error)) {
    return Error{ErrorCode::unavailable,
                 "no server has used the data directory '" + path.string() + "': it has no file '" +
                     std::string(kIdentityFile) +
                     "', and known_data_dir is set. Is its file system mounted?"};
  }
  fs::create_directories(path, error);
  if (error) return failed_on(path, "cannot be made", error.value());
  DataDir dir(fs::canonical(path, error), log);
  if (error) return failed_on(path, "cannot be found", error.value());
  CAIRN_TRY(dir.lock());
  CAIRN_TRY(dir.find_identity());
  return dir;
}

// Locks the folder itself, which nobody can remove while it is not empty. Also locks a file, for
// file systems that cannot lock folders (NFS) and for servers that lock only the file.
Result<> DataDir::lock() {
  const fs::path file = path_ / "lock";
  folder_lock_ = FileDescriptor(::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder_lock_) return failed_on(path_, "cannot be opened", errno);
  file_lock_ = FileDescriptor(::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!file_lock_) return failed_on(path_, "cannot be written to", errno);
  const bool is_folder_free =
      ::flock(folder_lock_.get(), LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
  if (is_folder_free && ::flock(file_lock_.get(), LOCK_EX | LOCK_NB) == 0) return {};
  if (is_folder_free && errno != EWOULDBLOCK) return failed_on(path_, "cannot be locked", errno);
  return Error{ErrorCode::unavailable, "the data directory '" + path_.string() +
                                           "' is in use by another server (it holds '" +
                                           file.string() + "')"};
}

bool DataDir::is_copy_of(const fs::path& other) const {
  if (other.empty() || is_same_folder(path_, other)) return false;
  const auto theirs = read_lines(other / kIdentityFile, kIdentityTitle);
  return theirs && value_of(*theirs, "name") == identity_.name;
}

Result<> DataDir::find_identity() {
  auto lines = read_lines(path_ / kIdentityFile, kIdentityTitle);
  if (lines) {
    identity_ = {.name = value_of(*lines, "name"), .path = value_of(*lines, "path")};
    for (const Line& line : *lines) {
      if (line.word == "folder") identity_.folders.emplace_back(line.value);
    }
    is_saved_ = true;
    if (is_same_folder(path_, identity_.path)) return {};
  } else if (lines.error().code == ErrorCode::checksum_mismatch) {
    // use_folder() takes the name from a marked folder.
    takes_name_ = true;
    log_->error("the data directory's identity is damaged", {{"detail", lines.error().detail}});
  } else if (lines.error().code != ErrorCode::not_found) {
    log_->error("the data directory's identity cannot be read", {{"detail", lines.error().detail}});
    return {};
  }
  Identity now = identity_;
  if (now.name.empty()) {
    now.name = new_name();
  } else if (is_copy_of(identity_.path)) {
    copied_from_ = std::exchange(now.name, new_name());
    std::erase_if(now.folders, [](const fs::path& folder) { return folder.is_absolute(); });
    log_->warning(
        "the data directory is a copy of another; it does not own disk folders outside of it",
        {{"data_dir", path_.string()}, {"other", identity_.path.string()}});
  } else {
    log_->info("the data directory has another path than at the last start",
               {{"data_dir", path_.string()}, {"before", identity_.path.string()}});
  }
  now.path = path_;
  auto saved = save(now);
  // A copy without a new name would take over the original's folders.
  if (!saved && !copied_from_.empty()) return saved;
  if (!saved) {
    log_->error("the data directory's identity cannot be written",
                {{"detail", saved.error().detail}});
  }
  return {};
}

Result<> DataDir::save(const Identity& identity) {
  Lines lines = {{"name", identity.name}, {"path", identity.path.string()}};
  for (const fs::path& folder : identity.folders) lines.push_back({"folder", folder.string()});
  CAIRN_TRY(write_lines(path_ / kIdentityFile, kIdentityTitle, lines));
  identity_ = identity;
  is_saved_ = true;
  return {};
}

fs::path DataDir::listed(const fs::path& folder) const {
  std::error_code error;
  fs::path absolute = fs::weakly_canonical(folder, error);
  if (error) absolute = fs::absolute(folder, error).lexically_normal();
  const fs::path within = absolute.lexically_relative(path_);
  return !within.empty() && *within.begin() != ".." ? within : absolute;
}

Result<> DataDir::use_folder(const Folder& folder) {
  if (!is_saved_) return {};
  const fs::path name = listed(folder.path);
  const bool is_listed = std::ranges::find(identity_.folders, name) != identity_.folders.end();
  const fs::path file = folder.path / kMarkFile;
  const auto mark = read_mark(folder.path);
  if (!mark && mark.error().code != ErrorCode::not_found) return mark.error();
  if (!mark && is_listed && !folder.may_be_new) {
    return Error{ErrorCode::unavailable,
                 "the disk folder '" + folder.path.string() +
                     "' has lost its mark: " + file.string() +
                     " is missing. Is its file system mounted? disk.replace_other_shape accepts "
                     "the folder as it is"};
  }
  if (takes_name_ && mark && !mark->empty()) {
    Identity with = identity_;
    with.name = *mark;
    CAIRN_TRY(save(with));
    takes_name_ = false;
  }
  const bool is_own = mark && *mark == identity_.name;
  const bool came_along =
      mark && !copied_from_.empty() && *mark == copied_from_ && name.is_relative();
  if (mark && !mark->empty() && !is_own && !came_along) {
    return Error{ErrorCode::unavailable,
                 "the disk folder '" + folder.path.string() + "' is another data directory's: " +
                     file.string() + " names " + *mark + ", and this one is " + identity_.name};
  }
  const auto take = [&]() -> Result<> {
    std::error_code error;
    fs::create_directories(folder.path, error);
    if (error) return Error{file_error_code(error.value()), error.message()};
    if (!is_own) CAIRN_TRY(write_lines(file, kMarkTitle, {{"owner", identity_.name}}));
    if (is_listed) return {};
    Identity with = identity_;
    with.folders.push_back(name);
    return save(with);
  };
  // The folder is used without a mark. The next cache that is made tries again.
  if (auto taken = take(); !taken) {
    log_->warning("a disk folder could not be marked as this data directory's",
                  {{"folder", folder.path.string()}, {"detail", taken.error().detail}});
  }
  return {};
}

}  // namespace cairn
