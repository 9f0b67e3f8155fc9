#include "replay/console.hpp"

#include <algorithm>
#include <array>

namespace cairn::replay {
namespace {

constexpr int kBarWidth = 40;

struct Figures {
  double percent;
  double seconds;
  double requests_per_s;
};

Figures figures_of(const Progress& progress, std::chrono::steady_clock::duration elapsed) {
  const double seconds = std::chrono::duration<double>(elapsed).count();
  return {100.0 * progress.fraction, seconds,
          seconds > 0 ? static_cast<double>(progress.requests) / seconds : 0};
}

std::string text_of(const Progress& progress, const Figures& figures) {
  std::array<char, 160> text{};
  const int length = std::snprintf(
      text.data(), text.size(), "%5.1f%%  %llu requests  %.0f/s  %.0f s  wrong blocks: %llu",
      figures.percent, static_cast<unsigned long long>(progress.requests), figures.requests_per_s,
      figures.seconds, static_cast<unsigned long long>(progress.wrong_blocks));
  return {text.data(), static_cast<std::size_t>(std::clamp(length, 0, 159))};
}

}  // namespace

Console::Console(std::FILE* out, Mode mode) : out_(out), mode_(mode) {}

void Console::print_line(std::string_view line) {
  if (mode_ == Mode::silent) return;
  if (bar_shown_) std::fputs("\r\033[K", out_);
  bar_shown_ = false;
  std::fprintf(out_, "%.*s\n", static_cast<int>(line.size()), line.data());
}

void Console::message(std::string_view text) {
  const MutexLock lock(mutex_);
  if (messages_.size() == kMaxMessages) {
    ++dropped_;
    return;
  }
  messages_.emplace_back(text);
  print_line(text);
  if (messages_.size() == kMaxMessages) print_line("(further messages are only counted)");
}

void Console::progress(const Progress& progress, std::chrono::steady_clock::duration elapsed) {
  const MutexLock lock(mutex_);
  const std::string text = text_of(progress, figures_of(progress, elapsed));
  if (mode_ == Mode::lines && elapsed - last_line_ >= kLineEvery) {
    last_line_ = elapsed;
    print_line(text);
  }
  if (mode_ != Mode::bar) return;
  const int filled = static_cast<int>(kBarWidth * std::clamp(progress.fraction, 0.0, 1.0));
  const std::string bar(static_cast<std::size_t>(filled), '#');
  std::fprintf(out_, "\r[%-*s] %s\033[K", kBarWidth, bar.c_str(), text.c_str());
  std::fflush(out_);
  bar_shown_ = true;
}

void Console::finish() {
  const MutexLock lock(mutex_);
  if (bar_shown_) std::fputs("\n", out_);
  bar_shown_ = false;
  if (dropped_ > 0) print_line("and " + std::to_string(dropped_) + " messages more");
}

std::vector<std::string> Console::messages() const {
  const MutexLock lock(mutex_);
  return messages_;
}

}  // namespace cairn::replay
