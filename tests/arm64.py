"""Does ARM64 make what x86_64 makes? Builds a model up to its QDQ models on both, and compares keys and bytes.

    uv run python -m tests.arm64 [--model NAME] [--shared] [--release FILE] [--then COMMAND]

For an x86_64 Debian or Ubuntu, as root: ARM64 is emulated by qemu, in a root of Debian for arm64 with its Python and
the packages of uv.lock for aarch64. Both builds are of the checkout as it is now, in copies of it, with nothing built
before. Everything is in one folder, which is deleted at the end if it was not named by `--folder`. What has to be
mounted is mounted in a namespace (:mod:`tests.support.arm64_guest`) that ends with this process, however that ends:
this machine's own mounts are never changed. Exit status: 0 if all is equal, 1 if something differs or failed, 2 if it
can't be tried here.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from pipeline.plan import keys
from pipeline.store.costs import Costs
from pipeline.store.manifests import read_manifest
from tests.support.uv_command import find_uv

ROOT = Path(__file__).resolve().parent.parent
PLATFORM = "aarch64-manylinux_2_34"
COMMANDS = {
    "mmdebstrap": "mmdebstrap",
    "qemu-aarch64-static": "qemu-user-static",
    "unshare": "util-linux",
    "git": "git",
}
"""What must be there, and the package of Debian that has it."""

DEBIAN = ("python3", "libatomic1", "libstdc++6", "coreutils", "dash")
"""What the root holds, with what these need: Python, what onnxruntime needs beside it, and a shell."""

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_CERTIFICATES = Path("etc/ssl/certs/ca-certificates.crt")
_PACKAGES, _CHECKOUT = "/opt/packages", "/work"
_SUITES = {(3, 11): "bookworm", (3, 13): "trixie"}
_MERGED = 'for d in bin sbin lib; do mkdir -p "$1/usr/$d" && ln -s "usr/$d" "$1/$d"; done'
_DESCRIBE = (
    "import json, platform; from pipeline.plan import keys; from pipeline.stage_table import STAGES;"
    "print(json.dumps({'machine': platform.machine(), 'Python': platform.python_version(),"
    " **{n: v for s in STAGES for n, v in keys.tool_versions(s).items()}}))"
)


class RefusedError(Exception):
    """It can't be tried here, for the reason given."""


@dataclass(frozen=True)
class Compared:
    """A step on both machines: is its key the same, are its payloads, which of them are not, and what it took."""

    step: str
    key: bool
    payload: bool
    differ: tuple[str, ...]
    seconds: tuple[float, float]


@dataclass(frozen=True)
class Guest:
    """An ARM64 root: `folder` is its files; `qemu` is to be registered for it, if the system has not done so."""

    folder: Path
    qemu: str

    @property
    def checkout(self) -> Path:
        """Where the copy of the checkout is, seen from outside."""
        return self.folder / _CHECKOUT[1:]

    def run(self, command: Sequence[str], **more: str) -> int:
        """The exit status of a command in the checkout there."""
        environ = {"PATH": "/usr/bin:/bin", "HOME": "/root", "LANG": "C.UTF-8", "PYTHONPATH": _PACKAGES}
        asked = {"root": str(self.folder), "folder": _CHECKOUT, "qemu": self.qemu, "environ": environ | _hub() | more}
        return enclosed({**asked, "command": [*command]}, as_root_of_its_own=bool(self.qemu))


def main() -> int:
    """Build on both, and compare."""
    given = _arguments()
    signal.signal(signal.SIGTERM, _stop)
    os.nice(10)
    try:
        with _work_folder(given.folder) as folder:
            return _compare(given, folder)
    except RefusedError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def _compare(given: argparse.Namespace, folder: Path) -> int:
    native = folder / "x86_64"
    guest = _guest(folder / "aarch64", given)
    for checkout in (native, guest.checkout):
        if not (given.skip_build and checkout.exists()):
            copy_checkout(ROOT, checkout)
    describe = ["-c", _DESCRIBE]
    if _native(native, describe) or guest.run(["python3", *describe]):
        return 1
    failed = 0
    doit = ["-m", "doit", "-n", "1", f"{given.stage}:{given.model}*"]
    if not given.skip_build:
        failed |= _native(native, doit) | guest.run(["python3", *doit])
    rows = compared(native, guest.checkout)
    print("\n" + table(rows))
    same = bool(rows) and all(row.key and row.payload for row in rows) and not failed
    if given.shared:
        same &= _restored(given, native, guest)
    if given.release:
        same &= _same_outputs(given, native, guest)
    for command in given.then:
        print(f"\n$ {command}", flush=True)
        print(f"exit status {guest.run(shlex.split(command))}")
    return 0 if same else 1


