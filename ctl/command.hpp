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
#include "client/wire.hpp"

namespace cairn::ctl {

using client::Answer;
using client::ClientError;
using nlohmann::json;

// What the program's end says to a script.
enum ExitCode : int {
  kDone = 0,
  kRefused = 1,       // the server said no, or the work failed
  kBadArguments = 2,  // nothing was asked of a server
  kUnreachable = 3,   // no server answered
};

// In the order in which tables show them.
inline constexpr std::array kTierNames = {"device", "pinned", "disk"};

// What was written on the command line, read.
struct Arguments {
  std::vector<std::string> words;              // behind the command
  std::map<std::string, std::string> options;  // a switch has an empty value
  bool json = false;

  bool has(const std::string& option) const { return options.contains(option); }
  // `fallback` where it is not given. REQUIRES: a number, as parsing has checked.
  std::uint64_t number(const std::string& option, std::uint64_t fallback) const;
  std::string text(const std::string& option) const;  // empty where it is not given
};

struct Session {
  client::CacheClient& client;
  const Arguments& arguments;
  std::ostream& out;

  const std::string& word(std::size_t index) const { return arguments.words[index]; }
  // "/v1/caches/" and the first word, and what follows.
  std::string cache_path(std::string_view rest = "") const;
  // The options named, as they were given, as a query: "?ttl_ms=5", or nothing.
  std::string query(std::span<const std::string_view> names) const;
  // Prints JSON where that was asked for; false where people read.
  bool print_json(const json& document) const;
};

struct Command {
  std::string_view name;     // one word or two
  std::string_view words;    // "CACHE KEY..." as the help says it; "..." ends an open list
  std::string_view options;  // names of those that it takes, each ended by a blank
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
std::span<const Option> options();         // of commands
std::span<const Option> common_options();  // of all

// status.cpp
Answer<> health(const Session&);
Answer<> status(const Session&);
Answer<> list_caches(const Session&);
Answer<> show_cache(const Session&);
Answer<> create_cache(const Session&);
Answer<> delete_cache(const Session&);
Answer<> change_cache(const Session&);
Answer<> resize_cache(const Session&);
// blocks.cpp
Answer<> match(const Session&);
Answer<> put(const Session&);
Answer<> get(const Session&);
Answer<> list_leases(const Session&);
Answer<> end_lease(const Session&);
// movements.cpp
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
Answer<> list_agents(const Session&);
Answer<> end_agent(const Session&);
Answer<> list_devices(const Session&);
Answer<> empty_device(const Session&);
Answer<> reset_device(const Session&);
// top.cpp
Answer<> top(const Session&);
// completion.cpp
Answer<> bash_completion(const Session&);

// Prints an answer; one that lacks what it should have is a failure.
template <class Print>
Answer<> printed(Print&& print) {
  auto done = client::guarded([&] {
    print();
    return true;
  });
  if (!done) return std::move(done).error();
  return {};
}

// What went wrong on this side.
ClientError local_failure(std::string detail);

}  // namespace cairn::ctl
