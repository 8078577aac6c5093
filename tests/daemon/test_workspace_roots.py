"""The roots that allow workspaces, tested on paths alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from nousd.daemon.workspace.workspaces import OwnFolders, Roots
from tests.daemon.workspaces_bench import ALLOW_MORE

ROOTS = Roots(
    (Path("/work"), Path("/home/me/src"), Path("/work")),
    (Path("/work/state"), Path("/home/me/src/app/secret.md"), Path("/etc/nousd/config.toml")),
)

OUTSIDE = f"it must lie in /work or /home/me/src; {ALLOW_MORE}"
WITHIN = "it lies in what belongs to the daemon"
KERNELS = "it lies in what the kernel shows of programs and devices"
AROUND = (
    "it contains what belongs to the daemon, such as its settings, its log or an extension's file;"
    " name a folder further down, or move that elsewhere"
)


@pytest.mark.parametrize(
    ("path", "fault"),
    [
        ("/work/a", None),
        ("/work/a/b/c", None),
        ("/work/states", None),
        ("/home/me/src/other", None),
        ("/", OUTSIDE),
        ("/workshop", OUTSIDE),
        ("/home/me", OUTSIDE),
        ("/etc/nousd", OUTSIDE),
        ("/work/state", WITHIN),
        ("/work/state/below", WITHIN),
        ("/home/me/src/app/secret.md", WITHIN),
        ("/work", AROUND),
        ("/home/me/src", AROUND),
        ("/home/me/src/app", AROUND),
    ],
)
def test_a_workspace_must_lie_in_a_root_and_apart_from_the_daemons_own_paths(
    path: str, fault: str | None
) -> None:
    assert ROOTS.fault(Path(path)) == fault


@pytest.mark.parametrize("path", ["/proc", "/proc/1", "/sys/kernel", "/dev", "/dev/shm"])
def test_kernel_file_systems_are_allowed_only_as_explicit_roots(path: str) -> None:
    assert Roots((Path("/"),)).fault(Path(path)) == KERNELS
    assert Roots((Path("/"), Path(path))).fault(Path(path)) is None


OWN = OwnFolders(
    (Path("/home/me/.config/nousd"), Path("/home/me/.local/state/nousd")), Path("/home/me")
)


@pytest.mark.parametrize(
    ("path", "fault"),
    [
        ("/home/me/src", None),
        ("/srv/www", None),
        ("/tmp", None),
        ("/home/me", None),
        ("/home", None),
        ("/home/me/.config", AROUND),
        ("/home/me/.config/nousd", WITHIN),
        ("/home/me/.local/state/nousd/x", WITHIN),
        ("/proc/1", KERNELS),
        ("/dev/shm", KERNELS),
        ("/", KERNELS),
    ],
)
def test_the_user_may_choose_any_folder_but_the_daemons_and_the_kernels(
    path: str, fault: str | None
) -> None:
    assert OWN.fault(Path(path)) == fault


def test_the_home_folder_and_those_above_are_wide() -> None:
    wide = [
        path for path in ("/home/me", "/home", "/home/me/src", "/srv") if OWN.is_wide(Path(path))
    ]
    assert wide == ["/home/me", "/home"]


def test_links_in_roots_and_in_the_daemons_own_paths_are_resolved(tmp_path: Path) -> None:
    real = tmp_path.resolve()
    for name in ("root", "state"):
        (real / name).mkdir()
        (real / f"to_{name}").symlink_to(real / name)
    (real / "root" / "in").mkdir()
    roots = Roots((real / "to_root",), (real / "to_state", real / "root" / "in" / "missing"))
    assert roots.allowed == (real / "root",)
    assert roots.fault(real / "root") == AROUND
    assert roots.fault(real / "root" / "in") == AROUND
    assert roots.fault(real / "root" / "other") is None
    both = Roots((real,), (real / "to_state",))
    assert both.fault(real / "state") == WITHIN
