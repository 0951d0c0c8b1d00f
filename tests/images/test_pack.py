"""Any reader of archives finds a packed folder's files.

Packing goes on after an end at any byte, and lists what it leaves out.
"""

from __future__ import annotations

import errno
import itertools
import os
import zipfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpiter.__main__ import main
from mpiter.errors import OptionError
from mpiter.images import pack as packing
from mpiter.images.pack import pack

NAMES = ("a/1.jpg", "a/2.jpg", "a-b.txt", "b/ä ö/日本.png", "b/empty", "c.bin")


def folder_of(path, names=NAMES):
    for number, name in enumerate(names):
        file = path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        filling = bytes(range(number, number + 40)) * (number + 1)
        file.write_bytes(b"" if "empty" in name else filling)
        os.utime(file, (1_700_000_000 + number, 1_700_000_000 + number))
    return path


@pytest.fixture
def folder(tmp_path):
    return folder_of(tmp_path / "folder")


def content(path):
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        return {name: archive.read(name) for name in archive.namelist()}


def files_of(folder):
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def test_the_archive_holds_every_file_uncompressed_in_the_order_of_the_names(
    folder, tmp_path
):
    report = pack(folder, tmp_path / "out.zip")
    with zipfile.ZipFile(tmp_path / "out.zip") as archive:
        infos = archive.infolist()
    assert content(tmp_path / "out.zip") == files_of(folder)
    assert [info.filename for info in infos] == sorted(NAMES)
    assert {info.compress_type for info in infos} == {zipfile.ZIP_STORED}
    # This is the time of a-b.txt, in UTC.
    assert infos[0].date_time == (2023, 11, 14, 22, 13, 22)
    assert report == (len(NAMES), 0, [])
    pack(folder_of(tmp_path / "other"), tmp_path / "two.zip")
    assert (tmp_path / "out.zip").read_bytes() == (tmp_path / "two.zip").read_bytes(), (
        "wherever the folder lies"
    )


def test_links_are_packed_as_what_they_lead_to_and_what_cannot_be_read_is_told(
    folder, tmp_path
):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "far.jpg").write_bytes(b"far")
    (folder / "out").symlink_to(tmp_path / "elsewhere")
    (folder / "links").symlink_to("a")
    (folder / "nowhere").symlink_to("gone")
    # This file can be opened, but not read, not even by root.
    (folder / "memory").symlink_to("/proc/self/mem")
    (folder / "b" / os.fsdecode(b"\xff.jpg")).write_bytes(b"?")
    os.mkfifo(folder / "pipe")
    report = pack(folder, tmp_path / "out.zip")
    added = set(content(tmp_path / "out.zip")) - set(NAMES)
    assert added == {"links/1.jpg", "links/2.jpg", "out/far.jpg"}
    told = dict(report.left_out)
    assert "surrogates not allowed" in told.pop(os.fsdecode(b"b/\xff.jpg"))
    assert told == {
        "memory": "Input/output error",
        "nowhere": "No such file or directory",
        "pipe": "Not a regular file",
    }


def test_a_file_that_changes_while_it_is_packed_is_left_out(
    folder, tmp_path, monkeypatch
):
    def growing(path):
        with open(path, "ab") as file:
            file.write(b"more")
        return genuine(path)

    genuine = packing.bytes_at
    monkeypatch.setattr(packing, "bytes_at", growing)
    report = pack(folder, tmp_path / "out.zip")
    assert report == (
        0,
        0,
        [(name, "it changed while it was packed") for name in sorted(NAMES)],
    )


def test_a_folder_without_files_is_a_member_since_it_may_be_a_class(folder, tmp_path):
    (folder / "d" / "deep").mkdir(parents=True)
    pack(folder, tmp_path / "out.zip.packing")
    assert set(content(tmp_path / "out.zip.packing")) == {*NAMES, "d/deep/"}
    assert pack(folder, tmp_path / "out.zip").resumed == len(NAMES)


def test_an_archive_that_is_there_stays(folder, tmp_path):
    (tmp_path / "out.zip").write_bytes(b"mine")
    with pytest.raises(
        OptionError, match=r"out\.zip exists: delete it, or name another file"
    ):
        pack(folder, tmp_path / "out.zip")
    assert (tmp_path / "out.zip").read_bytes() == b"mine"


def test_a_link_in_place_of_the_unfinished_archive_is_not_followed(
    folder, tmp_path, capsys
):
    (tmp_path / "another's").write_text("whole")
    (tmp_path / "out.zip.packing").symlink_to("another's")
    assert main(["pack", str(folder), str(tmp_path / "out.zip")]) == 1
    assert "out.zip.packing" in capsys.readouterr().err
    assert (tmp_path / "another's").read_text() == "whole"


