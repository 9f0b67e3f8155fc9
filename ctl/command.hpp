#pragma once

#include <array>
#include <iosfwd>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "client/cache_client.hpp"
#include "client/endpoint.hpp"
#include "client/http_wire.hpp"

namespace cairn::ctl {

using client::Answer;
using client::ClientError;
using nlohmann::json;

// The exit codes of the program.
enum ExitCode : int {
  kDone = 0,
  kRefused = 1,       // the server refused, or the work failed
  kBadArguments = 2,  // no request was sent
  kUnreachable = 3,   // no server responded
};

// In the order of the tables.
inline constexpr std::array kTierNames = {"device", "pinned", "disk"};

// The parsed command line.
struct Arguments {
  std::vector<std::string> words;              // after the command
  std::map<std::string, std::string> options;  // a switch has an empty value
  bool json = false;

  bool has(const std::string& option) const { return options.contains(option); }
  // `fallback` if it is not given. REQUIRES: a number, which parsing has checked.
  std::uint64_t number(const std::string& option, std::uint64_t fallback) const;
  std::string text(const std::string& option) const;  // empty if it is not given
};

struct Session {
  client::CacheClient& client;
  const Arguments& arguments;
  std::ostream& out;

  const std::string& word(std::size_t index) const { return arguments.words[index]; }
  // "/v1/caches/", the first word, and `rest`.
  std::string cache_path(std::string_view rest = "") const;
  // The named options, as they were given, as a query: "?ttl_ms=5", or empty.
  std::string query(std::span<const std::string_view> names) const;
  // Prints JSON if that was requested; returns false if the output is for people.
  bool print_json(const json& document) const;
};

struct Command {
  std::string_view name;     // one word or two
  std::string_view words;    // "CACHE KEY..." as in the help; "..." ends an open list
  std::string_view options;  // names of the options it takes, each followed by a blank
  std::string_view help;
  Answer<> (*run)(const Session&);

  std::size_t min_words() const;
  bool open_ended() const { return words.ends_with("..."); }
};
std::span<const Command> commands();

struct Option {
  const char* name;
  const char* value;  // null: a switch
  bool is_number;
  const char* help;
};
std::span<const Option> options();         // of one command
std::span<const Option> common_options();  // of all commands

// status.cpp
Answer<> health(const Session&);
Answer<> status(const Session&);
Answer<> list_caches(const Session&);
Answer<> show_cache(const Session&);
Answer<> create_cache(const Session&);
Answer<> delete_cache(const Session&);
Answer<> clear_cache(const Session&);
Answer<> change_cache(const Session&);
Answer<> resize_cache(const Session&);
// blocks.cpp
Answer<> match(const Session&);
Answer<> put(const Session&);
Answer<> get(const Session&);
Answer<> delete_keys(const Session&);
Answer<> list_blocks(const Session&);
Answer<> list_leases(const Session&);
Answer<> end_lease(const Session&);
// actions.cpp
Answer<> act(const Session&);
Answer<> list_pins(const Session&);
Answer<> end_pin(const Session&);
Answer<> list_sessions(const Session&);
// transfers.cpp
Answer<> list_transfers(const Session&);
Answer<> start_transfer(const Session&);
Answer<> advise(const Session&);
Answer<> drain(const Session&);
Answer<> list_pending(const Session&);
Answer<> show_transfer(const Session&);
Answer<> cancel_transfer(const Session&);
Answer<> list_snapshots(const Session&);
Answer<> make_snapshot(const Session&);
Answer<> restore_snapshot(const Session&);
Answer<> delete_snapshot(const Session&);
// machine.cpp
Answer<> list_groups(const Session&);
Answer<> list_engine_memories(const Session&);
Answer<> end_engine_memory(const Session&);
Answer<> list_devices(const Session&);
Answer<> empty_device(const Session&);
Answer<> reset_device(const Session&);
// top.cpp
Answer<> top(const Session&);
// events.cpp
Answer<> follow_events(const Session&);
// size.cpp
Answer<> size(const Session&);
// completion.cpp
Answer<> bash_completion(const Session&);
Answer<> zsh_completion(const Session&);
Answer<> fish_completion(const Session&);

// Prints a response; a response with missing fields is a failure.
template <class Print>
Answer<> printed(Print&& print) {
  auto done = client::guarded([&] {
    print();
    return true;
  });
  if (!done) return std::move(done).error();
  return {};
}

// The bytes of a file; `-` is stdin.
Answer<std::string> read_all(const std::string& path);

// A failure on this side.
ClientError local_failure(std::string detail);

}  // namespace cairn::ctl
