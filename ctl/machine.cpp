// Engines that registered memory, groups of servers, and the devices.
#include "ctl/command.hpp"
#include "ctl/text_table.hpp"

namespace cairn::ctl {
namespace {

std::string agent_path(const std::string& name) {
  return "/v1/agents/" + client::percent_encoded(name);
}

void print_devices(const json& devices, std::ostream& out) {
  TextTable table({"DEVICE", "NAME", "MEMORY", "ALLOCATOR", "ALLOCATED", "CACHED", "PEAK",
                   "LARGEST FREE", "SEGMENTS"});
  for (const json& device : devices) {
    const std::vector<std::string> first = {device.at("id").dump(), device.at("name"),
                                            bytes_text(device.at("total_bytes"))};
    if (device.at("allocators").empty()) {
      auto row = first;
      row.insert(row.end(), 6, "-");
      table.add(std::move(row));
    }
    for (const json& one : device.at("allocators")) {
      auto row = first;
      row.push_back(one.at("allocator"));
      for (const char* bytes :
           {"allocated_bytes", "cached_bytes", "peak_allocated_bytes", "largest_free_bytes"}) {
        row.push_back(bytes_text(one.at(bytes)));
      }
      row.push_back(one.at("segments").dump());
      table.add(std::move(row));
    }
  }
  table.print(out);
}

Answer<> ask_device(const Session& session, std::string_view verb) {
  auto device = session.client.call(
      "POST", "/v1/devices/" + client::percent_encoded(session.word(0)) + std::string(verb));
  if (!device) return std::move(device).error();
  if (session.print_json(*device)) return {};
  return printed([&] {
    if (device->contains("freed_bytes")) {
      session.out << bytes_text(device->at("freed_bytes")) << " went back\n";
    }
    print_devices(json::array({*device}), session.out);
  });
}

}  // namespace

Answer<> list_engine_memories(const Session& session) {
  auto list = session.client.call("GET", "/v1/agents");
  if (!list) return std::move(list).error();
  if (session.print_json(*list)) return {};
  return printed([&] {
    TextTable table({"AGENT", "TOKEN", "BLOCKS", "BLOCK", "REGIONS", "COPIES", "ENDS"});
    for (const json& one : list->at("agents")) {
      const json& token = one.at("token");
      table.add({one.at("name"), token.is_null() ? std::string("-") : token.get<std::string>(),
                 one.at("num_blocks").dump(), bytes_text(one.at("block_bytes")),
                 std::to_string(one.at("descriptors").size()), one.at("copies").dump(),
                 one.contains("expires_at_ms") ? time_text(one.at("expires_at_ms"))
                                               : std::string("with its connection")});
    }
    table.print(session.out);
  });
}

Answer<> end_engine_memory(const Session& session) {
  auto gone = session.client.call("DELETE", agent_path(session.word(0)));
  if (!gone) return std::move(gone).error();
  if (!session.arguments.json) session.out << session.word(0) << " has ended\n";
  return {};
}

Answer<> list_groups(const Session& session) {
  auto list = session.client.call("GET", "/v1/groups");
  if (!list) return std::move(list).error();
  if (session.print_json(*list)) return {};
  return printed([&] {
    TextTable table({"GROUP", "STATE", "RANK", "OF", "COLLECTIVE", "DEVICE", "QUEUED", "ERROR"});
    for (const json& one : list->at("groups")) {
      const json error = one.value("error", json::object());
      table.add({one.at("name"), one.at("state"), one.at("rank").dump(),
                 one.at("world_size").dump(), one.at("collective"), one.at("device_id").dump(),
                 one.at("queued_operations").dump(), error.value("detail", "-")});
    }
    table.print(session.out);
  });
}

Answer<> list_devices(const Session& session) {
  auto list = session.client.call("GET", "/v1/devices");
  if (!list) return std::move(list).error();
  if (session.print_json(*list)) return {};
  return printed([&] { print_devices(list->at("devices"), session.out); });
}

Answer<> empty_device(const Session& session) { return ask_device(session, "/empty_cache"); }

Answer<> reset_device(const Session& session) { return ask_device(session, "/reset_peaks"); }

}  // namespace cairn::ctl
