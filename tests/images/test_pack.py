"""Packing a folder: what any reader finds in it, what is left out, and going on after an end at any byte."""

from __future__ import annotations

import fcntl
import io
import os
import re
import signal
import subprocess
import sys
import zipfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pairs import slow_but

from mpiter.__main__ import main
from mpiter.errors import MpiterError, OptionError
from mpiter.images import pack as packing
from mpiter.images import zipped
from mpiter.images.pack import pack

NAMES = ("a/1.jpg", "a/2.jpg", "a-b.txt", "b/ä ö/日本.png", "b/empty", "c.bin")


class Killed(BaseException):
    """As good as a signal that can't be caught."""


def folder_of(path, names=NAMES):
    for number, name in enumerate(names):
        file = path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"" if "empty" in name else bytes(range(number, number + 40)) * (number + 1))
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


def test_the_archive_holds_every_file_uncompressed_in_the_order_of_the_names(folder, tmp_path):
    report = pack(folder, tmp_path / "out.zip")
    with zipfile.ZipFile(tmp_path / "out.zip") as archive:
        infos = archive.infolist()
    assert content(tmp_path / "out.zip") == files_of(folder)
    assert [info.filename for info in infos] == sorted(NAMES)
    assert {info.compress_type for info in infos} == {zipfile.ZIP_STORED}
    assert infos[0].date_time == (2023, 11, 14, 22, 13, 22)  # of a-b.txt, in UTC
    assert (report.files, report.resumed, report.left_out) == (len(NAMES), 0, [])
    assert report.size == os.path.getsize(tmp_path / "out.zip")


def test_the_same_folder_gives_the_same_bytes_wherever_it_lies(folder, tmp_path):
    pack(folder, tmp_path / "one.zip")
    pack(folder_of(tmp_path / "other", reversed(NAMES)), tmp_path / "two.zip")
    for number, name in enumerate(NAMES):
        (tmp_path / "other" / name).write_bytes((folder / name).read_bytes())
        os.utime(tmp_path / "other" / name, (1_700_000_000 + number, 1_700_000_000 + number))
    pack(tmp_path / "other", tmp_path / "two.zip", force=True)
    assert (tmp_path / "one.zip").read_bytes() == (tmp_path / "two.zip").read_bytes()


def test_times_that_the_format_has_no_room_for_become_its_first_or_last(tmp_path):
    folder = folder_of(tmp_path / "folder", ("old", "young"))
    os.utime(folder / "old", (0, 0))
    os.utime(folder / "young", (1 << 33, 1 << 33))
    pack(folder, tmp_path / "out.zip")
    with zipfile.ZipFile(tmp_path / "out.zip") as archive:
        assert [info.date_time[0] for info in archive.infolist()] == [1980, 2107]


def test_links_within_the_folder_are_packed_and_others_told(folder, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "far.jpg").write_bytes(b"far")
    (folder / "link").symlink_to("a/1.jpg")
    (folder / "links").symlink_to("a")
    (folder / "loop").symlink_to(".")
    (folder / "nowhere").symlink_to("gone")
    (folder / "out").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(folder / "pipe")
    report = pack(folder, tmp_path / "out.zip")
    assert sorted(set(content(tmp_path / "out.zip")) - set(NAMES)) == ["link", "links/1.jpg", "links/2.jpg"]
    assert dict(report.left_out) == {
        "loop": "a link to a folder that it is in",
        "nowhere": "a link that leads nowhere",
        "out": "a link out of the folder (--follow takes it, from Python follow=True)",
        "pipe": "neither a file nor a folder",
    }
    report = pack(folder, tmp_path / "out.zip", force=True, follow=True)
    assert content(tmp_path / "out.zip")["out/far.jpg"] == b"far"
    assert "out" not in dict(report.left_out)


def test_what_cannot_be_read_is_told_and_the_rest_is_packed(folder, tmp_path):
    (folder / "b" / "memory").symlink_to("/proc/self/mem")  # which opens, and can't be read, not even by root
    (folder / "b" / os.fsdecode(b"\xff.jpg")).write_bytes(b"?")
    report = pack(folder, tmp_path / "out.zip", follow=True)
    assert set(content(tmp_path / "out.zip")) == set(NAMES)
    assert dict(report.left_out) == {"b/memory": "Input/output error", "b/\ufffd.jpg": "its name is not UTF-8"}


def test_a_file_that_changes_while_it_is_packed_is_left_out(folder, tmp_path, monkeypatch):
    def growing(fd, size):
        with open(folder / "a" / "1.jpg", "ab") as file:
            file.write(b"more")
        return os.read(fd, size)

    monkeypatch.setattr(packing, "_read", growing)
    report = pack(folder, tmp_path / "out.zip")
    assert report.left_out[0] == ("a/1.jpg", "it changed while it was packed")
    assert "a/1.jpg" not in content(tmp_path / "out.zip")


