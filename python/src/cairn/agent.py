"""Memory of an engine's that a server on the same host copies to and from."""

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
    """Registered as an agent until this is closed, or the process ends: the open files go along over a
    connection that nothing else is sent over. Not for several threads at once. A child that is forked does not end
    it, and does not keep it.

    client: of a `unix:` address, as the one that loads and stores may be, too. `files`, which regions name by
    number, stay the caller's, and may be closed. Raises what `Client.put_agent` does.
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
        """Ends it; copies that have begun are waited for."""
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
