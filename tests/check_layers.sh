#!/usr/bin/env bash
# The layers are a line: each folder includes itself and folders to its left, and so do the rooms of a
# folder among themselves; what a room declares it defines; no two headers have one name; third
# parties stay in the folders made for them, and no logic is cut up by the preprocessor.
#   check_layers.sh check ROOT   lists every line that breaks a rule; fails if there is one
#   check_layers.sh prove        plants violations in a folder of its own; fails if one is missed
set -euo pipefail

readonly program='
  BEGIN {
    count = split("base memory layouts transport blockmgr metrics server", line, " ")
    for (i = 1; i <= count; ++i) rank[line[i]] = i
    # Beside the line: a client knows the contract, not the server.
    allowed["client"] = " base client "
    allowed["replay"] = " base client replay "
    allowed["ctl"] = " base client ctl "
    # Pure logic, which tells without a server what one would keep.
    allowed_room["replay", "blockmgr/eviction"] = 1
    for (i = 1; i <= count; ++i) {
      allowed[line[i]] = " "
      for (j = 1; j <= i; ++j) allowed[line[i]] = allowed[line[i]] line[j] " "
    }
    # Rooms, from left to right; "." is the folder itself.
    rooms["memory"] = ". alloc host cuda"
    rooms["transport"] = "record copy io transfer collective store s3"
    rooms["blockmgr"] = "disk eviction index reuse transfer core disk_tier cache engine_memory snapshot collectives . remote_tier"
    # The server is a client of the collector of its traces.
    allowed["server"] = allowed["server"] "client "
    rooms["server"] = "http tracing codec routing auth events config assets routes ."
    for (name in rooms) {
      count = split(rooms[name], line, " ")
      for (i = 1; i <= count; ++i) place[name, line[i]] = i
    }
    # Each third party by the start of its headers, and its folders, rooms or files.
    # A client has errors of its own: the answers of a server.
    home["boost/system/"] = " base client "
    home["xxh"] = " base "
    home["zstd"] = " blockmgr/snapshot/snapshot_zstd.cpp transport/record/plane_codec.cpp "
    home["numa"] = " memory "
    home["cuda"] = " memory transport "
    home["nccl"] = " transport "
    home["liburing"] = " transport "
    home["prometheus/"] = " metrics "
    home["boost/beast"] = " server client replay transport/store "
    home["boost/asio"] = " server client replay transport/store "
    home["hiredis/"] = " transport/store "
    home["curl/"] = home["expat"] = " transport/s3 "
    home["zmq"] = " "  # only the tests, as a client
    home["simdjson"] = home["openssl/"] = " server client replay ctl "
    home["nlohmann/"] = " server client replay ctl transport/s3 "
    # What is behind a header that others include.
    inside["blockmgr/core/cache_core.hpp"] = "blockmgr"
    home["gtest/"] = home["gmock/"] = home["benchmark/"] = " "
  }
  function complain(why) {
    printf "%s:%d: %s\n", FILENAME, FNR, why
    ++broken
  }
  # The room of a path below the root.
  function room_of(path,   parts) {
    return split(path, parts, "/") > 2 ? parts[2] : "."
  }
  { folder = FILENAME; sub(/\/.*/, "", folder) }
  FNR == 1 && folder in rooms && !((folder, room_of(FILENAME)) in place) {
    complain(folder " has no such room")
  }
  /^[ \t]*#[ \t]*include[ \t]*"/ {
    split($0, quoted, "\"")
    target = quoted[2]
    path = target
    if (target !~ /\//) { complain("\"" target "\" does not name its folder from the root"); next }
    sub(/\/.*/, "", target)
    if (path in inside && inside[path] != folder) complain(folder " must not include the inside of " inside[path])
    else if (index(allowed[folder], " " target " ") == 0 &&
        !((folder, target "/" room_of(path)) in allowed_room)) complain(folder " must not include " target)
    else if (target == folder && folder in rooms &&
             place[folder, room_of(path)] > place[folder, room_of(FILENAME)]) {
      complain(folder "/" room_of(FILENAME) " must not include its room " room_of(path))
    }
  }
  /^[ \t]*#[ \t]*include[ \t]*</ {
    split($0, bracketed, /[<>]/)
    for (start in home) {
      if (index(bracketed[2], start) == 1 && index(home[start], " " folder " ") == 0 &&
          index(home[start], " " folder "/" room_of(FILENAME) " ") == 0 &&
            index(home[start], " " FILENAME " ") == 0) {
        complain(folder " must not include <" bracketed[2] ">")
      }
    }
  }
  /^[ \t]*#[ \t]*(if|ifdef|ifndef|elif)([^a-z]|$)/ {
    if (!(FILENAME == "base/mutex.hpp" && $0 == "#if defined(__clang__)")) complain("conditional compilation")
  }
  # Declarations, which must be defined in the same room. A class is known by its name, a function by
  # its name and the type of its first parameter.
  function here() { return folder "/" room_of(FILENAME) }
  function signature(text,   name, first) {
    if (text ~ /=.*\(/ || !match(text, /[ &*>][a-z_][a-z_0-9]*\(/)) return ""
    name = substr(text, RSTART + 1, RLENGTH - 1)
    first = substr(text, RSTART + RLENGTH)
    sub(/[,)].*/, "", first)
    sub(/[ ]?[a-z_0-9]*$/, "", first)
    return name first
  }
  FNR == 1 {
    unnamed = 0
    if (FILENAME ~ /\.hpp$/) {
      base = FILENAME
      sub(/.*\//, "", base)
      if (base in header) complain(header[base] " has the same name")
      header[base] = FILENAME
    }
  }
  /^namespace \{/ { unnamed = 1 }
  /^\}  \/\/ namespace$/ { unnamed = 0 }
  FILENAME ~ /\.hpp$/ && /^(class|struct) / && !/;$/ {
    text = $0
    gsub(/CAIRN_[A-Z_]+(\([a-z_]*\))? /, "", text)
    split(text, words, /[ :{]+/)
    declared[words[2]] = declared[words[2]] " " here() " "
  }
  FILENAME ~ /\.hpp$/ && /^[A-Za-z]/ && !/^(class|struct|using|template|enum|static|namespace|constexpr|inline|friend|CAIRN)/ {
    if ((key = signature($0)) != "") declared[key] = declared[key] " " here() " "
  }
  FILENAME ~ /\.cpp$/ && /^[A-Za-z]/ && !unnamed && !/^(static|using|namespace|constexpr|inline|template)/ {
    key = ""
    if (match($0, /[A-Z][A-Za-z_0-9]*::~?[A-Za-z_0-9]+\(/)) {
      if (index(substr($0, 1, RSTART), "=") == 0) key = substr($0, RSTART, index(substr($0, RSTART), "::") - 1)
    } else {
      key = signature($0)
    }
    if (key != "") {
      defined[++definitions] = key
      place_of[definitions] = here()
      at[definitions] = FILENAME ":" FNR
    }
  }
  END {
    for (i = 1; i <= definitions; ++i) {
      key = defined[i]
      if (key in declared && index(declared[key], " " place_of[i] " ") == 0) {
        printf "%s: defines %s, which is declared in%s\n", at[i], key, declared[key]
        ++broken
      }
    }
    exit broken > 0
  }
'

check() {
  cd "$1"
  local folders=() folder
  for folder in base memory layouts transport blockmgr metrics server client replay ctl; do
    if [[ -d $folder ]]; then folders+=("$folder"); fi
  done
  find "${folders[@]}" -type f \( -name '*.hpp' -o -name '*.cpp' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' \) \
    -print0 | sort -z | xargs -0 -r awk "$program"
}

# plant FILE LINE: the check must refuse a tree whose only fault is this line, and name the file.
plant() {
  local file=$1 text=$2 answer
  mkdir -p "$(dirname "$root/$file")"
  printf '#pragma once\n%s\n' "$text" >"$root/$file"
  if answer=$(check "$root"); then
    echo "not found: $file: $text"
    failed=1
  elif [[ $answer != "$file:2: "* ]]; then
    echo "found, but not where it is: $file: $text: $answer"
    failed=1
  fi
  rm "$root/$file"
}

prove() {
  root=$(mktemp -d)
  failed=0
  trap 'rm -rf "$root"' EXIT
  mkdir -p "$root"/{base,memory,layouts,transport,blockmgr,metrics,server/http,client,replay,ctl}
  cat >"$root/base/mutex.hpp" <<<'#if defined(__clang__)'
  cat >"$root/server/http/good.cpp" <<'END'
#include <boost/asio/ip/tcp.hpp>
#include <vector>
#include "blockmgr/pool.hpp"
END
  cat >"$root/memory/good.cpp" <<'END'
#include <numa.h>
// #if in a comment, and #include "server/main.hpp" too
#include "base/result.hpp"
END
  if ! check "$root"; then
    echo "refused, and must not be"
    failed=1
  fi
  plant base/bad.hpp '#include "memory/region.hpp"'
  plant memory/bad.cpp '#include "layouts/geometry.hpp"'
  plant layouts/bad.hpp '  #  include "transport/transfer.hpp"'
  plant transport/copy/bad.hpp '#include "blockmgr/pool.hpp"'
  plant blockmgr/cache/bad.hpp '#include "metrics/text.hpp"'
  plant blockmgr/index/bad.hpp '#include "blockmgr/cache/cache.hpp"'
  plant blockmgr/collectives/bad.hpp '#include "blockmgr/block_manager.hpp"'
  plant transport/io/bad.hpp '#include "transport/transfer/fair_queue.hpp"'
  plant memory/bad.hpp '#include "memory/cuda/cuda_stream.hpp"'
  plant server/codec/bad.hpp '#include "server/config/settings.hpp"'
  plant server/config/bad.hpp '#include "server/routes/service.hpp"'
  plant server/routes/bad.cpp '#include "server/server.hpp"'
  plant metrics/bad.cpp '#include "server/http/message.hpp"'
  plant server/routes/bad.cpp '#include "blockmgr/core/cache_core.hpp"'
  plant client/bad.cpp '#include "server/http/message.hpp"'
  plant replay/bad.cpp '#include "memory/region.hpp"'
  plant replay/bad.cpp '#include "blockmgr/index/block_store.hpp"'
  plant blockmgr/eviction/bad.hpp '#include "blockmgr/index/types.hpp"'
  plant ctl/bad.cpp '#include "replay/options.hpp"'
  plant server/bad.cpp '#include "tests/fakes/manual_clock.hpp"'
  plant memory/bad.cpp '#include "region.hpp"'
  plant transport/copy/bad.cpp '#include <boost/asio.hpp>'
  plant metrics/bad.cpp '#include <boost/beast/http.hpp>'
  plant blockmgr/bad.cpp '#include <nlohmann/json.hpp>'
  plant blockmgr/bad.cpp '#include <simdjson.h>'
  plant base/bad.cpp '#include <openssl/sha.h>'
  plant server/bad.cpp '#include <prometheus/registry.h>'
  plant layouts/bad.cpp '#include <numaif.h>'
  plant blockmgr/bad.cpp '#include <xxhash.h>'
  plant blockmgr/bad.cpp '#include <zstd.h>'
  plant blockmgr/bad.cpp '#include <zmq.h>'
  plant blockmgr/remote_tier/bad.cpp '#include <hiredis/hiredis.h>'
  plant replay/bad.cpp '#include <boost/system/result.hpp>'
  plant layouts/bad.cpp '#include <cuda_runtime.h>'
  plant server/bad.cpp '#include <gtest/gtest.h>'
  plant memory/bad.cpp '#ifdef CAIRN_CUDA'
  plant base/mutex.hpp.h '#if defined(__clang__)'
  plant server/bad.cu ' # if 1'
  # Two files each: a declaration and its definition, or two headers.
  echo 'std::string_view to_string(Tier tier);' >"$root/base/good.hpp"
  plant memory/bad.cpp 'std::string_view to_string(Tier tier) {'
  echo 'class Good {' >"$root/base/good.hpp"
  plant memory/bad.cpp 'void Good::go(int n) {'
  echo '#pragma once' >"$root/memory/good.hpp"
  if check "$root" >/dev/null; then
    echo "not found: two headers of one name"
    failed=1
  fi
  rm "$root"/{base,memory}/good.hpp
  mkdir "$root/transport/attic"
  echo '#pragma once' >"$root/transport/attic/bad.hpp"
  if check "$root" >/dev/null; then
    echo "not found: a room that the line does not name"
    failed=1
  fi
  return "$failed"
}

case ${1-} in
  check) check "$2" ;;
  prove) prove ;;
  *) sed -n '2,6s/^# //p' "$0"; exit 2 ;;
esac
