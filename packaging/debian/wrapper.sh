#!/bin/sh
# With the runtime that this package brings, whatever else is installed.
exec /usr/lib/tallygate/runtime/node /usr/lib/tallygate/bin/tallygate.js "$@"