def compared(native: Path, guest: Path) -> list[Compared]:
    """Every step of two checkouts, in the order in which the first built them; one that only one has differs."""
    folders = [checkout / ".build" / "steps" for checkout in (native, guest)]
    costs = [Costs(checkout / ".build" / "store" / "costs.json") for checkout in (native, guest)]
    paths = {path.relative_to(folder) for folder in folders for path in folder.rglob("*.json")}
    rows = []
    for path in sorted(paths, key=lambda each: (_age(folders[0] / each), each)):
        step = path.parts[0] + ":" + Path(*path.parts[1:]).with_suffix("").as_posix()
        one, other = (read_manifest(folder / path) for folder in folders)
        if one is None or other is None:
            where = "x86_64" if one is None else "aarch64"
            rows.append(Compared(step, key=False, payload=False, differ=(f"not made on {where}",), seconds=(0, 0)))
            continue
        names = {**one.files, **other.files}
        differ = [name for name in names if one.files.get(name) != other.files.get(name)]
        differ += ["facts"] if one.facts != other.facts else []
        same = keys.payload_digest(one) == keys.payload_digest(other)
        seconds = (costs[0].seconds(step), costs[1].seconds(step))
        rows.append(Compared(step, one.key == other.key, same, tuple(differ), seconds))
    return rows


def table(rows: Sequence[Compared]) -> str:
    """The rows as text, and what differs below."""
    wide = max([len(row.step) for row in rows] + [4])
    lines = [f"{'step':{wide}}  key    bytes  x86_64 s  aarch64 s"]
    told = {True: "equal", False: "OTHER"}
    for row in rows:
        one, other = (f"{seconds:.1f}" for seconds in row.seconds)
        lines.append(f"{row.step:{wide}}  {told[row.key]}  {told[row.payload]}  {one:>8}  {other:>9}")
    for row in rows:
        if row.differ:
            more = f" and {len(row.differ) - 5} more" if len(row.differ) > 5 else ""
            lines.append(f"{row.step}: {', '.join(row.differ[:5])}{more}")
    equal = sum(row.key and row.payload for row in rows)
    lines.append(f"\n{equal} of {len(rows)} steps are equal in key and bytes")
    return "\n".join(lines)


def handled(described: str) -> bool:
    """Whether what binfmt_misc says of `qemu-aarch64` means that a root of ours needs no qemu in it."""
    lines = described.split("\n")
    flags = next((line.removeprefix("flags:").strip() for line in lines if line.startswith("flags:")), "")
    return lines[0] == "enabled" and "F" in flags


def mounts_below(folder: Path, mountinfo: str) -> list[str]:
    """The mount points at or below a folder, of the text of `/proc/self/mountinfo`."""
    points = [line.split()[4].encode().decode("unicode_escape") for line in mountinfo.splitlines()]
    return [point for point in points if Path(point).is_relative_to(folder)]


def delete(folder: Path) -> None:
    """Delete a folder of ours; not if anything is mounted in it, for what is there may be anybody's.

    Raises:
        RefusedError: something is mounted there.
    """
    if mounted := mounts_below(folder.resolve(), Path("/proc/self/mountinfo").read_text("utf-8")):
        raise RefusedError(f"{mounted[0]} is a mount, and not ours: unmount it, then delete {folder}")
    shutil.rmtree(folder)


def copy_checkout(source: Path, target: Path) -> None:
    """Copy what a checkout has, but for what git ignores, in place of what an earlier run copied and built."""
    if target.exists():
        delete(target)
    target.mkdir(parents=True)
    asked = ["git", "-C", str(source), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(asked, check=True, capture_output=True).stdout.decode()
    for name in filter(None, listed.split("\0")):
        if (source / name).is_file():  # one that was deleted is still listed
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / name, target / name)


def enclosed(asked: Mapping[str, object], *, as_root_of_its_own: bool = False) -> int:
    """The exit status of a command in mount and process namespaces that end with us; see
    :mod:`tests.support.arm64_guest`.

    As root of a user namespace too, it may have a binfmt_misc that is not the system's: Linux 6.7.
    """
    user = ["--user", "--map-root-user"] if as_root_of_its_own else []
    inside = [sys.executable, str(Path(__file__).with_name("support") / "arm64_guest.py"), json.dumps(asked)]
    command = ["unshare", *user, "--mount", "--pid", "--fork", "--mount-proc", "--kill-child", *inside]
    sys.stdout.flush()
    # A session of its own: Ctrl-C is ours to act on, and ends it by the end of its standard input.
    process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    try:
        return process.wait()
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait()


