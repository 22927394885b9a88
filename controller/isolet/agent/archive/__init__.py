"""The archive of a Checkpoint: its form, and the program that writes, checks and reads it.

Two files. The *entries* have one line of JSON for each thing in the workspace, with its digest; the
digest of that file stands for all of it. The *content* is a tar archive that is a function of the
entries and the files' bytes and of nothing else: whoever has the entries knows each byte of every
header, so reading one back means comparing, never interpreting.

All of it but `program` runs as a helper without rights, from this folder alone: these modules
import the standard library and each other. docs/decisions/0012-archive-of-a-checkpoint.md has why.
"""
