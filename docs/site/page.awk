# A page as MkDocs takes it: a fence has a language only (what follows it is for the test that runs its commands), and
# a list begins after an empty line.
/^ *```/ { in_fence = !in_fence; if (match($0, /^ *```[a-z]+/)) $0 = substr($0, 1, RLENGTH) }
!in_fence && /^- / && before ~ /[^ ]/ && before !~ /^(- |  )/ { print "" }
{ print; before = $0 }
