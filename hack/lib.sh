# Shared by the scripts in hack/: where things are kept and how the Python environment is made.
# Source it; it runs nothing but the few assignments below.
set -euo pipefail

ISOLET_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# Built tools, images and the Python environment live outside the tree, keyed by version, and are reused.
ISOLET_CACHE=${ISOLET_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/isolet}
export ISOLET_ROOT ISOLET_CACHE

say() { printf '\033[1m==>\033[0m %s\n' "$*" >&2; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

# python_env: makes (once for each lock file) a virtual environment with the project's
# dependencies and prints its path. The project itself is put on PYTHONPATH, not installed, so one
# environment serves every clone.
python_env() {
  local key env
  key=$(sha256sum "$ISOLET_ROOT/hack/requirements.lock" | cut -c1-16)
  env=$ISOLET_CACHE/python/$key
  if [ ! -e "$env/.ready" ]; then
    say "Python environment (once, about a minute)"
    mkdir -p "$ISOLET_CACHE/python"
    (
      flock 9
      if [ ! -e "$env/.ready" ]; then
        rm -rf "$env"
        python3 -m venv "$env" || die "python3 -m venv failed: install python3-venv (3.11 or newer)"
        # Where this runs errexit is off, and half an environment must not pass for a whole one.
        "$env/bin/pip" install -q --disable-pip-version-check -r "$ISOLET_ROOT/hack/requirements.lock" ||
          die "pip could not install $ISOLET_ROOT/hack/requirements.lock"
        touch "$env/.ready"
      fi
    ) 9>"$ISOLET_CACHE/python/.lock" >&2
  fi
  printf '%s\n' "$env"
}

# use_python: puts that environment and the source root in front.
use_python() {
  local env
  env=$(python_env)
  export PATH="$env/bin:$PATH"
  export PYTHONPATH="$ISOLET_ROOT/controller${PYTHONPATH:+:$PYTHONPATH}"
  export VIRTUAL_ENV=$env
}
