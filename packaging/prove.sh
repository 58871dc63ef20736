#!/usr/bin/env bash
# `npm run prove:package`: builds two versions of the package for this machine's architecture and tests them with packaging/prove/inside.sh.
#
#   TALLYGATE_SYSTEMD_MACHINE   a command that boots a disposable Debian with systemd, runs its arguments there as root in the current
#                               folder, and exits with their exit code (systemd-nspawn, a virtual machine, ...)
# Without it, this prints the reason and tests nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ -z "${TALLYGATE_SYSTEMD_MACHINE:-}" ]; then
  echo 'prove:package: not tested, because TALLYGATE_SYSTEMD_MACHINE names no command that boots a Debian with systemd.'
  exit 0
fi
out=.tallygate/prove
version=$(npm pkg get version | tr -d '"')
architecture=$(dpkg --print-architecture)
rm -rf $out
npm run --silent package -- --arch "$architecture" --version 0.0.9 --quick --out $out
npm run --silent package -- --arch "$architecture" --quick --out $out
# TALLYGATE_SYSTEMD_MACHINE is a command with arguments.
# shellcheck disable=SC2086
exec $TALLYGATE_SYSTEMD_MACHINE bash packaging/prove/inside.sh "./$out/tallygate_0.0.9_$architecture.deb" "./$out/tallygate_${version/-/\~}_$architecture.deb"
