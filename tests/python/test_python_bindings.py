"""The bindings of the Python package are those of the header and of the library. Run by ctest `python`."""
import os
import re
import subprocess

import pytest
from samples import ROOT

import kvrun
from kvrun import _cffi
from kvrun._runtime import Struct, fields_of, lib


def recorded():
    """The binary interface as a C compiler sees it, in tests/api/kvrun.abi."""
    with open(os.path.join(ROOT, "tests", "api", "kvrun.abi")) as f:
        return f.read().splitlines()


def test_structs_are_laid_out_as_by_the_compiler():
    ffi, checked = _cffi.ffi, 0
    for line in recorded():
        size = re.fullmatch(r"struct (\w+) size (\d+)", line)
        field = re.fullmatch(r"struct (\w+) (\w+) offset (\d+) size (\d+)", line)
        if size:
            assert ffi.sizeof(size.group(1)) == int(size.group(2)), line
        elif field:
            struct, name, offset, width = field.groups()
            assert ffi.offsetof(struct, name) == int(offset), line
            assert ffi.sizeof(dict(ffi.typeof(struct).fields)[name].type) == int(width), line
            checked += 1
    assert checked > 100


def test_functions_and_values_are_those_of_the_interface():
    functions = {re.search(r"(kvrun_\w+)\(", x).group(1) for x in recorded() if x.startswith("function ")}
    assert set(_cffi.FUNCTIONS) == functions
    for name in functions:
        assert getattr(lib, name)  # found in the library
    enums = {x.split()[1]: int(x.split()[2]) for x in recorded() if x.startswith("enum ")}
    assert _cffi.ENUMS == enums
    assert _cffi.CONSTANTS["KVRUN_ABI_VERSION"] == int(recorded()[0].split()[-1])


def test_initial_values_are_those_of_the_macros(tmp_path):
    """A C program prints what each _INIT macro makes of its struct."""
    structs = sorted(_cffi.INITIAL)
    source = ["#include <kvrun.h>", "#include <stdio.h>", "int main(void) {"]
    for s in structs:
        source += [f"{{ {s} x = {s.upper()}_INIT; const unsigned char *b = (const unsigned char *)&x; size_t i;",
                   f'printf("{s} "); for (i = 0; i < sizeof x; ++i) printf("%02x", b[i]); printf("\\n"); }}']
    (tmp_path / "a.c").write_text("\n".join(source + ["return 0; }"]))
    command = ["cc", "-I", os.path.join(ROOT, "engine"), "-o", str(tmp_path / "a"), str(tmp_path / "a.c")]
    subprocess.run(command, check=True)
    out = subprocess.run([str(tmp_path / "a")], check=True, capture_output=True, text=True).stdout
    for line in out.splitlines():
        name, wanted = line.split()
        mine = fields_of(Struct(name).p)
        theirs = _cffi.ffi.new(name + " *")
        _cffi.ffi.buffer(theirs)[:] = bytes.fromhex(wanted)
        assert mine == fields_of(theirs), name
    assert len(out.splitlines()) == len(structs) > 10


@pytest.mark.parametrize("struct, kind", [("device_info", kvrun.DeviceInfo), ("engine_info", kvrun.EngineInfo),
                                          ("session_info", kvrun.SessionInfo), ("fetch_info", kvrun.FetchInfo),
                                          ("plan", kvrun.Plan), ("policy_info", kvrun.Policy)])
def test_results_have_all_fields(struct, kind):
    fields = [n for n, _ in _cffi.ffi.typeof("kvrun_" + struct).fields if n != "struct_size"]
    assert list(kind._fields) == fields


def test_sampling_has_all_options():
    # by other names, or the package's
    own = {"n_stops", "stops", "dry_breakers", "n_dry_breakers", "bias", "n_bias", "on_token", "on_prefill", "payload",
           "struct_size"}
    fields = {n for n, _ in _cffi.ffi.typeof("kvrun_generate_options").fields} - own
    package = {"stop", "dry_sequence_breakers", "logit_bias", "logits", "progress", "json_schema", "grammar"}
    assert set(kvrun.SamplingOptions.__annotations__) - package == fields


def test_statuses_have_classes():
    from kvrun._errors import BY_STATUS
    statuses = {v for n, v in _cffi.ENUMS.items() if re.match(r"KVRUN_E[A-Z]+$", n) and v < 0}
    assert set(BY_STATUS) == statuses
