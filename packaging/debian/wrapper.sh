#!/bin/sh
# Uses the runtime of this package, not another one on the system.
home=/usr/lib/tallygate
if [ "${1-}" = agent ]; then
	# A device has little memory. docs/explanation/benchmarks.md shows the effect of each setting.
	export MALLOC_ARENA_MAX="${MALLOC_ARENA_MAX-2}"
	exec $home/runtime/node --max-semi-space-size=8 --max-old-space-size=256 --heap-growing-percent=40 --no-memory-pool --expose-gc $home/bin/tallygate.js "$@"
fi
if [ "${1-}" = cloud ]; then
	exec $home/runtime/node --max-semi-space-size=16 $home/bin/tallygate.js "$@"
fi
exec $home/runtime/node $home/bin/tallygate.js "$@"
