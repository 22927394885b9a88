from isolet.wire.execution import EnvVar, Medium
from isolet.wire.process import StagedFile


async def test_all_in_one(runner, request_of):
    request = request_of(
        "sh",
        "-c",
        'cat; cat in/a; echo "$A"; mkdir out; echo 42 > out/r; ls -l in/a; pwd',
        medium=Medium.DISK,
        stdin=b"hello\n",
        env=(EnvVar(name="A", value=b"x"),),
        files=(StagedFile(path="in/a", content=b"file\n", mode=0o755),),
        artifacts=("out/*",),
    )
    started = await runner.start(request)
    print(started)
    ended = await runner.wait("acme", "one")
    print(ended)
    print(await runner.read_output("acme", "one"))
    print(await runner.read_artifact("acme", "one", "out/r"))
    print(await runner.dispose("acme", "one"))


async def test_inside(runner, request_of, session):
    request = request_of(
        "sh",
        "-c",
        "cat; cat in/a; echo err >&2; sleep 1.5; exit 3",
        execution_uid=session,
        stdin=b"hello\n",
        files=(StagedFile(path="in/a", content=b"file\n"),),
        artifacts=("in/*",),
    )
    print(await runner.start(request))
    print(await runner.wait("acme", "one"))
    print(await runner.read_output("acme", "one"))


async def test_run(runner, sandbox, python):
    print(await runner.run_shell("echo hi; pwd", sandbox()))
    print(await runner.run_code("python", "print(6*7)", sandbox(image=python)))


async def test_files(node, session):
    s = node.service
    await s.put_file(session, "a/b", b"x" * 100000, 0o640)
    print(await s.list_files(session, "a"), await s.list_files(session, ""))
    assert await s.get_file(session, "a/b") == b"x" * 100000
