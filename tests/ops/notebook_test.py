#!/usr/bin/env python3
"""Runs the notebooks of examples/ beside a server of their own, as a reader would: from the first cell to the last.
Needs nbclient, ipykernel and numpy, which `./run docs` installs.

usage: notebook_test.py CAIRN_SERVER
"""

import os
import sys

from support import ROOT, Folder, Server, skip

try:
    import nbclient
    import nbformat
except ImportError:
    skip("no nbclient")

CELL_S = 120  # a cell that takes longer hangs


def main():
    with Folder() as folder:
        server = Server(sys.argv[1], folder, "--runtime", "host")
        os.environ.update(CAIRN_SERVER=f"http://{server.address}", PYTHONPATH=str(ROOT / "python" / "src"))
        paths = sorted((ROOT / "examples").glob("*.ipynb"))
        assert paths, "there is no notebook"
        for path in paths:
            notebook = nbformat.read(path, as_version=4)
            nbclient.NotebookClient(notebook, timeout=CELL_S, kernel_name="python3").execute()
            print(f"{path.name}: {sum(cell.cell_type == 'code' for cell in notebook.cells)} cells ran")
            assert not any(cell.get("outputs") for cell in nbformat.read(path, 4).cells), "keep no outputs in the file"
        assert server.stop() == 0, server.text()


if __name__ == "__main__":
    main()
