# Writes OUTPUT, a source that holds the files OPENAPI and STATUS_PAGE as strings. A script of its
# own, so that the source is made anew when one of them changes.
function(literal out file)
  file(READ "${file}" text)
  set(${out} "R\"cairn_asset(${text})cairn_asset\"" PARENT_SCOPE)
endfunction()

literal(openapi "${OPENAPI}")
literal(status_page "${STATUS_PAGE}")
file(WRITE "${OUTPUT}" "#include \"server/assets/assets.hpp\"

namespace cairn::assets {

const std::string_view kOpenapi = ${openapi};
const std::string_view kStatusPage = ${status_page};

}  // namespace cairn::assets
")
