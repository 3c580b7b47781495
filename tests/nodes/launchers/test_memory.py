"""How much memory is free: of the machine, or less where a cgroup leaves less."""

from pathlib import Path

import pytest

from nodes.launchers.processes import available_bytes

GIBIBYTE = 1 << 30
MACHINE = 60 * GIBIBYTE
V1_UNLIMITED = 9223372036854771712


class Kernel:
    """What it shows below a root of the test's own."""

    def __init__(self, root: Path):
        self.root = root
        self.write("proc/meminfo", f"MemTotal: 99 kB\nMemAvailable:   {MACHINE // 1024} kB\nCached: 7 kB\n")

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def group(self, name: str, limit: int | str, used: int, cache: int = 0) -> None:
        self.write(f"sys/fs/cgroup/{name}/memory.max", f"{limit}\n")
        self.write(f"sys/fs/cgroup/{name}/memory.current", f"{used}\n")
        self.write(f"sys/fs/cgroup/{name}/memory.stat", f"anon 5\ninactive_file {cache}\nactive_file 3\n")

    def group_v1(self, name: str, limit: int, used: int, cache: int = 0) -> None:
        folder = f"sys/fs/cgroup/memory/{name}"
        self.write(f"{folder}/memory.limit_in_bytes", f"{limit}\n")
        self.write(f"{folder}/memory.usage_in_bytes", f"{used}\n")
        self.write(f"{folder}/memory.stat", f"cache 1\ninactive_file 1\ntotal_inactive_file {cache}\n")


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    return Kernel(tmp_path)


def test_without_cgroups_it_is_what_the_machine_has(kernel: Kernel) -> None:
    assert available_bytes(kernel.root) == MACHINE
    kernel.write("proc/self/cgroup", "0::/\n")  # the outermost one has no files
    assert available_bytes(kernel.root) == MACHINE
    assert available_bytes(kernel.root / "elsewhere") == 1 << 40
    assert available_bytes() > 0, "and here it is something"


def test_the_least_of_all_cgroups_counts(kernel: Kernel) -> None:
    """As Slurm nests them: the job has a limit, its step has none, and another step may have filled the job."""
    kernel.write("proc/self/cgroup", "0::/slurm/job_7/step_0\n")
    kernel.group("slurm", 50 * GIBIBYTE, 20 * GIBIBYTE)
    kernel.group("slurm/job_7", 8 * GIBIBYTE, 3 * GIBIBYTE)
    kernel.group("slurm/job_7/step_0", "max", GIBIBYTE)
    assert available_bytes(kernel.root) == 5 * GIBIBYTE
    kernel.group("slurm", 50 * GIBIBYTE, 49 * GIBIBYTE)
    assert available_bytes(kernel.root) == GIBIBYTE
    kernel.group("slurm/job_8", 1, 1)  # not ours
    assert available_bytes(kernel.root) == GIBIBYTE


def test_a_machine_with_less_than_its_cgroups_allow_decides(kernel: Kernel) -> None:
    kernel.write("proc/self/cgroup", "0::/job\n")
    kernel.group("job", 500 * GIBIBYTE, GIBIBYTE)
    assert available_bytes(kernel.root) == MACHINE


def test_files_that_were_read_make_room(kernel: Kernel) -> None:
    kernel.write("proc/self/cgroup", "0::/job\n")
    kernel.group("job", 8 * GIBIBYTE, 8 * GIBIBYTE - 1, cache=2 * GIBIBYTE)
    assert available_bytes(kernel.root) == 2 * GIBIBYTE + 1
    kernel.group("job", 8 * GIBIBYTE, 9 * GIBIBYTE)  # a limit may be lowered below what is used
    assert available_bytes(kernel.root) == 0


def test_a_container_sees_its_own_cgroup_as_the_outermost(kernel: Kernel) -> None:
    kernel.group("", 4 * GIBIBYTE, GIBIBYTE)
    for line in ("0::/", "0::/../elsewhere", "0::/docker/0f3a"):
        kernel.write("proc/self/cgroup", f"{line}\n")
        assert available_bytes(kernel.root) == 3 * GIBIBYTE, line


def test_the_first_version_of_cgroups(kernel: Kernel) -> None:
    kernel.write("proc/self/cgroup", "9:name=systemd:/x\n4:hugetlb,memory:/docker/0f3a\n1:cpu:/y\n0::/\n")
    kernel.group_v1("", V1_UNLIMITED, 20 * GIBIBYTE)
    kernel.group_v1("docker/0f3a", 6 * GIBIBYTE, 4 * GIBIBYTE, cache=GIBIBYTE)
    assert available_bytes(kernel.root) == 3 * GIBIBYTE
    kernel.write("proc/self/cgroup", "4:memory:/docker/0f3a\n")
    kernel.group_v1("docker/0f3a", V1_UNLIMITED, GIBIBYTE)
    assert available_bytes(kernel.root) == MACHINE
