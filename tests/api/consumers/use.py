"""Uses libkvrun.so through ctypes: opens a model, generates, loads and unloads the library 100 times.

Usage: use.py LIBKVRUN MODEL"""
import ctypes
import sys
import _ctypes


def main(path, model):
    for _ in range(100):
        lib = ctypes.CDLL(path)
        lib.kvrun_version.restype = ctypes.c_char_p
        assert lib.kvrun_version().count(b".") == 2
        devices = ctypes.c_void_p()
        assert lib.kvrun_canceller_new(ctypes.byref(devices)) == 0
        lib.kvrun_canceller_free(devices)
        _ctypes.dlclose(lib._handle)
    lib = ctypes.CDLL(path)
    lib.kvrun_last_error.restype = ctypes.c_char_p

    class EngineOptions(ctypes.Structure):
        _fields_ = [
            ("struct_size", ctypes.c_uint32), ("model_path", ctypes.c_char_p), ("device", ctypes.c_void_p),
            ("kv_budget_bytes", ctypes.c_uint64), ("ubatch", ctypes.c_uint32), ("prefill_block", ctypes.c_uint32),
            ("max_rows", ctypes.c_uint32), ("progress", ctypes.c_void_p), ("payload", ctypes.c_void_p),
            ("canceller", ctypes.c_void_p)]

    class DeviceOptions(ctypes.Structure):
        _fields_ = [("struct_size", ctypes.c_uint32)] + [(n, ctypes.c_char_p) for n in (
            "backend", "device", "cache_dir", "probe", "validate", "dump", "shaders", "test_caps")] + [
            ("check", ctypes.c_int), ("poison", ctypes.c_int), ("f32_matmul", ctypes.c_int),
            ("submit_ms", ctypes.c_double),
            ("set_driver_files", ctypes.c_void_p), ("payload", ctypes.c_void_p)]

    device = DeviceOptions(struct_size=ctypes.sizeof(DeviceOptions), device=b"cpu", submit_ms=100.0)
    options = EngineOptions(struct_size=ctypes.sizeof(EngineOptions), model_path=model.encode(),
                            device=ctypes.addressof(device), ubatch=512, max_rows=8)
    engine, session = ctypes.c_void_p(), ctypes.c_void_p()
    assert lib.kvrun_engine_open(ctypes.byref(engine), ctypes.byref(options)) == 0, lib.kvrun_last_error()
    assert lib.kvrun_session_open(ctypes.byref(session), engine, None) == 0, lib.kvrun_last_error()
    assert lib.kvrun_session_truncate(session, 5) == -1 and b"truncate" in lib.kvrun_last_error()
    lib.kvrun_engine_free(engine)
    lib.kvrun_session_free(session)
    print("ok")


if __name__ == "__main__":
    main(*sys.argv[1:])
