import os

import pytest

from isolet.agent.engine import base, probe
from isolet.base import errors, names


async def test_the_engine_says_who_it_is(bench):
    info = await bench.engine.info()
    assert info.id
    assert "runsc" in info.runtimes
    assert "--network=none" in info.runtimes["runsc"][1]
    assert info.live_restore
    assert info.api_version >= "1.41"
    assert await bench.engine.up_since() is not None
    assert (await bench.engine.info()).id == info.id


async def test_an_image_is_found_by_id(bench):
    found = await bench.engine.image(bench.image)
    assert found.id == bench.image
    assert found.id in [image.id for image in await bench.engine.images()]
    assert found.tags
    assert (await bench.engine.image(found.tags[0])).id == bench.image


@pytest.mark.parametrize("reference", ["sha256:" + "0" * 64, "no-such-image:1"])
async def test_an_image_that_is_not_there_is_not_found(bench, reference):
    with pytest.raises(errors.NotFound):
        await bench.engine.image(reference)


@pytest.mark.parametrize("reference", ["", "../volumes", "a b", "x?y", "-x", "a//b"])
async def test_what_is_no_reference_is_invalid(real, reference):
    with pytest.raises(errors.Invalid):
        await real.engine.image(reference)


async def test_only_the_names_of_an_images_environment_are_read(real):
    found = await real.engine.image(os.environ["ISOLET_IMAGE_SECRET_ENV"])
    assert found.env
    assert all("=" not in name for name in found.env)


async def test_files_of_an_image(bench):
    paths = ["/bin/sh", "/no/such", "/bin/sh"]
    assert await bench.engine.image_has(bench.image, paths) == {"/bin/sh": True, "/no/such": False}
    assert await bench.engine.containers(bench.labels()) == []


async def test_files_of_an_image_behind_links_and_folders(real):
    image = os.environ["ISOLET_IMAGE_PYTHON"]
    found = await real.engine.image_has(
        image, ["/bin/sh", "/usr/bin/python3", "/bin", "/usr/bin", "/bin/no-such"]
    )
    assert found == {
        "/bin/sh": True,
        "/usr/bin/python3": True,
        "/bin": False,
        "/usr/bin": False,
        "/bin/no-such": False,
    }


async def test_a_probe_that_somebody_removes_says_nothing_of_an_image(real, monkeypatch):
    asked = probe.has_file

    async def removed(engine, container_id, path):
        await real.engine.remove(container_id)
        return await asked(engine, container_id, path)

    monkeypatch.setattr(probe, "has_file", removed)
    with pytest.raises(errors.Unavailable):
        await real.engine.image_has(real.image, ["/bin/sh"])


async def test_an_image_without_a_shell_is_told_so(real):
    image = os.environ["ISOLET_IMAGE_NO_SH"]
    assert await real.engine.image_has(image, ["/bin/sh"]) == {"/bin/sh": False}


async def test_a_probe_carries_our_labels_and_is_removed(proxied):
    rule = proxied.proxy.rule("DELETE ", "hang")
    assert await proxied.engine.image_has(proxied.image, ["/bin/sh"]) == {"/bin/sh": True}
    assert rule.struck == 1
    labels = proxied.labels(**{names.LABEL_KIND: "probe"})
    [left] = await proxied.engine.containers(labels)
    assert left.status is base.Status.CREATED


async def test_files_of_an_image_that_is_not_there(bench):
    with pytest.raises(errors.NotFound):
        await bench.engine.image_has("sha256:" + "0" * 64, ["/bin/sh"])


async def test_a_volume_is_made_listed_and_removed(bench):
    name = f"{bench.installation}-v"
    labels = bench.labels(**{names.LABEL_UID: "u"})
    made = await bench.engine.create_volume(name, labels, {})
    assert (made.name, made.labels, made.driver, made.options) == (name, labels, "local", {})
    assert made.mountpoint
    assert await bench.engine.create_volume(name, bench.labels(), {}) == made
    assert await bench.engine.volumes({names.LABEL_UID: "u", **bench.labels()}) == [made]
    assert await bench.engine.volumes({names.LABEL_INSTALLATION: "nobody"}) == []
    await bench.engine.remove_volume(name)
    await bench.engine.remove_volume(name)
    assert await bench.engine.volumes(bench.labels()) == []


async def test_a_volume_in_use_is_a_conflict_and_outlives_its_container(bench):
    name = f"{bench.installation}-v"
    await bench.engine.create_volume(name, bench.labels(), {})
    container_id = await bench.engine.create(
        bench.config(bench.shell("true"), volumes=(base.VolumeMount(name=name, target="/data"),))
    )
    with pytest.raises(errors.Conflict):
        await bench.engine.remove_volume(name)
    await bench.engine.remove(container_id)
    assert [volume.name for volume in await bench.engine.volumes(bench.labels())] == [name]
    await bench.engine.remove_volume(name)
