"""The schema, as the ordered steps that lead to it. A step, once released, never changes.

`user_version` counts the steps that a file has been through. Any change to the fields of a record
is a step, even one that adds a field with a default: an older binary would drop it on its next
write, so it must be refused the file (tests/unit/agent/store pins the fields of each version).

    meta        one row: the identity of the store, the last sequence number given out, and which
                warm pools are wanted
    records     one Execution, Process, Checkpoint or warm slot each; changed by compare-and-set on
                `revision`
    tombstones  uids that must not run here again, and when they were buried on both clocks
    fences      the Leases obeyed, for each shard in the order in which they came
"""

APPLICATION_ID = 0x49534F4C
"""Marks the file as ours ("ISOL"), so that another program's database is never migrated."""

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        f"PRAGMA application_id = {APPLICATION_ID}",
        """CREATE TABLE meta (
            one INTEGER PRIMARY KEY CHECK (one = 1),
            epoch TEXT NOT NULL,
            sequence INTEGER NOT NULL
        ) STRICT""",
        """CREATE TABLE records (
            uid TEXT PRIMARY KEY,
            namespace TEXT NOT NULL,
            name TEXT NOT NULL,
            spec_digest TEXT NOT NULL,
            created_at INTEGER NOT NULL,
            step TEXT NOT NULL,
            removing INTEGER NOT NULL,
            revision INTEGER NOT NULL,
            sequence INTEGER NOT NULL UNIQUE,
            body TEXT NOT NULL
        ) STRICT""",
        """CREATE TABLE tombstones (
            uid TEXT PRIMARY KEY,
            namespace TEXT NOT NULL,
            name TEXT NOT NULL,
            spec_digest TEXT NOT NULL,
            buried_at INTEGER NOT NULL,
            sequence INTEGER NOT NULL UNIQUE
        ) STRICT""",
        "CREATE INDEX tombstones_by_age ON tombstones (buried_at)",
        """CREATE TABLE fences (
            shard TEXT NOT NULL,
            place INTEGER NOT NULL,
            lease_uid TEXT NOT NULL,
            transitions INTEGER NOT NULL,
            PRIMARY KEY (shard, place)
        ) STRICT""",
        "INSERT INTO meta VALUES (1, lower(hex(randomblob(16))), 0)",
    ),
    (
        """UPDATE records SET body =
            json_set(body, '$.kind', 'execution', '$.process', json('null'))""",
        "ALTER TABLE tombstones ADD COLUMN kind TEXT NOT NULL DEFAULT 'execution'",
    ),
    (
        """UPDATE records SET body = json_set(body, '$.checkpoint', json('null'),
            '$.restored', json('false'), '$.spec.restore', json('null'))""",
    ),
    ("UPDATE records SET body = json_set(body, '$.git', json('null'))",),
    (
        """UPDATE records SET body = json_set(body, '$.outcome.oom', json('null'))
            WHERE json_type(body, '$.outcome') = 'object'""",
        """UPDATE records SET body = json_set(body, '$.process.disposed', json('false'))
            WHERE json_type(body, '$.process') = 'object'""",
    ),
    (
        """UPDATE records SET body = json_set(body, '$.checkpoint.in_store', json('null'))
            WHERE json_type(body, '$.checkpoint') = 'object'""",
    ),
    (
        """UPDATE records SET body =
            json_set(body, '$.slot', json('null'), '$.awaits_slot', json('false'))""",
        "ALTER TABLE meta ADD COLUMN pools TEXT NOT NULL DEFAULT ''",
    ),
    ("UPDATE records SET body = json_set(body, '$.dispatch', json('false'))",),
    (
        # Of no boot that ever is: those that were there are judged as of another one.
        "ALTER TABLE tombstones ADD COLUMN boot_id TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE tombstones ADD COLUMN boottime REAL NOT NULL DEFAULT 0",
    ),
)

SCHEMA_VERSION = len(MIGRATIONS)
