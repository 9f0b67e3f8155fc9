// cairn-calibrate: measures which forms of copy, and which ways to wait for them, are fastest on
// this machine. Prints them in the form of the server's configuration.
#include <boost/program_options.hpp>
#include <cstdio>
#include <exception>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "base/nearest.hpp"
#include "base/standard_files.hpp"
#include "base/version.hpp"
#include "memory/cuda/cuda_runtime.hpp"
#include "memory/host/host_runtime.hpp"
#include "transport/copy/form_meter.hpp"

namespace {

namespace po = boost::program_options;
using json = nlohmann::ordered_json;

constexpr int kExitDone = 0;
constexpr int kExitFailed = 1;
constexpr int kExitWrongArgument = 2;

struct Wishes {
  std::string runtime = "auto";
  int device_id = 0;
  std::uint64_t job_bytes = cairn::FormMeter::Options{}.most_job_bytes;
  bool as_json = false;
};

cairn::Result<std::unique_ptr<cairn::DeviceRuntime>> make_runtime(const std::string& wanted) {
  if (wanted != "host") {
    auto cuda = cairn::make_cuda_runtime();
    if (cuda || wanted == "cuda") return cuda;
    std::fprintf(stderr, "cairn-calibrate: no CUDA device, so the host runtime is measured: %s\n",
                 cuda.error().detail.c_str());
  }
  return cairn::make_host_runtime({});
}

json body_of(const cairn::FormThresholds& forms) {
  return {{"batch_least_pieces", forms.batch_least_pieces},
          {"kernel_least_pieces", forms.kernel_least_pieces},
          {"kernel_most_piece_bytes", forms.kernel_most_piece_bytes},
          {"rows_least_rows", forms.rows_least_rows}};
}

json configuration_of(const cairn::CopyThresholds& forms, const cairn::CopyStrategies& strategies) {
  json wanted = json::object();
  for (const cairn::CopyWay way : cairn::kCopyWays) {
    wanted[std::string(to_string(way))] = to_string(strategies.of(way));
  }
  return {{"transfers",
           {{"strategy", std::move(wanted)},
            {"copy_forms",
             {{"load", body_of(forms.load)},
              {"store", body_of(forms.store)},
              {"device", body_of(forms.device)}}}}}};
}

cairn::Result<> measure(cairn::DeviceRuntime& runtime, const Wishes& wishes, json& result) {
  const cairn::SystemClock clock;
  auto meter = cairn::FormMeter::make(
      runtime, clock, {.device_id = wishes.device_id, .most_job_bytes = wishes.job_bytes});
  if (!meter) return std::move(meter).error();
  json ceilings = json::object();
  for (const cairn::CopyWay way : cairn::kCopyWays) {
    auto rate = meter->ceiling(way);
    if (!rate) return std::move(rate).error();
    ceilings[std::string(to_string(way))] = *rate;
  }
  auto duplex = meter->duplex();
  if (!duplex) return std::move(duplex).error();
  auto rates = cairn::measure_forms(*meter);
  if (!rates) return std::move(rates).error();
  json measured = json::array();
  for (const cairn::FormRate& rate : *rates) {
    measured.push_back({{"way", to_string(rate.run.way)},
                        {"form", to_string(rate.run.form)},
                        {"piece_bytes", rate.run.piece_bytes},
                        {"pieces", rate.run.pieces},
                        {"rows", rate.run.rows},
                        {"bytes_per_second", rate.bytes_per_second}});
  }
  auto strategies = cairn::measure_strategies(*meter);
  if (!strategies) return std::move(strategies).error();
  json waited = json::array();
  for (const cairn::StrategyRate& rate : *strategies) {
    waited.push_back({{"way", to_string(rate.run.way)},
                      {"strategy", to_string(rate.run.strategy)},
                      {"bytes", rate.run.bytes},
                      {"bytes_per_second", rate.bytes_per_second}});
  }
  const cairn::DeviceInfo& device = runtime.devices()[static_cast<std::size_t>(wishes.device_id)];
  result = {{"runtime", runtime.name()},
            {"device", device.name},
            {"memory_visibility", to_string(runtime.visibility())},
            {"ceilings_bytes_per_second", std::move(ceilings)},
            {"duplex_bytes_per_second", *duplex},
            {"rates", std::move(measured)},
            {"strategies", std::move(waited)},
            {"configuration", configuration_of(cairn::derive_thresholds(*rates),
                                               cairn::derive_strategies(*strategies))}};
  return {};
}

double giga(const json& rate) { return rate.get<double>() / 1e9; }

void print(const json& result) {
  std::printf("%s on %s, memory visibility %s; GB/s\n\n",
              result["device"].get<std::string>().c_str(),
              result["runtime"].get<std::string>().c_str(),
              result["memory_visibility"].get<std::string>().c_str());
  std::printf("%-7s %10s %7s %6s %9s %9s %9s %9s\n", "way", "piece", "pieces", "rows", "loop",
              "batch", "rows", "kernel");
  const json& rates = result["rates"];
  const auto rate_of = [&](const json& job, const char* form) {
    for (const json& rate : rates) {
      if (rate["form"] == form && rate["way"] == job["way"] && rate["rows"] == job["rows"] &&
          rate["piece_bytes"] == job["piece_bytes"] && rate["pieces"] == job["pieces"]) {
        return giga(rate["bytes_per_second"]);
      }
    }
    return 0.0;
  };
  for (const json& job : rates) {
    if (job["form"] != "loop") continue;
    std::printf("%-7s %10llu %7llu %6llu %9.2f %9.2f %9.2f %9.2f\n",
                job["way"].get<std::string>().c_str(), job["piece_bytes"].get<unsigned long long>(),
                job["pieces"].get<unsigned long long>(), job["rows"].get<unsigned long long>(),
                rate_of(job, "loop"), rate_of(job, "batch"), rate_of(job, "rows"),
                rate_of(job, "kernel"));
  }
  std::printf("\n%-7s %10s %9s\n", "way", "bytes", "strategy");
  for (const json& rate : result["strategies"]) {
    std::printf("%-7s %10llu %9s %9.2f\n", rate["way"].get<std::string>().c_str(),
                rate["bytes"].get<unsigned long long>(),
                rate["strategy"].get<std::string>().c_str(), giga(rate["bytes_per_second"]));
  }
  const json& ceilings = result["ceilings_bytes_per_second"];
  std::printf(
      "\none copy of everything: load %.2f, store %.2f, within the device %.2f; load and "
      "store at once %.2f\n\nfor the configuration:\n%s\n",
      giga(ceilings["load"]), giga(ceilings["store"]), giga(ceilings["device"]),
      giga(result["duplex_bytes_per_second"]), result["configuration"].dump(2).c_str());
}

int fail(int status, const std::string& why) {
  std::fprintf(stderr, "cairn-calibrate: %s\n", why.c_str());
  return status;
}

int run(int argc, char** argv) {
  Wishes wishes;
  po::options_description options(
      "Measures which form of copy this machine prefers for pieces of which number and size, and "
      "how it is best waited for.\n\n"
      "cairn-calibrate [options]\n\nOptions",
      100);
  auto add = options.add_options();
  add("help", "print this and exit")("version", "print the version and exit");
  add("runtime", po::value(&wishes.runtime)->value_name("WORD"),
      "auto, host or cuda (default auto)");
  add("device", po::value(&wishes.device_id)->value_name("N"), "which device (default 0)");
  add("job-bytes", po::value(&wishes.job_bytes)->value_name("N"),
      "bytes of a measured job, 65536 to 1073741824 (default 33554432)");
  add("json", po::bool_switch(&wishes.as_json), "print JSON; its `configuration` is for the file");
  po::variables_map given;
  try {
    po::store(po::parse_command_line(argc, argv, options), given);
    po::notify(given);
  } catch (const po::unknown_option& wrong) {
    return fail(kExitWrongArgument,
                wrong.what() + cairn::did_you_mean_option(wrong.get_option_name(), options));
  } catch (const po::error& wrong) {
    return fail(kExitWrongArgument, wrong.what());
  }
  if (given.count("help") > 0) {
    std::cout << options;
    return kExitDone;
  }
  if (given.count("version") > 0) {
    std::cout << "cairn-calibrate " << cairn::kVersion << "\n";
    return kExitDone;
  }
  if (wishes.runtime != "auto" && wishes.runtime != "host" && wishes.runtime != "cuda") {
    return fail(kExitWrongArgument,
                "--runtime is '" + wishes.runtime + "'; it takes auto, host or cuda");
  }
  if (wishes.job_bytes < 65'536 || wishes.job_bytes > 1'073'741'824) {
    return fail(kExitWrongArgument, "--job-bytes takes 65536 to 1073741824");
  }
  auto runtime = make_runtime(wishes.runtime);
  if (!runtime) return fail(kExitFailed, runtime.error().detail);
  const auto devices = static_cast<int>((*runtime)->devices().size());
  if (wishes.device_id < 0 || wishes.device_id >= devices) {
    return fail(kExitWrongArgument, "--device takes 0 to " + std::to_string(devices - 1));
  }
  json result;
  const auto measured = measure(**runtime, wishes, result);
  if (!measured) return fail(kExitFailed, measured.error().detail);
  if (wishes.as_json) {
    std::printf("%s\n", result.dump(1).c_str());
  } else {
    print(result);
  }
  return kExitDone;
}

}  // namespace

int main(int argc, char** argv) {
  cairn::open_standard_files();
  try {
    return run(argc, argv);
  } catch (const std::exception& thrown) {
    return fail(kExitFailed, thrown.what());
  }
}
