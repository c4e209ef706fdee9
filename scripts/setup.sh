# shellcheck shell=bash disable=SC2034
# What ./quickstart and ./test share: checks, Debian packages, the Python environment, progress.  Sourced, not run.
#
# Everything here is idempotent and quick when there is nothing to do.  Nothing is changed before the checks passed.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
VENV=$ROOT/.venv
PYTHON=/usr/bin/python3
BACKPORTS=/etc/apt/sources.list.d/space-backports.sources

# Debian packages that SPACE runs with, and why.
RUNTIME_PACKAGES=(
    ca-certificates       # TLS to package indexes
    python3 python3-venv  # SPACE itself; the guest's interpreter is taken from python3's packages
    iproute2              # network namespaces and links of slots
    nftables              # the rules around them
    e2fsprogs             # size-limited disks of sandboxes
    mount util-linux      # mounting them
    mmdebstrap            # building the base template
)
# gVisor.  Debian 12 itself has one of 2022, which is too old for the flags that we need; backports has this one.
RUNSC_OLDEST=0.0~20240729
# What the tests need beyond that.
TEST_PACKAGES=(
    git
    busybox-static # a root filesystem without Python and without glibc
    curl # the documents use it, and their examples are run
    shellcheck
)
# An S3 server to test against is an npm package; whoever has npm from elsewhere keeps it, since Debian's would conflict.
command -v npm >/dev/null || TEST_PACKAGES+=(nodejs npm)