def _guest(folder: Path, given: argparse.Namespace) -> Guest:
    """The root with its packages; what an earlier run made in the same folder is used again."""
    guest = Guest(folder, _qemu())
    requirements = _requirements(given.tests)
    made_of = json.dumps([given.suite, given.mirror, DEBIAN, requirements])
    stamp = folder.with_suffix(".made-of")
    if stamp.exists() and stamp.read_text("utf-8") == made_of:
        return guest
    for old in (stamp, folder):
        delete(old) if old.is_dir() else old.unlink(missing_ok=True)
    _bootstrap(folder, given)
    _install(folder, requirements)
    stamp.write_text(made_of, "utf-8")
    return guest


def _bootstrap(folder: Path, given: argparse.Namespace) -> None:
    """Unpack Debian for arm64. None of it is run, so that no service starts and no emulation is needed."""
    print(f"unpacking Debian's {given.suite} for arm64", flush=True)
    command = ["mmdebstrap", "--quiet", "--variant=extract", "--architectures=arm64", f"--include={','.join(DEBIAN)}"]
    command += [f"--keyring={KEYRING}", f"--setup-hook={_MERGED}", given.suite, str(folder), given.mirror]
    asked = {"root": "/", "folder": "/", "qemu": "", "environ": {**os.environ}, "command": command}
    if enclosed(asked):
        raise RefusedError(f"mmdebstrap failed: can {given.mirror} be reached?")
    for name in ("proc", "dev", "root", "opt", "etc"):
        (folder / name).mkdir(exist_ok=True)
    (folder / "etc" / "hosts").write_text("127.0.0.1 localhost\n", "ascii")
    if (Path("/") / _CERTIFICATES).exists():  # of the package, a script would make it
        (folder / _CERTIFICATES).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(Path("/") / _CERTIFICATES, folder / _CERTIFICATES)


def _requirements(with_tests: bool) -> str:
    groups = ["--no-dev"] if not with_tests else []
    command = [*_uv(), "export", "--frozen", *groups, "--no-header", "--no-annotate", "--quiet", "--no-emit-project"]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def _install(folder: Path, requirements: str) -> None:
    """Install the lock file's packages for the Python of the root; every wheel has the digest that the lock names."""
    print(f"installing the packages of uv.lock for {PLATFORM}", flush=True)
    (python,) = (path.name for path in folder.glob("usr/bin/python3.??"))
    listed = folder.with_suffix(".requirements.txt")
    listed.write_text(requirements, "utf-8")
    command = [*_uv(), "pip", "install", "--quiet", "--require-hashes", "--only-binary", ":all:"]
    command += ["--python-platform", PLATFORM, "--python-version", python.removeprefix("python")]
    command += ["--target", f"{folder}{_PACKAGES}", "-r", str(listed)]
    subprocess.run(command, check=True, cwd=folder.parent)  # in a project, its constraints would be looked at, too


def _native(checkout: Path, arguments: Sequence[str], **more: str) -> int:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PIPELINE_", "HF_"))}
    caches = {"HF_HOME": str(checkout.parent / "hub"), "QNN_RELEASE_CACHE": str(checkout.parent / "cache")}
    environ = inherited | caches | _hub() | more
    sys.stdout.flush()
    return subprocess.run([sys.executable, *arguments], cwd=checkout, env=environ, check=False).returncode


def _restored(given: argparse.Namespace, native: Path, guest: Guest) -> bool:
    """Build all of the model natively into a shared store, restore it on ARM64, and compare the artifacts."""
    shared = guest.folder / "shared"
    if shared.exists():
        delete(shared)
    command = ["-m", "doit", "-n", "1", f"build:{given.model}"]
    print("\nbuild on x86_64, with a shared store", flush=True)
    if _native(native, command, PIPELINE_SHARED_STORE=str(shared)):
        return False
    print("\nthe same on aarch64", flush=True)
    if guest.run(["python3", *command], PIPELINE_SHARED_STORE="/shared"):
        return False
    one, other = (checkout / "artifacts" / given.model for checkout in (native, guest.checkout))
    names = [{path.relative_to(folder) for path in folder.rglob("*") if path.is_file()} for folder in (one, other)]
    same = names[0] == names[1] and all((one / name).read_bytes() == (other / name).read_bytes() for name in names[0])
    print(f"\n{len(names[0])} files of artifacts/{given.model}: {'identical' if same else 'OTHER'}")
    return same


