# Writes OUTPUT, a source file with OPENAPI, STATUS_PAGE, RUNBOOKS and PARTS as strings, in which VERSION replaces
# @PROJECT_VERSION@. A separate script, so that the build runs it when one of the files changes.
function(literal out file)
  file(READ "${file}" text)
  string(REPLACE "@PROJECT_VERSION@" "${VERSION}" text "${text}")
  set(${out} "R\"cairn_asset(${text})cairn_asset\"" PARENT_SCOPE)
endfunction()

# Three hex digits make two base64 digits. CMake itself writes only hex.
function(base64_digest out text)
  string(SHA256 hex "${text}")
  set(alphabet "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")
  string(APPEND hex "00")
  set(base64 "")
  foreach(at RANGE 0 63 3)
    string(SUBSTRING "${hex}" ${at} 3 digits)
    math(EXPR high "0x${digits} >> 6")
    math(EXPR low "0x${digits} & 63")
    string(SUBSTRING "${alphabet}" ${high} 1 first)
    string(SUBSTRING "${alphabet}" ${low} 1 second)
    string(APPEND base64 "${first}${second}")
  endforeach()
  # 32 bytes make 43 digits; the added zeros complete the last one.
  string(SUBSTRING "${base64}" 0 43 base64)
  set(${out} "${base64}=" PARENT_SCOPE)
endfunction()

# The text between <TAG> and </TAG>.
function(content_of out text tag)
  string(FIND "${text}" "<${tag}>" begin)
  string(FIND "${text}" "</${tag}>" end)
  if(begin EQUAL -1 OR end EQUAL -1)
    message(FATAL_ERROR "the status page has no <${tag}>")
  endif()
  string(LENGTH "<${tag}>" tag_length)
  math(EXPR begin "${begin} + ${tag_length}")
  math(EXPR length "${end} - ${begin}")
  string(SUBSTRING "${text}" ${begin} ${length} content)
  set(${out} "${content}" PARENT_SCOPE)
endfunction()

file(READ "${STATUS_PAGE}" page)
content_of(style "${page}" style)
content_of(script "${page}" script)
base64_digest(style_digest "${style}")
base64_digest(script_digest "${script}")
literal(openapi "${OPENAPI}")
literal(status_page "${STATUS_PAGE}")
literal(runbooks "${RUNBOOKS}")
literal(parts "${PARTS}")
file(WRITE "${OUTPUT}" "#include \"server/assets/assets.hpp\"

namespace cairn::assets {

const std::string_view kOpenapi = ${openapi};
const std::string_view kStatusPage = ${status_page};
const std::string_view kRunbooks = ${runbooks};
const std::string_view kParts = ${parts};
const std::string_view kStatusPageStyleDigest = \"${style_digest}\";
const std::string_view kStatusPageScriptDigest = \"${script_digest}\";

}  // namespace cairn::assets
")
