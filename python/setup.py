"""A wheel without programs installs on every machine. `./run wheel` puts programs into src/cairn/bin; that wheel
installs on Linux on this processor, with any Python."""

import pathlib

import setuptools


def with_programs() -> None:
    from setuptools.command.bdist_wheel import bdist_wheel  # since setuptools 70

    class WithPrograms(setuptools.Distribution):
        def has_ext_modules(self) -> bool:
            return True

    class AnyPython(bdist_wheel):
        def get_tag(self) -> tuple[str, str, str]:
            return ("py3", "none", super().get_tag()[2])

    setuptools.setup(distclass=WithPrograms, cmdclass={"bdist_wheel": AnyPython})


if (pathlib.Path(__file__).parent / "src" / "cairn" / "bin").exists():
    with_programs()
else:
    setuptools.setup()
