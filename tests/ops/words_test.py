"""Each word of `run` finds everything it needs in the packages that it installs.

usage: words_test.py

A package that happens to be on the machine would hide that a word does not install it. So CMake configures each
word's targets here and sees only the files of that word's packages and of their dependencies: find_package(),
find_library(), find_path() and find_program() search only a folder of links to them.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# CMake does not use these, but they are nine tenths of all files.
NOT_LINKED = ("/etc", "/var", "/usr/include/boost/", "/usr/include/c++/", "/usr/lib/gcc/", "/usr/lib/python3",
              "/usr/lib/llvm", "/usr/share/doc", "/usr/share/man", "/usr/share/locale", "/usr/share/perl",
              "/usr/share/cmake-")


class Packages:
    """The installed packages, as dpkg reports them."""

    def __init__(self):
        form = "${Package}|${Essential}|${Priority}|${Depends}, ${Pre-Depends}|${Provides}|${db:Status-Status}\n"
        self.depends, self.providers, self.base = {}, {}, set()
        for line in run("dpkg-query", "-W", "-f", form).splitlines():
            name, essential, priority, depends, provides, status = split(line)
            if status != "installed":
                continue
            self.depends[name] = names(depends)
            for provided in [name] + [one for some in names(provides) for one in some]:
                self.providers.setdefault(provided, []).append(name)
            if essential == "yes" or priority == "required":
                self.base.add(name)

    def closure(self, wanted):
        """The installed packages that come with `wanted`; None if one of `wanted` is not installed."""
        if any(name not in self.depends for name in wanted):
            return None
        found, left = set(), list(wanted) + sorted(self.base)
        while left:
            name = left.pop()
            if name in found:
                continue
            found.add(name)
            for alternatives in self.depends[name]:
                here = [one for some in alternatives for one in self.providers.get(some, [])]
                left += here[:1]
        return found


def split(line):
    """Splits a line of dpkg-query. Alternatives in Depends contain bars too."""
    name, essential, priority, rest = line.split("|", 3)
    depends, provides, status = rest.rsplit("|", 2)
    return name, essential, priority, depends, provides, status


def names(relations):
    """The names in a field like Depends: one list of alternatives for each relation."""
    return [[re.split(r"[\s(:]", one.strip())[0] for one in part.split("|")]
            for part in relations.split(",") if part.strip()]


def run(*command, **options):
    return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE, **options).stdout


def link_files(packages, folder):
    for path in run("dpkg-query", "-L", *sorted(packages)).splitlines():
        # A link to a folder would include files of other packages.
        if not path.startswith("/") or path.startswith(NOT_LINKED) or os.path.isdir(path):
            continue
        # Some packages still use /lib, which is a link to /usr/lib.
        target = folder + (path if path.startswith("/usr/") else "/usr" + path)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if not os.path.lexists(target) and os.path.exists(path):
            os.symlink(path, target)


def configure(found, build, preset, flags):
    """Returns CMake's exit status and its output."""
    outcome = subprocess.run(
        ["cmake", "--preset", preset, "-B", build, f"-DCMAKE_MAKE_PROGRAM={shutil.which('ninja')}",
         f"-DCMAKE_FIND_ROOT_PATH={found}"] +
        [f"-DCMAKE_FIND_ROOT_PATH_MODE_{kind}=ONLY" for kind in ("PACKAGE", "LIBRARY", "INCLUDE", "PROGRAM")] + flags,
        cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return outcome.returncode, outcome.stdout


def main():
    if shutil.which("dpkg-query") is None:
        print("skipped: there is no dpkg here")
        return 77
    installed = Packages()
    failures, words = [], {}
    for line in run(os.path.join(ROOT, "run"), "table").splitlines():
        word, packages, preset, flags, targets = [column.split() for column in line.split("|")]
        words.setdefault((tuple(packages), preset[0], tuple(flags)), []).append((word[0], targets))

    with tempfile.TemporaryDirectory(prefix="cairn-words-") as folder:
        folders = {}
        for number, ((packages, preset, flags), lines) in enumerate(words.items()):
            of = " ".join(word for word, _ in lines)
            closure = installed.closure(packages)
            if closure is None:
                print(f"{of}: skipped: not all of its packages are installed here")
                continue
            if packages not in folders:
                folders[packages] = os.path.join(folder, f"found-{number}")
                link_files(closure, folders[packages])
            build = os.path.join(folder, f"build-{number}")
            status, said = configure(folders[packages], build, preset, list(flags))
            if status != 0:
                failures.append(f"{of}: CMake cannot be configured with its packages:\n{said}")
                continue
            for word, targets in lines:
                if subprocess.run(["ninja", "-C", build, "-n"] + targets, stdout=subprocess.DEVNULL).returncode != 0:
                    failures.append(f"{word}: there is no target {targets}")
            print(f"{of}: configured")

        # Proves that the links hide other packages: GoogleTest is installed here, but not for `serve`.
        serving = next(key for key, lines in words.items() if any(word == "serve" for word, _ in lines))
        testing = next(key for key, lines in words.items() if any(word == "test" for word, _ in lines))
        if serving[0] in folders and testing[0] in folders:
            status, said = configure(folders[serving[0]], os.path.join(folder, "build-proof"), testing[1], list(testing[2]))
            if status == 0 or "GTest" not in said:
                failures.append(f"the packages of `serve` should not suffice for the tests:\n{said}")

    print("\n".join(failures) or "each word's packages are enough")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
