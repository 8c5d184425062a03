import pytest

from bench.processor import FLAGS, machine_facts, plain_model_name, processor_of, this_processor

# Excerpts of /proc/cpuinfo, as virtual machines show it; flags that decide nothing are left out.
ZEN3 = ("AuthenticAMD", 25, 1, "AMD EPYC", "fpu sse4_2 avx avx2 vaes vpclmulqdq")
AVX512 = "fpu avx2 avx512f avx512bw avx512vl avx512_vnni"
AMX = f"{AVX512} avx512_bf16 avx512_fp16 amx_bf16 amx_tile amx_int8"
XEON = "Intel(R) Xeon(R) Processor"


def cpuinfo(vendor: str, family: int, model: int, name: str, flags: str) -> str:
    first = (
        f"processor\t: 0\nvendor_id\t: {vendor}\ncpu family\t: {family}\nmodel\t\t: {model}\nmodel name\t: {name}\n"
        f"stepping\t: 1\ncache size\t: 1024 KB\nflags\t\t: {flags}\nbugs\t\t: none\n\n"
    )
    return first + first.replace("processor\t: 0", "processor\t: 1")


@pytest.mark.parametrize(
    ("excerpt", "name"),
    [
        (ZEN3, "Zen 3"),
        (("AuthenticAMD", 25, 0x44, "AMD Ryzen 7 6800U", "avx2"), "Zen 3"),
        (("AuthenticAMD", 25, 17, "AMD EPYC", AVX512), "Zen 4"),
        (("AuthenticAMD", 25, 0x61, "AMD Ryzen 9 7950X 16-Core Processor", AVX512), "Zen 4"),
        (("AuthenticAMD", 25, 1, "AMD EPYC", AVX512), "Zen 4"),  # Zen 3 has no AVX-512: the model is another's
        (("AuthenticAMD", 25, 17, "AMD EPYC", "avx2"), "Zen 4 without AVX-512"),
        (("AuthenticAMD", 26, 2, "AMD EPYC", AVX512), "Zen 5"),
        (("AuthenticAMD", 26, 0x44, "AMD Ryzen 9 9950X", AVX512), "Zen 5"),
        (("AuthenticAMD", 26, 0x50, "AMD EPYC", AVX512), "Zen 6"),
        (("AuthenticAMD", 23, 49, "AMD EPYC 7R32", "avx2"), "AMD EPYC 7R32"),
        (("GenuineIntel", 6, 106, XEON, AVX512), "Xeon (Ice Lake)"),
        (("GenuineIntel", 6, 108, XEON, AVX512), "Xeon (Ice Lake)"),
        (("GenuineIntel", 6, 143, XEON, AMX), "Xeon (Sapphire Rapids) with AMX"),
        (("GenuineIntel", 6, 207, XEON, AVX512), "Xeon (Emerald Rapids) without AMX"),
        (("GenuineIntel", 6, 207, "INTEL(R) XEON(R) PLATINUM 8581C CPU", AMX), "Xeon (Emerald Rapids) with AMX"),
        (("GenuineIntel", 6, 173, XEON, f"{AMX} amx_fp16"), "Xeon (Granite Rapids) with AMX"),
        (("GenuineIntel", 6, 174, XEON, AMX), "Xeon (Granite Rapids) with AMX"),
        (("GenuineIntel", 6, 143, XEON, "avx2"), "Xeon (Sapphire Rapids) without AVX-512"),
        (("GenuineIntel", 6, 106, XEON, AMX), "Xeon with AMX"),  # Ice Lake has no AMX: the model is hidden
        (("GenuineIntel", 6, 1, XEON, AMX), "Xeon with AMX"),
        (("GenuineIntel", 6, 85, "Intel(R) Xeon(R) 8275CL CPU @ 3.00GHz", AVX512), "Intel Xeon 8275CL"),
        (("GenuineIntel", 6, 151, "Intel(R) Core(TM) i7-12700", "avx2 avx_vnni"), "Intel Core i7-12700"),
        (("HygonGenuine", 24, 0, "Hygon C86 7185 32-core Processor", "avx2"), "Hygon C86 7185 32-core"),
    ],
)  # fmt: skip
def test_names(excerpt: tuple[str, int, int, str, str], name: str) -> None:
    assert processor_of(cpuinfo(*excerpt)).name == name


def test_what_is_not_there_is_empty() -> None:
    arm = processor_of("processor\t: 0\nBogoMIPS\t: 243.75\nFeatures\t: fp asimd\n\nprocessor\t: 1\n")
    assert (arm.vendor, arm.family, arm.model, arm.flags, arm.name) == ("", 0, 0, (), "unknown processor")
    assert processor_of("").name == "unknown processor"


def test_a_model_name_does_not_break_a_table() -> None:
    assert plain_model_name("A | B(R)  CPU @ 2 GHz") == "A B"


def test_facts_are_ready_for_json() -> None:
    facts = machine_facts(this_processor())
    assert facts["name"] == this_processor().name
    assert set(facts["flags"]) <= set(FLAGS)
    assert facts["cores"] >= 1
    assert facts["memory_bytes"] > 1 << 28
    assert machine_facts(processor_of(cpuinfo(*ZEN3)), "mine")["name"] == "mine"
