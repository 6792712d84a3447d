"""machine: what is known of this machine without torch, and what is refused."""

import shutil

import pytest

from twoscale import base
from twoscale.base import InputError
from twoscale.jobs import machine


def test_the_build_of_torch_is_read_without_importing_it():
    torch = pytest.importorskip("torch")

    found = machine.torch_build()
    assert (found["__version__"], found["cuda"], found["hip"]) == (
        torch.__version__,
        torch.version.cuda,
        torch.version.hip,
    )


@pytest.mark.parametrize(
    ("vendor", "family", "expected"),
    [
        ("AuthenticAMD", "25", "AVX512 in halves"),
        ("AuthenticAMD", "26", "AVX512"),
        ("GenuineIntel", "6", "AVX512 of Intel"),
    ],
)
def test_the_capability_says_how_avx512_is_computed(
    vendor, family, expected, monkeypatch, tmp_path
):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(base, "CPUINFO", tmp_path / "cpuinfo")
    (tmp_path / "cpuinfo").write_text(
        f"vendor_id\t: {vendor}\ncpu family\t: {family}\nmodel\t\t: 17\n"
    )
    for found, right in (("AVX512", expected), ("AVX2", "AVX2")):
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda found=found: found)
        assert base.cpu_capability() == right


def test_too_little_disk_is_one_sentence(tmp_path):
    free = shutil.disk_usage(tmp_path).free
    machine.check_disk(tmp_path / "not" / "there", free // 2, "tests")
    with pytest.raises(
        InputError,
        match=r"^folder .*there: found .* GB of free disk space, expected at least .* GB for tes",
    ):
        machine.check_disk(tmp_path / "not" / "there", 2 * free, "tests")