def test_a_folder_without_files_is_a_member_since_it_may_be_a_class(folder, tmp_path):
    (folder / "d" / "deep").mkdir(parents=True)
    for _ in range(2):
        report = pack(folder, tmp_path / "out.zip", force=True)
        with zipfile.ZipFile(tmp_path / "out.zip") as archive:
            assert [info.filename for info in archive.infolist() if info.is_dir()] == ["d/deep/"]
        assert (report.files, report.left_out) == (len(NAMES), [])
        (folder / "d" / "deep" / "new").touch()
        (folder / "d" / "deep" / "new").unlink()
        os.replace(tmp_path / "out.zip", tmp_path / "out.zip.part")
    assert pack(folder, tmp_path / "out.zip").resumed == len(NAMES)


def test_only_files_that_match_a_pattern_are_packed_if_there_is_one(folder, tmp_path):
    report = pack(folder, tmp_path / "out.zip", only=("*.jpg", "*.png"))
    assert sorted(content(tmp_path / "out.zip")) == ["a/1.jpg", "a/2.jpg", "b/ä ö/日本.png"]
    assert (report.unwanted, report.left_out) == (3, [])


def test_an_archive_that_is_there_stays_until_the_new_one_is_whole(folder, tmp_path, monkeypatch):
    out = tmp_path / "out.zip"
    out.write_bytes(b"mine")
    with pytest.raises(OptionError, match=r"out\.zip exists: name another .* from Python force=True"):
        pack(folder, out)

    def killed(*_):
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(os, "replace", killed)
        pack(folder, out, force=True)
    assert out.read_bytes() == b"mine"
    pack(folder, out, force=True)
    assert content(out) == files_of(folder)


def test_one_that_comes_while_packing_is_not_written_over(folder, tmp_path):
    out = tmp_path / "out.zip"
    with pytest.raises(OptionError, match="exists"):
        pack(folder, out, progress=lambda done, files, name: out.write_bytes(b"mine"))
    assert out.read_bytes() == b"mine"


