"""Compares a server's responses with /openapi.json. The end-to-end tests write the exchanges to files, one line of
JSON each: {"method", "path", "status", "type", "body"?}. The body is there only if it is JSON."""

import json
import pathlib
import re
import sys
import urllib.parse

import jsonschema_rs


def pointer(*parts):
    return "#/" + "/".join(urllib.parse.quote(str(part).replace("~", "~0").replace("/", "~1")) for part in parts)


class Document:
    def __init__(self, document):
        self.document = document
        self.validators = {}
        # Literal parts go before parameters.
        self.routes = sorted(
            ((re.compile(re.sub(r"\\{[^}]*\\}", "[^/]+", re.escape(path)) + "$"), path)
             for path in document["paths"]), key=lambda route: route[1].count("{"))

    def resolved(self, at):
        """Follows references. Returns the steps to the value, and the value."""
        value = self.document
        for step in at:
            value = value[step]
        if "$ref" not in value:
            return at, value
        return self.resolved([step.replace("~1", "/").replace("~0", "~") for step in value["$ref"][2:].split("/")])

    def errors(self, at, body):
        place = pointer(*at)
        if place not in self.validators:
            self.validators[place] = jsonschema_rs.Draft202012Validator({**self.document, "$ref": place})
        return [error.message for error in self.validators[place].iter_errors(body)]

    def operation(self, method, path):
        for pattern, template in self.routes:
            item = self.document["paths"][template]
            for known in (method.lower(), "get" if method == "HEAD" else ""):
                if known in item and pattern.match(path):
                    return ["paths", template, known]
        return None

    def complaints(self, exchange):
        """Lists the differences between a response and its documentation."""
        status, body = exchange["status"], exchange.get("body")
        at = self.operation(exchange["method"], exchange["path"])
        if at is None:
            # Without a route every response must be a refusal.
            if not 400 <= status < 500:
                return [f"{status} from a route that is not documented"]
            return [] if exchange["method"] == "HEAD" else self.errors(["components", "schemas", "Problem"], body)
        responses = self.document
        for step in [*at, "responses"]:
            responses = responses[step]
        name = str(status) if str(status) in responses else "default"
        if name not in responses or (name == "default" and status < 400):
            return [f"status {status} is not documented"]
        at, response = self.resolved([*at, "responses", name])
        wrong = [f"it lacks the header {header}" for header in response.get("headers", {})
                 if header.lower() not in exchange["headers"]]
        kind = exchange["type"].split(";")[0]
        content = response.get("content", {})
        if exchange["method"] == "HEAD" or status in (204, 304):
            return wrong
        if kind not in content:
            return [*wrong, f"its type '{kind}' is not documented: {', '.join(content) or 'no body is'}"]
        if body is not None and "schema" in content[kind]:
            wrong += self.errors([*at, "content", kind, "schema"], body)
        if status >= 400 and body.get("status") != status:
            wrong.append(f"its body has the status {body.get('status')}")
        return wrong


def main():
    document = Document(json.loads(pathlib.Path(sys.argv[1]).read_text()))
    checked, wrong, seen = 0, {}, set()
    for file in pathlib.Path(sys.argv[2]).iterdir():
        for line in file.read_text().splitlines():
            exchange = json.loads(line)
            checked += 1
            at = document.operation(exchange["method"], exchange["path"])
            if at:
                seen.add((at[2], at[1]))
            for complaint in document.complaints(exchange):
                where = f"{exchange['method']} {at[1] if at else exchange['path']} {exchange['status']}"
                wrong.setdefault(f"{where}: {complaint}", json.dumps(exchange)[:600])
    for complaint, example in sorted(wrong.items()):
        print(f"{complaint}\n    {example}")
    routes = {(method, path) for path, item in document.document["paths"].items() for method in item}
    for method, path in sorted(routes - seen - {("head", path) for path in document.document["paths"]}):
        print(f"no response of {method.upper()} {path} was seen")
    print(f"{checked} responses, {len(seen)} of {len(routes)} routes, {len(wrong)} mismatches")
    assert checked > 0, "nothing was recorded"
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
