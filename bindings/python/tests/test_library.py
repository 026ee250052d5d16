"""The declarations in _library.py against the headers: LAYOUT is a program that prints struct, field, offset, size."""

import ctypes
import os
import subprocess
import unittest
from unittest import mock

from syncguard import _library

STRUCTS = {
    "syncguard_constants": _library.Constants, "syncguard_error": _library.ErrorDetails,
    "syncguard_options": _library.Options, "syncguard_call": _library.Call,
    "syncguard_lock_options": _library.LockOptions, "syncguard_lock_info": _library.LockInfoStruct,
    "syncguard_capabilities": _library.Capabilities, "syncguard_completion": _library.Completion,
}


class LayoutTest(unittest.TestCase):
    def test_offsets(self):
        printed = subprocess.run([os.environ["SYNCGUARD_LAYOUT"]], check=True, capture_output=True, text=True).stdout
        headers = {}
        for line in printed.splitlines():
            struct, field, offset, size = line.split()
            headers.setdefault(struct, {})[field] = (int(offset), int(size))
        self.assertEqual(set(headers), set(STRUCTS))
        for name, struct in STRUCTS.items():
            ours = {field[0]: (getattr(struct, field[0]).offset, getattr(struct, field[0]).size)
                    for field in struct._fields_}
            self.assertEqual({field: headers[name].get(field) for field in ours}, ours, name)
            if name not in ("syncguard_constants", "syncguard_capabilities"):  # the library hands these out
                whole = headers[name].pop("sizeof")
                extended = [field for field in headers[name] if field not in ours]
                if "size" in ours:  # options may have grown at their end
                    self.assertTrue(all(headers[name][field][0] >= ctypes.sizeof(struct) - 7 for field in extended))
                else:
                    self.assertEqual((ctypes.sizeof(struct), extended), (whole[1], []), name)


class LoadTest(unittest.TestCase):
    def test_not_there(self):
        with self.assertRaisesRegex(ImportError, "libsyncguard-nowhere.so"):
            _library.load("libsyncguard-nowhere.so")

    def test_another_library(self):
        with self.assertRaisesRegex(ImportError, "syncguard_constants_get"):
            _library.load("libc.so.6")

    def test_another_version(self):
        with mock.patch.object(_library, "VERSION", "9."), self.assertRaisesRegex(ImportError, "needs 9.x"):
            _library.load()

    def test_another_layout(self):
        wrong = dict(_library.CONSTANTS, max_key_bytes=511)
        with mock.patch.object(_library, "CONSTANTS", wrong), self.assertRaisesRegex(ImportError, "max_key_bytes"):
            _library.load()


if __name__ == "__main__":
    unittest.main()
