from isolet.agent.engine import base, config


async def test_every_bound_is_read_back_as_it_was_asked(bench, tmp_path):
    volume = f"{bench.installation}-v"
    await bench.engine.create_volume(volume, bench.labels(), {})
    asked = bench.config(
        bench.shell("sleep 60"),
        binds=(
            base.BindMount(source=str(tmp_path), target="/in"),
            base.BindMount(source=str(tmp_path), target="/again"),
        ),
        volumes=(base.VolumeMount(name=volume, target="/data"),),
        open_stdin=True,
        cpu_millis=250,
    )
    container_id = await bench.engine.create(asked)
    wanted = config.bounds(asked)
    assert config.differences(wanted, (await bench.engine.inspect(container_id)).seen) == []
    await bench.engine.start(container_id)
    seen = (await bench.engine.inspect(container_id)).seen
    assert config.differences(wanted, seen) == []
    assert seen.keys() == wanted.keys()


async def test_the_bounds_hold_inside(real, tmp_path):
    """What inspect claims, seen by the program."""
    tmp_path.chmod(0o777)
    volume = f"{real.installation}-v"
    await real.engine.create_volume(volume, real.labels(), {})
    script = """
        id -u; id -g; pwd
        touch /root-file 2>&1 || echo root is read-only
        touch /in/file 2>&1 || echo bind is read-only
        for d in /tmp /workspace; do
          cp /bin/busybox $d/sh 2>/dev/null || head -c 900000 /bin/busybox > $d/sh
          printf '#!/bin/sh\\necho ran in %s\\n' $d > $d/script; chmod +x $d/script
          $d/script 2>/dev/null || echo $d does not execute
          rm -f $d/*; head -c 2000000 /dev/zero > $d/big 2>/dev/null || echo $d is full
          rm -f $d/*
        done
        ulimit -c; ulimit -n; grep -E 'NoNewPrivs|CapEff|CapBnd' /proc/self/status
        ls /sys/class/net
    """
    container_id = await real.started(
        ("sh", "-c", script),
        binds=(base.BindMount(source=str(tmp_path), target="/in"),),
        volumes=(base.VolumeMount(name=volume, target="/data"),),
    )
    lines = (await real.output(container_id))[base.Stream.STDOUT].decode().splitlines()
    assert lines[:3] == ["65532", "65532", "/workspace"]
    for line in ("root is read-only", "bind is read-only", "/tmp does not execute"):
        assert line in lines
    assert "ran in /workspace" in lines
    assert {"/tmp is full", "/workspace is full"} <= set(lines)
    assert "256" in lines
    assert list(tmp_path.iterdir()) == []


async def test_an_image_with_a_volume_of_its_own_shows_as_a_difference(real):
    """Such an image makes the engine add a writable, unbounded mount that nobody asked for."""
    changes = {"Volumes": {"/surprise": {}}}
    asked = real.config(("true",))
    body = {**config.create_body(asked), **changes}
    container_id = await real.engine._create(asked.name, body)
    seen = (await real.engine.inspect(container_id)).seen
    [difference] = config.differences(config.bounds(asked), seen)
    assert difference.startswith("mounts: ")
    assert "/surprise" in difference
