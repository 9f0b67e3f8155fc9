#!/usr/bin/env python3
"""In a real browser, a page of another origin tries every way to clear a cache and fails; the status page works
under its own content security policy.

usage: browser_test.py CAIRN_SERVER [SCREENSHOT]
"""

import functools
import http.server
import re
import subprocess
import sys
import threading

from support import PATIENCE_S, Folder, Server, eventually, find_tool, skip
from workload import make_cache, store

# The requests that a page can make a browser send to another origin: simple ones, ones with a preflight, a form,
# and a beacon while leaving. The page cannot see their results, so its title says when it has tried all of them.
ATTACK = """<!doctype html><title>trying</title>
<iframe name="sink"></iframe>
<form id="form" method="post" target="sink" enctype="text/plain" action="%(clear)s"><input name='{"a":"' value='"}'></form>
<form id="plain" method="post" target="sink" action="%(clear)s"></form>
<script>
const tries = [];
const attempt = (name, work) => tries.push(Promise.resolve().then(work).then(
    () => document.body.append(name + " was sent. "), () => document.body.append(name + " was stopped. ")));
for (const type of [undefined, "text/plain", "application/x-www-form-urlencoded", "application/json"]) {
  const headers = type ? { "Content-Type": type } : {};
  attempt("no-cors " + type, () => fetch("%(clear)s", { method: "POST", mode: "no-cors", headers, body: "{}" }));
  attempt("cors " + type, () => fetch("%(clear)s", { method: "POST", headers, body: "{}" }));
}
attempt("without a body", () => fetch("%(clear)s", { method: "POST", mode: "no-cors" }));
attempt("bytes", () => fetch("%(clear)s", { method: "POST", mode: "no-cors", body: new Uint8Array([123, 125]) }));
attempt("export", () => fetch("%(export)s", { method: "POST", mode: "no-cors" }));
attempt("delete", () => fetch("%(cache)s", { method: "DELETE" }));
attempt("put", () => fetch("%(cache)s-2", { method: "PUT", body: "{}" }));
attempt("beacon", () => navigator.sendBeacon("%(clear)s", "{}"));
attempt("beacon of bytes", () => navigator.sendBeacon("%(clear)s", new Uint8Array([123, 125])));
attempt("beacon of JSON", () => navigator.sendBeacon("%(clear)s", new Blob(["{}"], { type: "application/json" })));
attempt("reading", () => fetch("%(cache)s").then((answer) => answer.text()).then(
    (text) => document.body.append("READ " + text)));
document.getElementById("form").submit();
document.getElementById("plain").submit();
Promise.all(tries).then(() => setTimeout(() => { document.title = "tried"; }, 1000));
</script>
"""


class Page(http.server.BaseHTTPRequestHandler):
    def __init__(self, text, *arguments):
        self.text = text
        super().__init__(*arguments)

    def do_GET(self):
        body = self.text.encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def serve(text):
    """Serves a page and returns its origin."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Page, text))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"


def browse(browser, folder, url, *flags):
    """Returns the page after some seconds of virtual time, and its console output."""
    done = subprocess.run(
        [browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", f"--user-data-dir={folder / 'profile'}",
         "--enable-logging=stderr", "--v=0", "--window-size=1100,900", "--virtual-time-budget=8000", *flags, url],
        capture_output=True, text=True, timeout=2 * PATIENCE_S)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout, "\n".join(re.findall(r".*CONSOLE.*", done.stderr))


def requests(server, method, code):
    text = server.call("GET", "/metrics")[1].decode()
    return sum(float(value) for value in re.findall(
        rf'cairn_http_requests_total{{route="[^"]*",method="{method}",code="{code}"}} (\d+)', text))


def check_attack(browser, folder, server):
    make_cache(server, "precious", pinned=4)
    store(server, "precious", 1, "pinned")
    cache = f"http://{server.address}/v1/caches/precious"
    page = ATTACK % {"cache": cache, "clear": cache + "/clear", "export": cache + "/tiers/pinned/export"}
    dom, _ = browse(browser, folder, serve(page), "--dump-dom")
    assert "<title>tried</title>" in dom, dom[-2000:]
    assert not re.search(r"READ \{", dom), dom[-2000:]
    # Proof that it tried: the server refuses the requests that the browser lets through.
    eventually(lambda: requests(server, "POST", "403") >= 8, "the attempts")
    assert requests(server, "POST", "200") == 0
    assert requests(server, "DELETE", "403") == 0, "the browser asked before it deleted"
    status, data = server.call("GET", f"/v1/caches/precious/keys/{1:016x}")
    assert status == 200, data
    print(f"{requests(server, 'POST', '403'):.0f} requests of a foreign page were refused")


def check_status_page(browser, folder, server, picture):
    keys = [f"{1:016x}"]
    match = {"keys": keys, "lease_ms": 0, "session": "chat <7>"}
    assert server.call("POST", "/v1/caches/precious/match", match)[0] == 200
    pin = {"type": "pin", "target": {"keys": keys}}
    prefetch = {"type": "prefetch", "target": {"keys": [f"{9:016x}"]}}
    assert server.call("POST", "/v1/caches/precious/actions", {"actions": [pin, prefetch]})[0] == 200
    dom, console = browse(browser, folder, f"http://{server.address}/", "--dump-dom")
    assert "Content Security Policy" not in console, console
    assert re.search(r'id="state"[^>]*class="good"[^>]*>ready<', dom) and ">precious<" in dom, dom[-3000:]
    assert re.search(r'id="warnings"[^>]*>.*shared node · 127\.0\.0\.1:1 · ', dom), dom[-3000:]
    assert "what more memory would give" in dom and "today: 4 blocks" in dom, dom[-3000:]
    assert "Too few lookups" in dom, dom[-3000:]
    assert "the latest of 1" in dom and ">chat &lt;7&gt;<" in dom, dom[-5000:]
    assert re.search(r">pins<.*>in [0-9]+ (s|min)<", dom), dom[-5000:]
    assert "prefetched, used" in dom, dom[-5000:]
    browse(browser, folder, f"http://{server.address}/", f"--screenshot={picture}")


def main():
    browser = find_tool("chromium") or find_tool("chromium-browser") or find_tool("google-chrome")
    if not browser:
        skip("no chromium")
    with Folder() as folder:
        # A store that does not exist, so that the page shows a warning.
        (folder / "config.json").write_text('{"caches": [], "shared": {"url": "redis://127.0.0.1:1"}}')
        server = Server(sys.argv[1], folder, "--config", folder / "config.json", "--runtime", "host")
        check_attack(browser, folder, server)
        check_status_page(browser, folder, server, sys.argv[2] if len(sys.argv) > 2 else folder / "page.png")
        assert server.stop() == 0, server.text()


if __name__ == "__main__":
    main()