def test_of_two_that_pack_into_one_archive_the_second_is_refused(
    folder, tmp_path, monkeypatch
):
    def refused(path):
        with pytest.raises(
            OptionError, match=r"another `mpiter pack` is writing .*out\.zip\.packing"
        ):
            pack(folder, tmp_path / "out.zip")
        return genuine(path)

    genuine = packing.bytes_at
    monkeypatch.setattr(packing, "bytes_at", refused)
    pack(folder, tmp_path / "out.zip")
    assert content(tmp_path / "out.zip") == files_of(folder)


def test_the_archive_may_lie_in_the_folder_that_it_packs(folder):
    pack(folder, folder / "out.zip")
    assert set(content(folder / "out.zip")) == set(NAMES)


@pytest.fixture(scope="module")
def without_waiting():
    """Don't wait for the disk.

    These tests only check what was written, and in which order.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda fd: None)
        yield


@given(data=st.data())
@settings(max_examples=30)
def test_packing_goes_on_whatever_an_end_at_any_byte_or_a_power_failure_has_left(
    tmp_path_factory, without_waiting, data
):
    path = tmp_path_factory.mktemp("torn")
    folder = folder_of(path / "folder")
    out = path / "out.zip"
    pack(folder, out)
    whole = out.read_bytes()
    out.unlink()
    torn = bytearray(whole[: data.draw(st.integers(0, len(whole)))])
    for at in data.draw(st.lists(st.integers(0, max(0, len(torn) - 1)), max_size=3)):
        torn[at : at + 64] = data.draw(
            st.sampled_from([bytes(64), b"\xff" * 64, whole[:64]])
        )
    (path / "out.zip.packing").write_bytes(torn)
    pack(folder, out)
    assert out.read_bytes() == whole


def test_what_was_packed_is_not_packed_again_unless_its_file_has_changed(
    folder, tmp_path
):
    for change, kept in ((None, 6), ("b/empty", 3), ("a-b.txt", 0)):
        pack(folder, tmp_path / "out.zip")
        os.replace(tmp_path / "out.zip", tmp_path / "out.zip.packing")
        if change:
            (folder / change).write_bytes(b"changed")
        assert pack(folder, tmp_path / "out.zip").resumed == kept
        assert content(tmp_path / "out.zip") == files_of(folder)
        os.replace(tmp_path / "out.zip", tmp_path / "out.zip.packing")
    (folder / "a" / "2.jpg").unlink()
    pack(folder, tmp_path / "out.zip")
    assert content(tmp_path / "out.zip") == files_of(folder)


def test_the_command_says_what_it_packed_and_ends_with_1_when_something_was_left_out(
    folder, tmp_path, capsys
):
    assert main(["pack", str(folder), str(tmp_path / "out.zip")]) == 0
    out, err = capsys.readouterr()
    assert out == f"{tmp_path / 'out.zip'}: 6 files, 0 packed before; 0 not\n"
    assert err == "pack 0/6  a-b.txt\n"
    (folder / "gone.jpg").symlink_to("nowhere")
    assert main(["pack", str(folder), str(tmp_path / "more.zip")]) == 1
    out, err = capsys.readouterr()
    assert out.endswith("6 files, 0 packed before; 1 not\n")
    assert err.endswith("left out: gone.jpg: No such file or directory\n")


def test_the_command_says_what_is_wrong_with_what_it_is_asked(
    folder, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.zip").touch()
    (tmp_path / "empty").mkdir()
    for words, says in (
        (["", "new.zip"], "'' is not a folder"),
        (["nowhere", "new.zip"], "'nowhere' is not a folder"),
        (["folder", "there.zip"], "there.zip exists: delete it, or name another file"),
        (["empty", "new.zip"], "empty has no files to pack."),
    ):
        assert main(["pack", *words]) == 2
        assert says in capsys.readouterr().err
        assert not (tmp_path / "new.zip").exists()


@pytest.mark.parametrize(
    "how", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")]
)
def test_a_command_that_is_ended_leaves_no_archive_and_goes_on(
    folder, tmp_path, monkeypatch, capsys, how
):
    def write(*arguments):
        if next(count) == 3:
            raise how
        genuine(*arguments)

    genuine = packing.write_all
    count = itertools.count()
    pack(folder, tmp_path / "whole.zip")
    with monkeypatch.context() as patch:
        patch.setattr(packing, "write_all", write)
        assert main(["pack", str(folder), str(tmp_path / "out.zip")]) == (
            1 if isinstance(how, OSError) else 130
        )
    told = f"No space left on device: '{tmp_path / 'out.zip'}'"
    assert (told in capsys.readouterr().err) == isinstance(how, OSError)
    assert not (tmp_path / "out.zip").exists()
    assert pack(folder, tmp_path / "out.zip").resumed > 0
    assert (tmp_path / "out.zip").read_bytes() == (tmp_path / "whole.zip").read_bytes()
