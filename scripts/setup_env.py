"""Makes the virtual environment that the Makefile uses: `python scripts/setup_env.py .venv`.

Three kinds of machine are served, told apart by what is there:

* no NVIDIA driver: PyTorch's CPU build and the `dev` extra, at the versions of constraints.txt, and Triton, whose interpreter
  and compiler test GPU kernels without a GPU;
* an NVIDIA driver: PyTorch as the package index serves it (on Linux the CUDA build), with the `gpu` extra as well;
* no package index within reach, but a Python that already has a PyTorch polytile can use: the environment borrows the
  packages of that Python through a .pth file, and polytile is registered in it from this working tree. What that Python
  lacks is taken from wheels/, if there is such a directory beside the Makefile.

Runs on the standard library alone. Running it again brings an existing environment up to date.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "constraints.txt"
WHEELS = ROOT / "wheels"
MINIMUM_TORCH = (2, 11)
CPU_WHEELS = "https://download.pytorch.org/whl/cpu"
TRITON = "triton==3.6.0"
"""For machines without a GPU. PyTorch's CUDA builds require the release they were made with, so it is no constraint."""
IMPORTED = ("numpy", "rich", "sympy", "torch", "typer")

HOST_FACTS = """
import importlib.metadata, json, sysconfig
try:
    torch = importlib.metadata.version("torch")
except importlib.metadata.PackageNotFoundError:
    torch = ""
print(json.dumps({"torch": torch, "paths": sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})}))
"""


def say(text: str) -> None:
    print(f"setup: {text}", flush=True)


def output(*command: str) -> str:
    """What a command prints; raises CalledProcessError when it fails."""
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def has_nvidia_driver() -> bool:
    return Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None


def pinned(package: str) -> str:
    """The requirement `package==version` as constraints.txt has it; raises SystemExit when it has none."""
    for line in CONSTRAINTS.read_text().splitlines():
        if line.lower().startswith(package.lower() + "=="):
            return line.split(";")[0].strip()
    raise SystemExit(f"setup: constraints.txt pins no version of {package}; add a line '{package}==...'.")