def test_two_cannot_pack_the_same_archive(folder, tmp_path):
    with open(tmp_path / "out.zip.part", "wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(MpiterError, match="is being written by another process"):
            pack(folder, tmp_path / "out.zip")


@pytest.mark.parametrize("again", [False, True])
def test_an_archive_that_another_has_just_finished_is_not_written_to(folder, tmp_path, monkeypatch, again):
    def finishes(fd, how):
        os.replace(tmp_path / "out.zip.part", tmp_path / "out.zip")
        if again:
            (tmp_path / "out.zip.part").touch()

    monkeypatch.setattr(fcntl, "flock", finishes)
    with pytest.raises(MpiterError, match="is being written by another process"):
        pack(folder, tmp_path / "out.zip")
    assert (tmp_path / "out.zip").read_bytes() == b""


def test_the_archive_may_lie_in_the_folder_that_it_packs(folder):
    pack(folder, folder / "out.zip")
    pack(folder, folder / "out.zip", force=True)
    assert set(content(folder / "out.zip")) == set(NAMES)


# -- ended before the end --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def without_waiting():
    """For the disk: what is tested here is what was written, in which order."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda fd: None)
        yield


@given(data=st.data())
@settings(max_examples=150)
def test_packing_goes_on_after_an_end_at_any_byte(tmp_path_factory, without_waiting, data):
    """Of the bytes that are written, in the order in which they are, some number; twice."""
    path = tmp_path_factory.mktemp("any")
    folder, out = folder_of(path / "folder"), path / "out.zip"
    pack(folder, path / "whole.zip")
    whole = (path / "whole.zip").read_bytes()
    with pytest.MonkeyPatch.context() as patch:
        for _ in range(2):
            left = data.draw(st.integers(0, len(whole)))

            def write(fd, buffer, at):
                nonlocal left
                os.pwrite(fd, buffer[:left], at)
                left -= len(buffer)
                if left < 0:
                    raise Killed

            patch.setattr(packing, "write_all", write)
            try:
                pack(folder, out, force=True)
            except Killed:
                assert not out.exists() or out.read_bytes() == whole
    pack(folder, out, force=True)
    assert out.read_bytes() == whole
    assert not (path / "out.zip.part").exists()


@given(data=st.data())
@settings(max_examples=150)
def test_packing_goes_on_after_a_power_failure_that_left_anything_in_the_part(tmp_path_factory, without_waiting, data):
    path = tmp_path_factory.mktemp("torn")
    folder, out = folder_of(path / "folder"), path / "out.zip"
    pack(folder, out)
    whole = out.read_bytes()
    out.unlink()
    torn = bytearray(whole[: data.draw(st.integers(0, len(whole)))])
    for at in data.draw(st.lists(st.integers(0, max(0, len(torn) - 1)), max_size=3)):
        kinds = [bytes(64), b"\xff" * 64, whole[:64]]
        torn[at : at + 64] = data.draw(st.sampled_from(kinds if at >= zipped.LOCAL.size else kinds[:1]))
    (path / "out.zip.part").write_bytes(torn)
    pack(folder, out)
    assert out.read_bytes() == whole


@pytest.mark.parametrize("theirs", [b"mine", b"\x1f\x8b", "deflated"])
def test_a_part_that_is_somebody_elses_is_not_written_over(folder, tmp_path, theirs):
    if theirs == "deflated":  # as of a download
        with zipfile.ZipFile(tmp_path / "out.zip.part", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("a/1.jpg", b"mine")
        theirs = (tmp_path / "out.zip.part").read_bytes()
    (tmp_path / "out.zip.part").write_bytes(theirs)
    for force in (False, True):
        with pytest.raises(OptionError, match=r"out\.zip\.part is no archive that was begun here; move it away"):
            pack(folder, tmp_path / "out.zip", force=force)
    assert (tmp_path / "out.zip.part").read_bytes() == theirs


def test_packing_goes_on_where_no_file_could_be_packed(folder, tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "memory").symlink_to("/proc/self/mem")
    assert pack(tmp_path / "one", tmp_path / "out.zip", follow=True).files == 0
    os.replace(tmp_path / "out.zip", tmp_path / "out.zip.part")
    assert pack(folder, tmp_path / "out.zip").files == len(NAMES)


def test_what_was_packed_is_not_packed_again_unless_its_file_has_changed(folder, tmp_path):
    part = tmp_path / "out.zip.part"
    for change, kept in ((None, 6), ("b/empty", 3), ("a-b.txt", 0)):
        pack(folder, tmp_path / "out.zip", force=True)
        os.replace(tmp_path / "out.zip", part)
        if change:
            (folder / change).write_bytes(b"changed")
        report = pack(folder, tmp_path / "out.zip")
        assert report.resumed == kept
        assert content(tmp_path / "out.zip") == files_of(folder)


def test_a_file_that_comes_or_goes_between_two_runs_is_noticed(folder, tmp_path):
    pack(folder, tmp_path / "out.zip")
    os.replace(tmp_path / "out.zip", tmp_path / "out.zip.part")
    (folder / "a" / "2.jpg").unlink()
    (folder / "b" / "new").write_bytes(b"new")
    pack(folder, tmp_path / "out.zip")
    assert content(tmp_path / "out.zip") == files_of(folder)


def test_what_could_not_be_read_does_not_make_the_next_run_begin_anew(folder, tmp_path):
    (folder / "a" / "0").symlink_to("/proc/self/mem")
    pack(folder, tmp_path / "out.zip", follow=True)
    os.replace(tmp_path / "out.zip", tmp_path / "out.zip.part")
    report = pack(folder, tmp_path / "out.zip", follow=True)
    assert (report.resumed, dict(report.left_out)) == (len(NAMES), {"a/0": "Input/output error"})


# -- more than the old format has room for ----------------------------------------------------------------------------


def test_large_members_and_places_are_found_by_any_reader(folder, tmp_path, monkeypatch):
    """As if the old format ended at 100 bytes."""
    monkeypatch.setattr(zipped, "TOO_LARGE", 100)
    large = io.BytesIO()
    packing_, position, index = [], 0, b""
    for name, data in (("small", b"x"), ("large", bytes(200)), ("far", b"y")):
        member = zipped.Member(name.encode(), 0.0, len(data), zipfile.crc32(data))
        packing_.append(member)
        index += member.central(position)
        position += large.write(member.local() + data)
    assert [len(member.local()) for member in packing_] == [35, 55, 33]
    monkeypatch.undo()
    widened = index.replace((100).to_bytes(4, "little"), b"\xff" * 4)
    large.write(widened + zipped.end(widened, 3, position))
    with zipfile.ZipFile(large) as archive:
        assert [archive.getinfo(name).file_size for name in ("small", "large", "far")] == [1, 200, 1]
        assert archive.read("small") + archive.read("far") == b"xy"


def test_more_than_four_gigabytes_are_packed_behind_a_hole(folder, tmp_path, monkeypatch):
    class Far(packing._Packing):
        def __init__(self, *about):
            super().__init__(*about)
            self._at = 5 << 30  # bytes that no disk has to hold

    monkeypatch.setattr(packing, "_Packing", Far)
    pack(folder, tmp_path / "out.zip")
    assert content(tmp_path / "out.zip") == files_of(folder)
    with zipfile.ZipFile(tmp_path / "out.zip") as archive:
        assert archive.infolist()[0].header_offset == 5 << 30


@pytest.mark.parametrize("count", slow_but([0xFFFE, 0xFFFF, 0x10000], 0xFFFF))
def test_more_members_than_the_old_format_can_count(tmp_path, count):
    out = tmp_path / "many.zip"
    members = [zipped.Member(b"%06d" % number, 0.0, 0) for number in range(count)]
    size = len(members[0].local())
    index = b"".join(member.central(number * size) for number, member in enumerate(members))
    out.write_bytes(b"".join(member.local() for member in members) + index + zipped.end(index, count, count * size))
    with zipfile.ZipFile(out) as archive:
        assert len(archive.infolist()) == count
    with open(out, "rb") as file:
        found = zipped.Index.read(file.fileno(), "many.zip")
    assert (len(found), found.name(count - 1), int(found.offsets[-1])) == (count, f"{count - 1:06}", (count - 1) * size)


# -- the command -----------------------------------------------------------------------------------------------------


def test_the_command_says_what_it_packed(folder, tmp_path, capsys):
    assert main(["pack", str(folder), str(tmp_path / "out.zip")]) == 0
    out, err = capsys.readouterr()
    size = os.path.getsize(tmp_path / "out.zip")
    assert out == f"{tmp_path / 'out.zip'}: 6 files in {size:,} bytes\n"
    assert err.startswith("pack 0/6  a-b.txt\n")


def test_the_command_ends_with_1_when_something_was_left_out(folder, tmp_path, capsys):
    for number in range(30):
        (folder / f"pipe{number:02}").symlink_to("gone")
    assert main(["pack", str(folder), str(tmp_path / "out.zip"), "--only", "*.jpg"]) == 1
    out, err = capsys.readouterr()
    assert "left out: pipe19: a link that leads nowhere\n" in err
    assert err.endswith("left out: 10 more\n")
    size = os.path.getsize(tmp_path / "out.zip")
    assert out.endswith(f"2 files in {size} bytes, 4 files not wanted, 30 left out\n")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["", "new.zip"], "the folder's name is empty; the folder that you are in is '.'"),
        (["nowhere", "new.zip"], "nowhere is not a folder"),
        (["folder", "there.zip"], "there.zip exists: name another file, or write over it with --force"),
        (["folder", "folder"], "folder is a folder; name a file"),
        (["folder", "pipe", "--force"], "pipe is a device or a pipe; name a file"),
        (["empty", "new.zip"], "empty has no files to pack."),
        (["folder", "new.zip", "--only", "*.gif"], "folder has no files to pack whose names match '*.gif'; 6 do not"),
    ],
)
def test_the_command_ends_with_2_when_it_is_asked_wrongly(folder, tmp_path, monkeypatch, capsys, words, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.zip").touch()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").mkdir()
    with pytest.raises(SystemExit) as ended:
        main(["pack", *words])
    assert ended.value.code == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "new.zip").exists()


def test_a_full_disk_is_told_and_the_same_command_goes_on(folder, tmp_path):
    program = """
import resource, sys
from mpiter.__main__ import main
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
sys.exit(main(["pack", "folder", "out.zip"]))
"""
    for limit, code in ((300, 1), (1 << 20, 0)):
        command = [sys.executable, "-c", program, str(limit)]
        ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert ended.returncode == code
        assert ("mpiter: out.zip.part cannot be written: [Errno 27] File too large. What" in ended.stderr) == bool(code)
    assert "2 of them packed before" in ended.stdout
    assert content(tmp_path / "out.zip") == files_of(folder)


def test_where_nothing_was_packed_nothing_is_said_to_be_kept(folder, tmp_path, capsys):
    assert main(["pack", str(folder), str(tmp_path / "nowhere" / "out.zip")]) == 1
    said = capsys.readouterr().err  # a path with an apostrophe is quoted by the other kind
    assert re.search(r"out\.zip\.part['\"]\.\n$", said)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_a_program_that_is_interrupted_or_killed_leaves_no_archive_and_goes_on(folder, tmp_path, number, code):
    pack(folder, tmp_path / "whole.zip")
    program = f"""
import os, signal, sys
from mpiter.__main__ import main
from mpiter.images import pack
signal.signal(signal.SIGINT, signal.default_int_handler)
real, count = pack.write_all, iter(range(100))
def write(*arguments):
    real(*arguments)
    if next(count) == 5:
        os.kill(os.getpid(), {int(number)})
pack.write_all = write
sys.exit(main(["pack", "folder", "out.zip"]))
"""
    ended = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert ended.returncode == code
    assert "Traceback" not in ended.stderr
    assert ("the same command goes on with out.zip.part" in ended.stderr) == (number == signal.SIGINT)
    assert not (tmp_path / "out.zip").exists()
    report = pack(folder, tmp_path / "out.zip")
    assert report.resumed > 0
    assert (tmp_path / "out.zip").read_bytes() == (tmp_path / "whole.zip").read_bytes()
