#!/bin/sh
# Uses the runtime of this package, not another one on the system.
exec /usr/lib/tallygate/runtime/node /usr/lib/tallygate/bin/tallygate.js "$@"