def _same_outputs(given: argparse.Namespace, native: Path, guest: Guest) -> bool:
    """Run a release on samples of the build in both, on the CPU, and say how close the outputs are."""
    from tests.support.arm64_outputs import closeness

    command = ["-m", "tests.support.arm64_outputs", "release.qnn.zip", given.model, "outputs.npz"]
    for checkout in (native, guest.checkout):
        shutil.copyfile(given.release, checkout / "release.qnn.zip")
    print(f"\n{given.release.name} on x86_64", flush=True)
    failed = _native(native, [*command, "cpu"])
    print(f"\n{given.release.name} on aarch64", flush=True)
    if failed | guest.run(["python3", *command], QNN_RELEASE_CACHE="/root/cache"):
        return False
    print("\n" + closeness(native / "outputs.npz", guest.checkout / "outputs.npz"))
    return True


def _qemu() -> str:
    """Nothing if the system runs ARM64 executables already, else the qemu to register.

    Raises:
        RefusedError: neither it does, nor can we have it do so.
    """
    known = Path("/proc/sys/fs/binfmt_misc/qemu-aarch64")
    if known.exists() and handled(known.read_text("utf-8")):
        return ""
    qemu = shutil.which("qemu-aarch64-static")
    assert qemu is not None  # looked for when we began
    tried = {"root": "/", "folder": "/", "qemu": qemu, "environ": {**os.environ}, "command": ["true"]}
    if enclosed(tried, as_root_of_its_own=True):
        raise RefusedError(
            "this system does not run ARM64 executables with qemu, and before Linux 6.7 that can't be had for"
            " one process alone: systemctl restart systemd-binfmt (or: update-binfmts --enable qemu-aarch64)"
        )
    return qemu


def _uv() -> list[str]:
    found = find_uv()
    return [found] if found else [sys.executable, "-m", "uv"]


def _hub() -> dict[str, str]:
    return {name: os.environ[name] for name in ("HF_ENDPOINT", "HF_TOKEN") if os.environ.get(name)}


def _age(path: Path) -> float:
    return path.stat().st_mtime if path.exists() else float("inf")


def _stop(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


@contextmanager
def _work_folder(named: Path | None) -> Iterator[Path]:
    """Where all is put: the folder that was named, or one that is deleted at the end."""
    _check_host()
    if named is not None:
        named.mkdir(parents=True, exist_ok=True)
        with _alone(named):
            yield named.resolve()
        return
    folder = Path(tempfile.mkdtemp(prefix="arm64-", dir="/var/tmp")).resolve()
    try:
        yield folder
    finally:
        delete(folder)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Have a folder to ourselves: what one run makes anew, another may be using."""
    import fcntl

    with (folder / "lock").open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RefusedError(f"another run works in {folder}") from None
        yield


def _check_host() -> None:
    if sys.platform != "linux" or os.uname().machine != "x86_64":
        raise RefusedError("this is for x86_64 Linux")
    if os.geteuid() != 0:
        raise RefusedError("Debian's files are unpacked with their owners, and chroot is used: run this as root")
    lacking = {package for command, package in COMMANDS.items() if shutil.which(command) is None}
    lacking |= set() if KEYRING.exists() else {"debian-archive-keyring"}
    if lacking:
        raise RefusedError(f"something is missing: apt-get install {' '.join(sorted(lacking))}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.arm64", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="demo", help="of configs/; one from the hub is asked of HF_ENDPOINT")
    parser.add_argument("--stage", default="quantize", help="the last stage to build")
    parser.add_argument(
        "--shared", action="store_true", help="have ARM64 restore what x86_64 built, from a shared store"
    )
    parser.add_argument("--release", type=Path, help="an archive of the model, to be run on the CPU of both")
    parser.add_argument("--then", action="append", default=[], metavar="COMMAND", help="run this in the ARM64 checkout")
    parser.add_argument(
        "--tests", action="store_true", help="install what tests need, too, for --then 'python3 -m pytest'"
    )
    parser.add_argument("--skip-build", action="store_true", help="take what an earlier run built in the same --folder")
    parser.add_argument("--folder", type=Path, help="work here and keep it; the root is used again by the next run")
    parser.add_argument(
        "--suite", default=_SUITES.get(sys.version_info[:2], "trixie"), help="Debian's; by default one of this Python"
    )
    parser.add_argument("--mirror", default="http://deb.debian.org/debian", help="of Debian")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
