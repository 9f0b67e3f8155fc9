"""A proxy before llama.cpp's server that keeps its prompts in Cairn. llama.cpp is not changed.

The command `cairn llama` starts it (`cairn.llamacpp.program`). `state` reads and makes llama.cpp's state files,
`identity` says which model computed a state, `blocks` stores states in Cairn, `slots` gives llama-server's slots to
requests, `llama` calls llama-server, `prompts` finds the tokens of a request, `cache` restores and saves, `proxy`
serves.
"""
