# Runs `TOOL;arguments;SNIPPET` and compares its result with the one that the snippet expects:
#   cmake -DCOMMAND=... -DSNIPPET=file [-DEXPECT=regex] -P check_snippet.cmake
# With EXPECT (or a first line `// EXPECT: regex`) the tool must fail with that message; otherwise it must succeed.
file(STRINGS ${SNIPPET} lines LIMIT_COUNT 1)
if(NOT EXPECT AND lines MATCHES "^// EXPECT: (.*)$")
  set(EXPECT "${CMAKE_MATCH_1}")
endif()

# Plain quotes in the messages, for any language of the machine.
set(ENV{LC_ALL} C)
execute_process(COMMAND ${COMMAND} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)

if(NOT EXPECT)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "must be accepted, and was refused:\n${output}")
  endif()
elseif(status EQUAL 0)
  message(FATAL_ERROR "must be refused (${EXPECT}), and was accepted")
elseif(NOT output MATCHES "${EXPECT}")
  message(FATAL_ERROR "must be refused with '${EXPECT}', and was refused with:\n${output}")
endif()
