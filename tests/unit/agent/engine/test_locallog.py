from isolet.agent.engine import locallog


def varint(number):
    out = b""
    while number >= 0x80:
        out, number = out + bytes([number & 0x7F | 0x80]), number >> 7
    return out + bytes([number])


def field(number, value):
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def entry(source, line, *, last=None):
    """An entry as the driver writes it; `last` only for pieces of a long line."""
    message = field(1, source) + field(2, 1_700_000_000_000_000_000) + field(3, line)
    if last is not None:
        partial = (field(1, 1) if last else b"") + field(2, b"id") + field(3, 2)
        message += field(4, 1) + field(5, partial)
    size = len(message).to_bytes(4, "big")
    return size + message + size


def asked(tmp_path, data, stream="stdout", piece=b"rest"):
    folder = tmp_path / "containers" / "c" / "local-logs"
    folder.mkdir(parents=True)
    (folder / "container.log").write_bytes(data)
    return locallog.is_unended(str(tmp_path), "c", stream, piece)


def test_a_rest_without_a_newline(tmp_path):
    assert asked(tmp_path, entry(b"stdout", b"x") + entry(b"stdout", b"rest", last=False))


def test_a_rest_with_one(tmp_path):
    assert not asked(tmp_path, entry(b"stdout", b"rest", last=True))


def test_it_is_found_behind_the_other_stream(tmp_path):
    data = entry(b"stdout", b"rest", last=False) + entry(b"stderr", b"rest", last=True)
    assert asked(tmp_path, data + entry(b"stdout", b"other") * 100)


def test_a_line_with_the_same_bytes_is_not_it(tmp_path):
    assert not asked(tmp_path, entry(b"stdout", b"rest"))


def test_where_nothing_can_be_read_there_is_no_answer(tmp_path):
    assert not locallog.is_unended(str(tmp_path), "none", "stdout", b"rest")


def test_what_does_not_look_as_expected_gives_no_answer(tmp_path):
    assert not asked(tmp_path, b"\xff" * 5000 + b"\0\0\0\x20")


def test_a_tail_that_begins_within_an_entry_is_read_as_far_as_it_goes(tmp_path):
    data = entry(b"stdout", b"y" * (2 << 20)) + entry(b"stdout", b"rest", last=False)
    assert asked(tmp_path, data)
    assert not locallog.is_unended(str(tmp_path), "c", "stdout", b"y" * (2 << 20))
