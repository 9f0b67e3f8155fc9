"""An engine's memory, registered so that a server on the same host copies blocks to and from it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from cairn.client import Client
from cairn.errors import CairnError
from cairn.model import AgentRegion, Shape


class AgentMemory:
    """Memory registered as an agent until `close`, or until the process ends: the open files are sent over a
    connection that carries nothing else. Use it from one thread at a time. In a forked child `close` does not end
    the agent, and the child does not keep it alive.

    client: connected over a `unix:` address. The client that calls `load` and `store` may use another one.
    regions: they refer to `files` by index.
    files: stay the caller's, who may close them once this returns.

    Raises what `Client.put_agent` raises.
    """

    def __init__(
        self,
        client: Client,
        name: str,
        shape: Shape,
        num_blocks: int,
        regions: Sequence[AgentRegion],
        files: Sequence[int],
        **more: Any,
    ) -> None:
        self._process = os.getpid()
        self._client = client.apart()
        try:
            self.agent = self._client.put_agent(name, shape, num_blocks, regions, files=files, **more)
        except BaseException:
            self._client.close()
            raise

    def close(self) -> None:
        """Ends the agent after waiting for copies that have begun. Errors of the server are ignored."""
        if self._process == os.getpid():
            with contextlib.suppress(CairnError):
                self._client.drop_agent(self.agent.name)
        self._client.close()

    def __enter__(self) -> AgentMemory:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
