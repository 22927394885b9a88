"""What a status says of a Git tree beside its commit. PURE. Called by `status`."""

from isolet.wire.execution import GitObserved


def elsewhere(git: GitObserved) -> str:
    """What of the tree is content that lies elsewhere, in words; nothing where all of it is there.

    Names are those of the repository's owner: they come escaped, and only the first few.
    """
    parts = []
    if git.submodules:
        named = ", ".join(git.submodules)
        more = f" and {git.more_submodules} more" if git.more_submodules else ""
        parts.append(f"submodules are empty folders: {named}{more}")
    if git.lfs:
        parts.append(f"{git.lfs} files are pointers of Git LFS and not their content")
    return "; ".join(parts)
