import os
import socket

from isolet.agent.engine import process

TICKS = os.sysconf("SC_CLK_TCK")


def a_process(proc, pid, name, started, *, holds=""):
    folder = proc / str(pid)
    (folder / "fd").mkdir(parents=True)
    (folder / "comm").write_text(f"{name}\n")
    fields = ["S", *["0"] * 18, str(started * TICKS), "0"]
    (folder / "stat").write_text(f"{pid} (a (b) c) {' '.join(fields)}\n")
    if holds:
        (folder / "fd" / "3").symlink_to(f"socket:[{holds}]")


def sockets(proc, *rows):
    (proc / "net").mkdir()
    lines = [f"0: 00000002 00000000 00010000 0001 01 {inode} {path}" for inode, path in rows]
    (proc / "net" / "unix").write_text("\n".join(["Num RefCount ...", *lines, "0: 0 0 0 1 1 9"]))


def test_the_listener_is_the_engine(tmp_path):
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        proc = tmp_path / "proc"
        proc.mkdir()
        a_process(proc, os.getpid(), "dockerd", 70)
        assert process.EngineProcess(path, proc).started_boottime() == 70


def test_behind_a_socket_of_systemd_the_engine_is_who_holds_it(tmp_path):
    real = tmp_path / "run"
    real.mkdir()
    (tmp_path / "var-run").symlink_to(real)
    proc = tmp_path / "proc"
    proc.mkdir()
    sockets(proc, (77, real / "docker.sock"), (78, tmp_path / "other.sock"))
    a_process(proc, 1, "systemd", 1, holds="77")
    a_process(proc, 40, "dockerd", 40, holds="78")
    a_process(proc, 50, "dockerd", 50, holds="77")
    assert (
        process.EngineProcess(str(tmp_path / "var-run" / "docker.sock"), proc).started_boottime()
        == 50
    )


def test_where_no_engine_can_be_seen_there_is_no_answer(tmp_path):
    assert process.EngineProcess(str(tmp_path / "s"), tmp_path).started_boottime() is None


def test_a_strangers_socket_below_a_folder_that_goes_meanwhile_is_passed_over(
    tmp_path, monkeypatch
):
    proc, real = tmp_path / "proc", os.path.realpath
    proc.mkdir()
    sockets(proc, (76, "/proc/self/fd/17/agent.sock"), (77, tmp_path / "docker.sock"))
    a_process(proc, 50, "dockerd", 50, holds="77")

    def realpath(path):
        if "fd/17" in str(path):
            raise FileNotFoundError(path)
        return real(path)

    monkeypatch.setattr(os.path, "realpath", realpath)
    assert process.EngineProcess(str(tmp_path / "docker.sock"), proc).started_boottime() == 50


def test_it_is_looked_for_anew_only_once_it_is_gone(tmp_path, monkeypatch):
    proc = tmp_path / "proc"
    proc.mkdir()
    sockets(proc, (77, tmp_path / "docker.sock"))
    a_process(proc, 50, "dockerd", 50, holds="77")
    engine = process.EngineProcess(str(tmp_path / "docker.sock"), proc)
    found = engine._find
    looked = []
    monkeypatch.setattr(engine, "_find", lambda: looked.append(1) or found())
    assert [engine.started_boottime() for _ in range(3)] == [50, 50, 50]
    assert len(looked) == 1
    # Killed, and nobody has waited for it yet; the next one holds the socket.
    stat = proc / "50" / "stat"
    stat.write_text(stat.read_text().replace(") S ", ") Z "))
    a_process(proc, 60, "dockerd", 60, holds="77")
    (proc / "50" / "fd" / "3").unlink()
    assert engine.started_boottime() == 60
