"""What is on disk stays readable: killed at any instant, full, damaged, edited, or taken away."""

import contextlib
import json
import os
import resource
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from keras_tricks._checkpoint_files import INDEX, damage, read
from keras_tricks._index import Record, Rule
from keras_tricks._store import Store

HERE = Path(__file__).parent
RULE = Rule("val_loss", "min", 2, 1)


@pytest.mark.backend("tensorflow")  # nothing in it depends on the backend, and it takes 15 s
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_two_hundred_kills_in_every_phase_lose_no_checkpoint(tmp_path):
    command = [sys.executable, HERE / "killed_saves.py", tmp_path, "200"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    landed = report["landed"]
    assert sum(landed.values()) == 200
    assert min(landed[name] for name in ("write", "flush", "rename", "index", "delete")) >= 5
    assert report["faults"] == []
    assert report["left"] == []
    assert report["stored"] == 5  # the three best and the two newest
    assert report["saves"] > 100


def payload(text="weights", size=1000):
    """Writes what Keras's format is to the store: an archive."""

    def write(path):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("model.weights", text.ljust(size, "."))

    return write


def saved(directory, *values, rule=RULE, **options):
    """A store with these losses at steps 10, 20, …"""
    store = Store(directory)
    store.open(rule)
    for value in values:
        step = (store.index.last_step or 0) + 10
        store.save(Record(step, 0, {"val_loss": value}), payload(), suffix=".keras", **options)
    return store


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def stored(directory):
    """Steps of the checkpoints that a reader finds, best first, and what it says."""
    index, messages = read(directory)
    return [record.step for record in index.best_first()], messages


def test_only_the_index_and_what_is_kept_is_on_disk(tmp_path):
    saved(tmp_path, 3.0, 1.0, 2.0, 4.0)
    kept = [f"step-{step:08d}.keras" for step in (20, 30, 40)]
    assert names(tmp_path) == [INDEX, *kept]
    assert stored(tmp_path) == ([20, 30, 40], [])


def test_a_restart_goes_on_with_the_ranking(tmp_path):
    saved(tmp_path, 3.0, 1.0, 2.0)
    saved(tmp_path, 2.5, 2.2)
    assert stored(tmp_path) == ([20, 30, 50], [])
    assert len(read(tmp_path)[0].records) == 5


def test_seeds_come_and_go_with_their_checkpoint(tmp_path):
    saved(tmp_path, 1.0, 3.0, 2.0, rule=Rule("val_loss", "min", 1, 1), seeds={"seeds": [1]})
    stems = ["step-00000010", "step-00000030"]
    expected = [f"{stem}{end}" for stem in stems for end in (".keras", ".seeds.json")]
    assert names(tmp_path) == [INDEX, *expected]


@pytest.mark.parametrize("suffix", [".keras", ".weights.h5"])
def test_a_file_that_is_not_ours_is_neither_overwritten_nor_deleted(tmp_path, suffix):
    mine = tmp_path / f"step-00000010{suffix}"
    mine.write_bytes(b"somebody else's")
    for fresh in (False, True):
        store = Store(tmp_path)
        store.open(RULE, fresh=fresh)
        for value in (1.0, 2.0, 3.0, 4.0):
            step = (store.index.last_step or 0) + 10
            store.save(Record(step, 0, {"val_loss": value}), payload(), suffix=".keras")
        assert mine.read_bytes() == b"somebody else's"


def test_starting_afresh_deletes_what_is_ours_alone(tmp_path):
    saved(tmp_path, 1.0, 2.0, seeds={"seeds": []})
    (tmp_path / "notes.txt").touch()
    Store(tmp_path).open(RULE, fresh=True)
    assert names(tmp_path) == [INDEX, "notes.txt"]
    assert read(tmp_path)[0].records == ()


def test_what_a_killed_process_left_is_removed(tmp_path):
    saved(tmp_path, 1.0)
    process = subprocess.Popen(["true"])
    process.wait()
    left = [
        f".keras_tricks-{process.pid}-0-step-00000020.keras",
        f".keras_tricks-{process.pid}-0-step-00000020.keras.weights.h5",
        "step-00000020.seeds.json",
    ]
    for name in left:
        (tmp_path / name).write_text('{"keras_tricks": "step-00000020.keras"}')
    running = tmp_path / f".keras_tricks-{os.getppid()}-0-step-00000030.keras"
    running.touch()
    mine = tmp_path / "step-00000050.seeds.json"
    mine.write_text("{}")
    Store(tmp_path).open(RULE)
    assert names(tmp_path) == sorted([INDEX, running.name, "step-00000010.keras", mine.name])


@pytest.mark.parametrize("suffix", [".keras", ".weights.h5"])
def test_without_an_index_the_checkpoints_tell_their_own_values(tmp_path, suffix):
    import h5py

    def write(path):
        if suffix == ".keras":
            payload()(path)
        else:
            with h5py.File(path, "w") as file:
                file["kernel"] = [1.0]

    store = Store(tmp_path)
    store.open(RULE)
    for step, value in ((10, 3.0), (20, 1.0), (30, 2.0)):
        store.save(Record(step, 0, {"val_loss": value}), write, suffix=suffix)
    before, _ = read(tmp_path)
    (tmp_path / INDEX).unlink()
    after, (sentence,) = read(tmp_path)
    assert [r.metrics for r in after.ranking()] == [r.metrics for r in before.ranking()]
    assert after.rule == RULE
    assert sentence == f"{INDEX} is gone; 2 checkpoints were found by their own description"


@pytest.mark.parametrize("length", [0, 1, 100, 300])
def test_an_index_cut_short_loses_no_checkpoint(tmp_path, length):
    saved(tmp_path, 3.0, 1.0, 2.0)
    path = tmp_path / INDEX
    path.write_text(path.read_text()[:length])
    steps, messages = stored(tmp_path)
    assert steps == [20, 30]
    assert INDEX in messages[0]
    saved(tmp_path, 0.5)
    assert stored(tmp_path) == ([40, 20], [])


def test_a_checkpoint_of_another_run_is_left_alone(tmp_path):
    for folder, values in (("a", [1.0]), ("b", [5.0, 4.0])):
        (tmp_path / folder).mkdir()
        saved(tmp_path / folder, *values)
    other = tmp_path / "b" / "step-00000020.keras"
    other.rename(tmp_path / "a" / other.name)
    assert stored(tmp_path / "a") == ([10], [])


def test_a_path_that_leads_out_of_the_directory_is_refused(tmp_path):
    outside = tmp_path / "step-00000010.keras"
    folder = tmp_path / "run"
    folder.mkdir()
    saved(folder, 1.0, 2.0)
    (folder / "step-00000010.keras").rename(outside)
    path = folder / INDEX
    path.write_text(path.read_text().replace('"step-00000010', '"../step-00000010'))
    steps, (sentence,) = stored(folder)
    assert steps == [20]
    assert "'../step-00000010.keras'" in sentence
    saved(folder, 0.5, 0.4, 0.3)
    assert outside.exists()


def test_a_link_is_not_followed(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    saved(folder, 1.0, 2.0)
    file = folder / "step-00000010.keras"
    file.rename(tmp_path / "elsewhere.keras")
    file.symlink_to(tmp_path / "elsewhere.keras")
    assert stored(folder) == ([20], ["step-00000010.keras is a link, which is not followed"])


def test_a_deleted_checkpoint_costs_itself(tmp_path):
    saved(tmp_path, 1.0, 2.0, 3.0)
    (tmp_path / "step-00000010.keras").unlink()
    assert stored(tmp_path) == ([20, 30], ["step-00000010.keras is gone"])


def test_a_truncated_checkpoint_costs_itself_and_is_not_deleted(tmp_path):
    store = saved(tmp_path, 1.0, 2.0, 3.0)
    file = tmp_path / "step-00000010.keras"
    size = file.stat().st_size
    os.truncate(file, size // 2)
    sentence = f"{file.name} is damaged: it has {size // 2} bytes instead of {size}"
    assert stored(tmp_path) == ([20, 30], [sentence])
    store.save(Record(40, 0, {"val_loss": 0.5}), payload(), suffix=".keras")
    assert store.messages == [sentence]
    assert file.exists()
    assert stored(tmp_path) == ([40, 20], [])


@pytest.mark.parametrize("place", [0, 200, 1100, -30])
def test_a_flipped_bit_is_seen(tmp_path, place):
    store = saved(tmp_path, 1.0)
    (record,) = store.index.stored
    assert damage(tmp_path, record) is None
    content = bytearray((tmp_path / record.file).read_bytes())
    content[place] ^= 4
    (tmp_path / record.file).write_bytes(content)
    assert "does not have its checksum" in damage(tmp_path, record)


def test_a_directory_that_disappears_is_made_anew(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    store = saved(folder, 1.0, 2.0)
    folder.rename(tmp_path / "moved")
    store.save(Record(30, 0, {"val_loss": 3.0}), payload(), suffix=".keras")
    assert stored(folder) == ([30], [])
    (sentence,) = store.messages
    assert "disappeared with 2 checkpoints" in sentence
    assert len(read(folder)[0].records) == 3


def may_mount():
    """Whether this process has the capability to mount a file system."""
    status = Path("/proc/self/status")
    if not status.exists():
        return False
    (mask,) = (ln.split()[1] for ln in status.read_text().splitlines() if ln.startswith("CapEff"))
    return bool(int(mask, 16) >> 21 & 1)


@contextlib.contextmanager
def file_size_limit(folder):
    """Files may have 20 kB; that reads like a full disk to who writes a larger one."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@contextlib.contextmanager
def full_disk(folder):
    """A disk on which 20 kB are free."""
    filler = folder / "filler"
    room = os.statvfs(folder)
    filler.write_bytes(bytes(room.f_bavail * room.f_bsize - 20_000))
    try:
        yield
    finally:
        filler.unlink()


@pytest.fixture(params=[file_size_limit, *([full_disk] if may_mount() else [])])
def shortage(request, tmp_path):
    """A folder, and a context in which 20 kB can be written there and no more."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if request.param is file_size_limit:
        yield folder, file_size_limit(folder)
        return
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], check=True)
    yield folder, full_disk(folder)
    subprocess.run(["umount", folder], check=True)


NO_ROOM = "File too large|No space left"


def test_a_full_disk_costs_one_checkpoint(shortage):
    folder, full = shortage
    store = saved(folder, 1.0, 2.0)
    before = names(folder)
    with full, pytest.raises(OSError, match=NO_ROOM):
        store.save(
            Record(30, 0, {"val_loss": 0.5}),
            payload(size=100_000),
            suffix=".keras",
            seeds={"seeds": []},
        )
    assert names(folder) == before
    assert stored(folder) == ([10, 20], [])
    store.save(Record(40, 0, {"val_loss": 0.5}), payload(), suffix=".keras")
    assert stored(folder) == ([40, 10], [])


def test_without_room_for_the_index_nothing_is_deleted(shortage):
    folder, full = shortage
    store = saved(folder, 1.0, 2.0)
    long = {"val_loss": 0.5, "val_counts": [0.5] * 20_000}
    with full, pytest.raises(OSError, match=NO_ROOM):
        store.save(Record(30, 0, long), payload(), suffix=".keras")
    # The checkpoint is there, no index lists it, and its own description is enough.
    assert stored(folder) == ([30, 10, 20], [])
    store.save(Record(40, 0, {"val_loss": 3.0}), payload(), suffix=".keras")
    assert stored(folder) == ([30, 10, 40], [])
    assert len(read(folder)[0].records[2].metrics["val_counts"]) == 20_000