die() { # WHAT IS WRONG, HOW TO FIX IT…
    printf '\n%s: %s\n' "$(basename "$0")" "$1" >&2
    shift
    [ $# -eq 0 ] || printf '  %s\n' "$@" >&2
    exit 1
}

# ---- progress: one line a step, its last word of output shown while it runs

LOG=

open_log() {
    LOG=$(mktemp "${TMPDIR:-/tmp}/space-setup.XXXXXX")
}

close_log() {
    [ -z "$LOG" ] || rm -f "$LOG"
}

run_step() { # TITLE COMMAND…: run it quietly, showing that it is alive; on failure show the end of its output
    local title=$1 started=$SECONDS shown=$SECONDS code=0 pid
    shift
    : >"$LOG"
    "$@" >"$LOG" 2>&1 </dev/null &
    pid=$!
    # The step dies with us: Ctrl-C reaches it by the terminal, this covers a plain kill.
    trap 'kill "$pid" 2>/dev/null; exit 143' TERM
    while kill -0 "$pid" 2>/dev/null; do
        if [ -t 1 ]; then
            printf '\r\033[K  %s … %ds  %.60s' "$title" $((SECONDS - started)) "$(tail -c 300 "$LOG" | tr '\r' '\n' | tail -n 1 | tr -cd '[:print:]')"
        elif [ $((SECONDS - shown)) -ge 10 ]; then
            shown=$SECONDS
            printf '  %s … %ds\n' "$title" $((SECONDS - started))
        fi
        sleep 0.2
    done
    wait "$pid" || code=$?
    trap - TERM
    [ ! -t 1 ] || printf '\r\033[K'
    if [ "$code" -ne 0 ]; then
        printf '  %s: failed after %d s. The end of its output:\n' "$title" $((SECONDS - started)) >&2
        tail -n 15 "$LOG" | sed 's/^/    | /' >&2
        return "$code"
    fi
    printf '  %s: done in %d s\n' "$title" $((SECONDS - started))
}

# ---- checks: they change nothing

check_root() {
    [ "$(id -u)" -eq 0 ] || die "this needs root, to make network namespaces, mounts and cgroups." \
        "Run: sudo $0 ${*:-}"
}

check_system() {
    local id='' version='' codename=''
    if [ -r /etc/os-release ]; then
        # In a subshell of its own, since the file sets variables as it likes.
        # shellcheck disable=SC1091
        IFS=' ' read -r id version codename < <(. /etc/os-release && echo "${ID:-?} ${VERSION_ID:-?} ${VERSION_CODENAME:-}")
    fi
    [ "$id/$codename" = debian/bookworm ] || die "this is ${id:-an unknown system} ${version:-}${codename:+ ($codename)}; it needs Debian 12 (bookworm)." \
        "Run it on Debian 12, or in a virtual machine of it (not in an unprivileged container)."
    [ "$(uname -m)" = x86_64 ] || die "this machine is $(uname -m); SPACE runs on x86_64."
    command -v apt-get >/dev/null || die "apt-get is missing." "Install it, or use an ordinary Debian 12."
}

check_space() { # DIRECTORY MIB: room on the file system where DIRECTORY is, or will be
    local directory=$1 needed=$2 free
    while [ ! -d "$directory" ]; do directory=$(dirname "$directory"); done
    free=$(df --output=avail --block-size=1M "$directory" | tail -n 1 | tr -d ' ')
    [ "$free" -ge "$needed" ] || die "$needed MiB are needed on the disk of $1, and $free MiB are free." \
        "Make room there, or name another place: SPACE_DATA_DIR=/larger/disk/space $0"
}

missing_packages() { # PACKAGE…: print those that are not installed
    local package installed
    installed=$(dpkg-query --show --showformat='${Package} ${db:Status-Abbrev}\n' "$@" 2>/dev/null |
        sed -n 's/ ii *$//p') || true
    for package in "$@"; do
        grep -qxF "$package" <<<"$installed" || printf '%s\n' "$package"
    done
}

is_listening() { # HOST:PORT
    (exec 3<>"/dev/tcp/${1%:*}/${1##*:}") 2>/dev/null
}

has_runsc() { # one that is new enough
    local version
    version=$(dpkg-query --show --showformat='${Version}' runsc 2>/dev/null) || return 1
    dpkg --compare-versions "$version" ge "$RUNSC_OLDEST"
}

has_packages() { # PACKAGE…: these, and runsc
    [ -z "$(missing_packages "$@")" ] && has_runsc
}

# ---- Debian packages

APT_OPTIONS=(-o APT::Update::Error-Mode=any -o Acquire::Retries=2 -o DPkg::Lock::Timeout=120)

apt_install() {
    DEBIAN_FRONTEND=noninteractive apt-get "${APT_OPTIONS[@]}" install --yes --no-install-recommends "$@"
}

apt_update() {
    apt-get "${APT_OPTIONS[@]}" update "$@"
}

check_network() { # can apt reach its sources?  Its lists go to a directory of their own until it could.
    local lists code=0
    lists=$(mktemp -d "${TMPDIR:-/tmp}/space-apt.XXXXXX")
    chmod 755 "$lists"
    run_step "Checking the package sources" apt_update -o Dir::State::Lists="$lists" -o Dir::Cache::pkgcache= \
        -o Dir::Cache::srcpkgcache= -o Acquire::http::Timeout=20 || code=$?
    [ "$code" -ne 0 ] || cp --recursive --no-target-directory "$lists" /var/lib/apt/lists
    rm -rf "$lists"
    [ "$code" -eq 0 ] || die "apt cannot reach its package sources; nothing has been changed." \
        "Check the network, the proxy (http_proxy, or Acquire::http::Proxy in /etc/apt/apt.conf.d) and" \
        "/etc/apt/sources.list.d, until this works: apt-get update"
}

add_backports() { # bookworm-backports, from wherever this machine gets bookworm
    local entry
    if ! grep -rqsw "bookworm-backports" /etc/apt/sources.list /etc/apt/sources.list.d; then
        entry=$(PYTHONPATH=$ROOT/src PYTHONDONTWRITEBYTECODE=1 "$PYTHON" -m space.templates.apt backports) || return 1
        printf '%s\n' "$entry" >"$BACKPORTS.new" && mv "$BACKPORTS.new" "$BACKPORTS"
    fi
    if [ -e "$BACKPORTS" ]; then
        apt_update -o Dir::Etc::SourceParts=/dev/null -o Dir::Etc::SourceList="$BACKPORTS" -o APT::Get::List-Cleanup=0
    else
        apt_update
    fi
}

install_packages() { # PACKAGE…: what is missing of them, and runsc; after check_network
    local -a missing
    mapfile -t missing < <(missing_packages "$@")
    if [ ${#missing[@]} -gt 0 ]; then
        run_step "Installing ${missing[*]}" apt_install "${missing[@]}" || die "apt-get install failed; see above."
    fi
    if ! has_runsc; then
        run_step "Adding Debian's backports" add_backports || die "cannot use bookworm-backports, where runsc is; see above."
        run_step "Installing runsc" apt_install runsc/bookworm-backports || die "apt-get install failed; see above."
        has_runsc || die "the runsc of Debian's backports is older than $RUNSC_OLDEST."
    fi
}

# ---- the Python environment

lock_stamp() { # LOCK: what an environment made from it is marked with
    {
        printf '%s\n' "$ROOT"
        sed '/^\[tool\./,$d' "$ROOT/pyproject.toml" # what an installation sees: all before the settings of tools
        cat "$ROOT/requirements/$1.txt"
    } | sha256sum | cut -d' ' -f1
}

has_environment() { # LOCK
    [ "$(cat "$VENV/space-$1.stamp" 2>/dev/null)" = "$(lock_stamp "$1")" ] && "$VENV/bin/python" -c '' 2>/dev/null
}

pip_install() {
    "$VENV/bin/python" -m pip --no-input --disable-pip-version-check install --progress-bar off "$@"
}

install_environment() { # LOCK: runtime or dev; dev holds runtime in the same versions
    if ! has_environment "$1"; then
        rm -f "$VENV"/space-*.stamp
        "$VENV/bin/python" -c 'import pip, sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null ||
            run_step "Creating .venv" "$PYTHON" -m venv --clear "$VENV" || die "cannot create $VENV; see above."
        run_step "Installing Python packages ($1)" pip_install --require-hashes --only-binary :all: --no-deps \
            --requirement "$ROOT/requirements/$1.txt" ||
            die "pip could not install the packages; see above." "Check that pip reaches its index (pip config list), then run $0 again."
        run_step "Installing SPACE" pip_install --no-deps --no-build-isolation --editable "$ROOT" ||
            die "pip could not install SPACE itself; see above."
        [ "$1" = runtime ] || lock_stamp runtime >"$VENV/space-runtime.stamp"
        lock_stamp "$1" >"$VENV/space-$1.stamp"
    fi
}