def release(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: "2.11.0+cu130" gives (2, 11, 0)."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in found.group().split(".")) if found else ()


class Environment:
    """One virtual environment and the pip inside it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory.resolve()
        self.bin = self.directory / "bin"
        self.python = self.bin / "python"

    def create(self) -> bool:
        """Makes the environment where there is none; False when this Python cannot put a pip into it."""
        if (self.bin / "pip").exists():
            return True
        made = subprocess.run([sys.executable, "-m", "venv", "--clear", str(self.directory)], capture_output=True)
        if made.returncode != 0:
            subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(self.directory)], check=True)
        return made.returncode == 0

    def pip(self, *arguments: str, quiet: bool = False) -> bool:
        """Runs `pip install` under the constraints; True when it succeeded."""
        command = [str(self.python), "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
        command += ["--constraint", str(CONSTRAINTS), *arguments]
        return subprocess.run(command, cwd=ROOT, capture_output=quiet).returncode == 0

    def site_packages(self) -> Path:
        return Path(output(str(self.python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())


def torch_arguments(environment: Environment, gpu: bool) -> list[str]:
    """What to hand to `pip install` for PyTorch.

    The index's own Linux wheel for x86-64 carries several gigabytes of CUDA libraries. Where there is no driver the CPU
    build is wanted: pip prefers its local version (2.13.0+cpu) as soon as some index or directory offers it.
    """
    requirement = pinned("torch")
    if gpu or sys.platform != "linux" or platform.machine() != "x86_64":
        return [requirement]
    offered = subprocess.run(
        [str(environment.python), "-m", "pip", "index", "versions", "torch"], capture_output=True, text=True
    ).stdout
    if requirement.split("==")[1] + "+cpu" in offered:
        return [requirement]
    return [requirement, "--extra-index-url", CPU_WHEELS]


def install_from_index(environment: Environment, gpu: bool) -> None:
    """PyTorch first, in the right build, then polytile from this working tree with its extras."""
    say("installing PyTorch " + ("with CUDA" if gpu else "for the CPU"))
    steps = [
        torch_arguments(environment, gpu),
        ["--no-build-isolation", "--editable", ".[dev,gpu]" if gpu else ".[dev]"],
    ]
    for arguments in steps:
        if not environment.pip(*arguments):
            raise SystemExit(f"setup: `pip install {' '.join(arguments)}` failed; its messages are above.")
    if not gpu and not environment.pip("--no-deps", TRITON, quiet=True):
        say(f"no {TRITON} for this machine: the tests of GPU kernels are skipped")


def borrow_from_host(environment: Environment) -> None:
    """Registers polytile from this working tree over the packages of the Python that runs this script.

    Written by hand, since such a machine need not have pip or a build backend: a .pth file that adds the host's
    packages and src/, metadata with the entry points (torch.compile finds the backend by them), and the console script.
    """
    facts = json.loads(output(sys.executable, "-c", HOST_FACTS))
    if release(facts["torch"]) < MINIMUM_TORCH:
        has = f"PyTorch {facts['torch']}" if facts["torch"] else "no PyTorch"
        raise SystemExit(
            f"setup: no package index can be reached, and {sys.executable} has {has}; polytile needs "
            f"PyTorch {'.'.join(map(str, MINIMUM_TORCH))} or newer. Connect an index, or run make setup with "
            "PYTHON=... naming a Python that has one."
        )
    say(f"no package index within reach; using the packages of {sys.executable} (PyTorch {facts['torch']})")
    site = environment.site_packages()
    lines = [f"import site; site.addsitedir({path!r})" for path in facts["paths"]] + [str(ROOT / "src")]
    (site / "polytile.pth").write_text("\n".join(lines) + "\n")

    project = (ROOT / "pyproject.toml").read_text()
    source = (ROOT / "src" / "polytile" / "version.py").read_text()
    version = re.search(r'^__version__ = "(.+)"$', source, re.MULTILINE)
    backend = re.search(r"^\[project\.entry-points\.torch_dynamo_backends\]\n(\w+) = \"(.+)\"$", project, re.MULTILINE)
    assert version and backend, "pyproject.toml must state the backend, polytile/version.py the version"
    for old in site.glob("polytile-*.dist-info"):
        shutil.rmtree(old)
    metadata = site / f"polytile-{version[1]}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: polytile\nVersion: {version[1]}\n")
    (metadata / "entry_points.txt").write_text(
        f"[torch_dynamo_backends]\n{backend[1]} = {backend[2]}\n\n[console_scripts]\npolytile = polytile.cli:main\n"
    )
    script = environment.bin / "polytile"
    script.write_text(f"#!{environment.python}\nimport sys\n\nfrom polytile.cli import main\n\nsys.exit(main())\n")
    script.chmod(0o755)


def missing_packages(environment: Environment) -> list[str]:
    query = f"import importlib.util as u; print(*[n for n in {IMPORTED!r} if u.find_spec(n) is None])"
    return output(str(environment.python), "-c", query).split()


def report(environment: Environment) -> None:
    query = "import torch; print(torch.__version__, 'with CUDA' if torch.cuda.is_available() else 'for the CPU')"
    torch = subprocess.run([str(environment.python), "-c", query], capture_output=True, text=True)
    if torch.returncode != 0:
        raise SystemExit(f"setup: PyTorch is installed in {environment.directory} but does not import:\n{torch.stderr}")
    say(f"{os.path.relpath(environment.directory, ROOT)} is ready: PyTorch {torch.stdout.strip()}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("directory", type=Path, help="the virtual environment to make or update")
    environment = Environment(parser.parse_args().directory)
    with_pip = environment.create()
    # The build backend is needed in any case, and small: fetching it tells whether there is an index at all.
    if with_pip and environment.pip("--retries", "1", "--timeout", "20", pinned("setuptools"), quiet=True):
        install_from_index(environment, has_nvidia_driver())
    else:
        borrow_from_host(environment)
        missing = missing_packages(environment)
        if missing and with_pip and WHEELS.is_dir():
            environment.pip("--no-index", "--find-links", str(WHEELS), *map(pinned, missing))
            missing = missing_packages(environment)
        if missing:
            say(f"{sys.executable} lacks {', '.join(missing)}; what needs them will fail when it is used")
    report(environment)


if __name__ == "__main__":
    main()
