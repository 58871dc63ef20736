/** Error codes of every surface. `docs/reference/errors.md` is generated from it. A released code keeps its meaning. */
import { z } from 'zod'
import './problem-texts.ts'

interface CatalogueEntry {
  readonly meaning: string
  readonly remedy: string
  readonly http: number
  /** Of the process. */
  readonly exit: number
  /** `later`: retry unchanged. `online`: retry once the device has reached the cloud. `no`: change something first. */
  readonly retry: 'no' | 'later' | 'online'
}

const DEFAULTS = { http: 500, exit: 1, retry: 'no' } as const

function catalogue<Code extends string>(
  entries: Record<Code, Omit<CatalogueEntry, keyof typeof DEFAULTS> & Partial<CatalogueEntry>>,
): Readonly<Record<Code, CatalogueEntry>> {
  const whole = Object.entries<object>(entries).map(([code, entry]) => [code, { ...DEFAULTS, ...entry }])
  return Object.fromEntries(whole) as Record<Code, CatalogueEntry>
}

export const ERRORS = catalogue({
  BAD_JSON: {
    meaning: 'The body is not well-formed JSON.',
    remedy: 'Send one JSON value in UTF-8.',
    http: 400,
  },
  BAD_REQUEST: {
    meaning: 'The request does not match the schema of this operation.',
    remedy: 'Correct the field that the message names.',
    http: 400,
  },
  BODY_INCOMPLETE: {
    meaning: 'The connection ended, or sent bytes that are not HTTP, before the body was complete.',
    remedy: 'Send the whole request again. Nothing was done.',
    http: 400,
    retry: 'later',
  },
  BODY_TOO_LARGE: {
    meaning: 'The body is larger than the limit.',
    remedy: 'Send less in one request, or raise the body limit in the configuration.',
    http: 413,
  },
  MEDIA_TYPE_NOT_SUPPORTED: {
    meaning:
      'The Content-Type is not application/json, or the body is compressed and this operation does not accept compression.',
    remedy: 'Send the header Content-Type: application/json and an uncompressed body.',
    http: 415,
  },
  METHOD_NOT_ALLOWED: {
    meaning: 'This path does not support the request method.',
    remedy: 'Use one of the methods in the Allow response header.',
    http: 405,
  },
  HEADERS_TOO_LARGE: {
    meaning: 'The request line and the headers together exceed 16 KiB.',
    remedy: 'Use a shorter path, and a token with fewer claims.',
    http: 431,
  },
  EXPECTATION_UNKNOWN: {
    meaning: 'The service does not support the value of the Expect header.',
    remedy: 'Omit the Expect header, or send 100-continue.',
    http: 417,
  },
  TRANSFER_CODING_UNKNOWN: {
    meaning: 'The service does not support the value of the Transfer-Encoding header.',
    remedy: 'Send the body with Content-Length, or with Transfer-Encoding: chunked.',
    http: 501,
  },
  REQUEST_TOO_SLOW: {
    meaning: 'The request did not arrive within the time limit.',
    remedy: 'Send it again over a faster connection, or raise the limit in the configuration.',
    http: 408,
    retry: 'later',
  },
  NOT_ACCEPTABLE: {
    meaning: 'The service cannot produce any of the media types in the Accept header.',
    remedy: 'Accept text/csv or application/x-ndjson, or set format=csv or format=ndjson.',
    http: 406,
  },
  OUTPUT_UNWRITABLE: {
    meaning: 'The command cannot write its output file.',
    remedy: 'Free disk space, or correct the path or its permissions. Then run the command again.',
    exit: 73,
  },
  CONFIG_NOT_RELOADED: {
    meaning: 'The running service could not reload its settings because they contain an error.',
    remedy:
      'Correct the setting that the message names and reload again. The previous settings stay in force until then.',
  },
  CONFIG_NEEDS_RESTART: {
    meaning: 'Some changed settings take effect only after a restart.',
    remedy: 'Restart the service, or undo the change and reload.',
  },
  WRITE_BUDGET_EXCEEDED: {
    meaning: 'The agent writes more to its storage per day than its write budget allows.',
    remedy:
      'Compare the bytes per decision with the operations guide. Set durability = "write-behind", or raise state.write_budget if the storage has enough write endurance.',
  },
  BACKUP_OVERDUE: {
    meaning: 'The last backup of the ledger is older than backup.max_age, or no backup was recorded.',
    remedy:
      'Run `tallygate backup FILE`, for example from a timer, or change backup.max_age. The agent keeps deciding requests in the meantime.',
  },
  TOKENS_LOW: {
    meaning: 'A line item has few tokens left on this device, and the cloud cannot refill them now.',
    remedy:
      'If the pool is used up: raise the quantity of the line item, allow an overdraft, or take tokens back from other devices (tallygate devices drain). If the device is offline: connect it to the cloud.',
  },
  TOKENS_USED_UP: {
    meaning:
      'A line item has no tokens left on this device, and the cloud cannot refill them now. Requests that it would pay are refused.',
    remedy:
      'If the pool is used up: raise the quantity of the line item, allow an overdraft, or take tokens back from other devices (tallygate devices drain). If the device is offline: connect it to the cloud.',
  },
  REQUESTERS_MANY: {
    meaning:
      'Applications have named very many requesters of line items with a consumption limit. The agent keeps a balance for each of them in each period, in memory and in its ledger.',
    remedy:
      'Check which requesters the applications name (tallygate status --all): a requester is a user or a machine, not a request. The balances go when the device attaches again, for example after a restore of its backup.',
  },
  CURSOR_UNKNOWN: {
    meaning: 'This service did not issue the cursor, or its database has been replaced since.',
    remedy:
      'Use a cursor that this cloud gave: of the previous export, or the position of an event. Without a cursor, an export begins with the first record.',
    http: 400,
  },
  USAGE_FORGOTTEN: {
    meaning:
      'The usage up to this cursor was exported before the service was restored from an older backup. The restored database does not contain it.',
    remedy:
      'Continue with the cursor that the message names, the end of the backup. Devices send the entries that they still keep again. A line that was exported before has the same device, epoch, entry and correlation id: count it once.',
    http: 409,
  },
  USAGE_ARCHIVED: {
    meaning: 'Some of these usage records were moved to an archive, which the message names.',
    remedy:
      'Read the archive with --from-archive of tallygate usage export or usage totals, and the same cursor or times. Then read the rest from the cloud, with --after and the cursor that this prints. Or select later usage with --since.',
    http: 409,
    exit: 66,
  },
  ARCHIVE_IN_USE: {
    meaning: 'Another process archives the usage records of this cloud.',
    remedy: 'Wait until it is done. The message names it, and when another process can take over.',
    http: 409,
    exit: 75,
    retry: 'later',
  },
  ARCHIVE_UNAVAILABLE: {
    meaning:
      'The place of the archive cannot be read or written, or lacks the last archive of this cloud. Nothing was deleted.',
    remedy:
      'Correct what the message names, such as free space, permissions, the address or the credentials. Then run it again: it continues.',
    http: 503,
    exit: 74,
    retry: 'later',
  },
  ARCHIVE_DIFFERS: {
    meaning:
      'The place contains archives of another cloud, or records that this cloud has lost because it was restored from a backup. Nothing was changed.',
    remedy:
      'Keep these archives, and use an empty place for the next ones. The first of them names the archive that it follows.',
    http: 409,
    exit: 78,
  },
  ARCHIVE_DAMAGED: {
    meaning: 'A file of an archive is missing, was changed, or does not agree with its manifest.',
    remedy: 'Replace the files that the message names from a copy. Then run tallygate usage archive verify.',
    exit: 65,
  },
  TOKEN_MISSING: {
    meaning: 'The request has no bearer token.',
    remedy: 'Send the header Authorization: Bearer <JWT>.',
    http: 401,
  },
  TOKEN_INVALID: {
    meaning: 'The bearer token is malformed, signed by an unknown key, or has a wrong signature.',
    remedy:
      'Use a private key whose public key is registered: `tallygate keys list` shows those that are, `tallygate keys set` registers one. A signed-in user signs in again: `tallygate login`.',
    http: 401,
  },
  TOKEN_NOT_IN_TIME: {
    meaning: 'The bearer token has expired or is not valid yet.',
    remedy:
      'Make a new token, or sign in again with `tallygate login`. Compare the clock of the machine that makes it with that of the cloud.',
    http: 401,
  },
  ACCESS_KIND_WRONG: {
    meaning: 'The token is valid but has the wrong access kind for this operation.',
    remedy: 'Use a token of the kind that the message names. docs/reference/authorization.md lists all operations.',
    http: 403,
  },
  SESSION_OF_ANOTHER: {
    meaning:
      'Another device, client or process opened the session. A device key permits only the sessions of its device.',
    remedy:
      'Use a token of the device that opened the session, or a client token of its instance. A forked process opens another session.',
    http: 403,
  },
  INSTANCE_NOT_IN_TOKEN: {
    meaning: 'The audience of the client token does not contain this instance.',
    remedy: 'Use a token whose aud claim lists the instance.',
    http: 403,
  },
  ROLE_MISSING: {
    meaning: 'The administration key or the signed-in user does not have the role that this operation requires.',
    remedy:
      'Use a key with the role that the message names. An administrator with the role keys can add it: `tallygate keys set --role`. Roles of signed-in users come from the setting oidc.access.',
    http: 403,
  },
  INSTANCE_NOT_IN_SCOPE: {
    meaning: 'The key or the signed-in user is limited to instances, and the request concerns others.',
    remedy:
      'Name an instance of the key: with --instance in a command, with the path or the parameter instanceId in a request. Otherwise, use a key that is not limited to instances.',
    http: 403,
  },
  SIGN_IN_NOT_MAPPED: {
    meaning: 'The provider has authenticated the user, but no rule of the cloud gives the user a role.',
    remedy:
      'Ask for membership in a group that oidc.access names, or ask the operator of the cloud for a rule there. Then run `tallygate login` again.',
    http: 403,
    exit: 77,
  },
  SIGN_IN_UNAVAILABLE: {
    meaning:
      'The OpenID Connect provider does not respond, or its response cannot be used, so sign-ins cannot be checked.',
    remedy:
      'Try again later, or use an administration key (--admin-key). The operator finds the reason in the log of the cloud.',
    http: 503,
    exit: 69,
    retry: 'later',
  },
  SIGN_IN_NOT_OFFERED: {
    meaning: 'This cloud, or its OpenID Connect provider, does not offer this way to sign in.',
    remedy:
      'Use an administration key: --admin-key, TALLYGATE_ADMIN_KEY or `tallygate context add`. Or ask the operator of the cloud to set oidc.issuer.',
    http: 404,
    exit: 69,
  },
  SIGN_IN_FAILED: {
    meaning: 'The OpenID Connect provider or the user did not complete the sign-in.',
    remedy: 'Run `tallygate login` again. If it fails again, give the message to the administrator of the provider.',
    http: 401,
    exit: 77,
  },
  SIGN_IN_REQUIRED: {
    meaning: 'The command has no administration key, and no user is signed in to this cloud on this machine.',
    remedy: 'Run `tallygate login`, or name a key: --admin-key, TALLYGATE_ADMIN_KEY or `tallygate context add`.',
    http: 401,
    exit: 77,
  },
  CONSOLE_OFF: {
    meaning: 'This cloud does not serve its console.',
    remedy: 'Ask the operator of the cloud to set `http.console` to `on`, or use the commands of `tallygate`.',
    http: 404,
    exit: 69,
  },
  CONSOLE_SIGN_IN_REFUSED: {
    meaning: 'The code or token of a sign-in to the console cannot be used, or was used already.',
    remedy: 'Run `tallygate console` again, and open the new URL within a minute.',
    http: 401,
    exit: 77,
  },
  CONSOLE_FORM_REFUSED: {
    meaning:
      'A form of the console was sent by another site, belongs to an earlier sign-in, was not confirmed, is too large, or has another Content-Type than application/x-www-form-urlencoded.',
    remedy: 'Open the page again, and send its form.',
    http: 403,
  },
  INSTANCE_HEADER_MISSING: {
    meaning: 'This operation requires the x-instance-id header with a client token.',
    remedy: 'Set x-instance-id to the UUID of the instance.',
    http: 400,
  },
  LAST_ADMINISTRATION_KEY: {
    meaning: 'At least one administration key with the role keys must remain.',
    remedy: 'Register another administration key with this role first.',
    http: 403,
  },
  NOT_FOUND: {
    meaning: 'The resource does not exist.',
    remedy:
      'Check the names and ids that you gave. The `list` commands, such as tallygate devices list, show those that exist.',
    http: 404,
  },
  OPERATION_UNKNOWN: {
    meaning: 'The service has no operation with this method and path.',
    remedy:
      'Check the path, and the address of the service: commands take it from --url, TALLYGATE_URL or a context (tallygate context list), or from --socket. The service may also have another version.',
    http: 404,
  },
  CONFLICT: {
    meaning: 'The state of the resource does not allow this operation.',
    remedy: 'The message says what to do.',
    http: 409,
  },
  RULES_CHANGED: {
    meaning: 'The rules of the instance have changed since the caller read them, and this change could overwrite that.',
    remedy: 'Read them again, and repeat the change with the new ETag in If-Match.',
    http: 412,
  },
  KEY_BUSY: {
    meaning: 'This caller has more requests in progress than its share of the service allows.',
    remedy:
      'Wait for the time in Retry-After, send fewer requests at a time, and send each body without pauses. The operator can raise http.requests_per_key_max.',
    http: 429,
    retry: 'later',
  },
  OVERLOADED: {
    meaning: 'More requests are waiting than the service allows.',
    remedy: 'Wait for the time in Retry-After and send the same request again.',
    http: 503,
    retry: 'later',
  },
  INTERNAL: {
    meaning: 'The service failed because of an unexpected error.',
    remedy: 'Try again later. If the error persists, report the correlation id from the log line.',
    exit: 70,
    retry: 'later',
  },
  STOPPING: {
    meaning: 'The service is shutting down.',
    remedy: 'Send the same request again in a moment.',
    http: 503,
    retry: 'later',
  },
  NODE_TOO_OLD: {
    meaning: 'This version of Node.js cannot run tallygate.',
    remedy: 'Use the pinned runtime (npx tallygate), or Node.js 24.11 or newer.',
    exit: 78,
  },
  SYSTEM_UNSUPPORTED: {
    meaning: 'The operating system lacks a feature that the agent requires.',
    remedy: 'Run the agent on Linux with /proc mounted.',
    exit: 78,
  },
  CONFIG_UNREADABLE: {
    meaning: 'The configuration file cannot be read or is not TOML.',
    remedy: 'Check the path, its permissions, and the line that the message names.',
    exit: 78,
  },
  CONFIG_INVALID: {
    meaning: 'A setting is unknown or has an invalid value.',
    remedy:
      'Correct the setting that the message names. `tallygate agent --help` and `tallygate cloud --help` list all settings.',
    exit: 78,
  },
  USAGE: {
    meaning: 'The command line is invalid.',
    remedy: 'See --help.',
    exit: 64,
  },
  TOTALS_TOO_MANY: {
    meaning: 'The usage has more different totals than the command keeps in memory.',
    remedy:
      'Select less with --since, --until or --instance, use fewer columns in --by, or add up the records of `tallygate usage export` in a database.',
    exit: 65,
  },
  FILE_INVALID: {
    meaning: 'A file with objects of the cloud is not well-formed, or an object in it is invalid.',
    remedy: 'Correct the lines that the message names. Nothing was changed.',
    http: 400,
    exit: 65,
  },
  ADDRESS_IN_USE: {
    meaning: 'Another process listens on this address and port.',
    remedy: 'Stop the other process, or choose another port (0 selects any free port).',
    exit: 75,
  },
  ADDRESS_NOT_PERMITTED: {
    meaning: 'The service cannot listen on this address.',
    remedy: 'Choose an address of this machine and a port that the user may open.',
    exit: 77,
  },
  SOCKET_IN_USE: {
    meaning: 'Another agent answers on this socket.',
    remedy: 'Stop the other agent first, or give this agent another socket path.',
    exit: 75,
  },
  SOCKET_PATH_OCCUPIED: {
    meaning: 'The socket path exists and is not a socket, or the socket cannot be created.',
    remedy:
      'Remove the file if it is not needed, or set socket.path to a path in a directory where the user of the agent may write.',
    exit: 73,
  },
  SOCKET_PASSED_UNUSABLE: {
    meaning: 'The agent cannot serve the socket that the service manager passed.',
    remedy:
      'Give the socket unit exactly one ListenStream= with a path, or disable the unit; the agent then creates its own socket.',
    exit: 78,
  },
  STATE_IN_USE: {
    meaning: 'Another process has locked this database.',
    remedy:
      'Stop the other agent, cloud or migration that uses it (with systemd: `sudo systemctl stop tallygate-agent.socket tallygate-agent`, or `tallygate-cloud`).',
    exit: 75,
  },
  STATE_UNWRITABLE: {
    meaning: 'The state directory cannot be created or written.',
    remedy:
      'Free space (`df`) or inodes (`df -i`) if the disk is full. Mount the file system for writing if it is read-only. Otherwise, set state.directory of the agent, or store.path of the cloud, to a directory that the user of the service owns.',
    exit: 73,
  },
  DATABASE_NEWER: {
    meaning: 'The database was written by a newer version of tallygate.',
    remedy:
      'Install that version again. To go back nevertheless, move this database away, keep it, and restore a backup that this version wrote (docs/how-to/update-devices.md).',
    exit: 65,
  },
  DATABASE_CORRUPT: {
    meaning: 'The database file is damaged or is not a tallygate database.',
    remedy:
      'Keep this file: it may contain unbilled usage. On a device, restart the agent, which sets a damaged file aside and delivers what can be proven, or restore a backup (`tallygate restore <backup>`). In the cloud, put a backup in its place (docs/how-to/operate-the-cloud.md).',
    exit: 65,
  },
  LEDGER_SALVAGED: {
    meaning:
      'The ledger of this device was damaged. The agent has moved it aside, and works with a new one that contains what can be proven.',
    remedy:
      'Look for the cause (disk, power, another program). Keep the file until an administrator has compared it with the cloud: it may contain unbilled usage. This warning ends when the file is moved away.',
  },
  CLOCK_WRONG: {
    meaning:
      'The clock of this machine differs from the time signed by the cloud. Decisions use the signed time; logs, certificates and other programs use the wrong one.',
    remedy:
      'Set the clock of the machine (with systemd: `sudo timedatectl set-ntp true`), and check the battery of the hardware clock.',
  },
  LEDGER_EDITED: {
    meaning:
      'The ledger says something else than the documents that the cloud signed. The agent uses the signed values.',
    remedy:
      "Run 'tallygate verify' to list every difference, and find out who changed the file. The condition ends when the device attaches again.",
    http: 409,
  },
  DATABASE_UNREACHABLE: {
    meaning:
      'The database server does not respond, has a full disk, is a standby, read-only or a former primary, or closed the connection. The operation in progress changed nothing.',
    remedy:
      'Send the request again. If the error persists and the message names a full disk, free space on the server; otherwise check that the server runs, that its address (with sslmode) is correct, and that it is the primary. The service resumes by itself once a primary responds.',
    http: 503,
    exit: 69,
    retry: 'later',
  },
  DATABASE_REFUSED: {
    meaning: 'The database server refused the login, the database, or a permission that the service needs.',
    remedy:
      'Correct the user, the database name and the password (in db_password_file, PGPASSWORD or the address), or grant the user the permission that the message names. If the message says that there is no encryption, add ?sslmode=verify-full to the address.',
    http: 503,
    exit: 77,
    retry: 'later',
  },
  DATABASE_UNSUITABLE: {
    meaning: 'The database does not meet the requirements of the service, such as its version or encoding.',
    remedy: 'Provide a database that meets the requirement in the message.',
    http: 503,
    exit: 78,
  },
  DATABASE_DIFFERS: {
    meaning: 'The database server is not a physical copy of the one that this node used first. Nothing was changed.',
    remedy:
      'Name only the servers of one PostgreSQL cluster in db: the primary and its physical standbys. If you moved the database to another cluster, or upgraded it with pg_upgrade, restart all nodes.',
    http: 503,
    exit: 78,
    retry: 'later',
  },
  DATABASE_WITHOUT_STANDBY: {
    meaning:
      'PostgreSQL would confirm the change before a standby has it, which db_standby forbids. Nothing was changed.',
    remedy:
      'Set synchronous_standby_names in PostgreSQL, or wait until the failover manager has a standby again. To work without one, set db_standby to false.',
    http: 503,
    exit: 69,
    retry: 'later',
  },
  CELL_REQUIRED: {
    meaning: 'The request concerns the data of one cell, and does not say which one. Nothing was changed.',
    remedy: 'Name one of the cells in the message with the header x-cell (commands: --cell), or name an instance.',
    http: 400,
  },
  CELL_DIFFERS: {
    meaning: 'The database belongs to another cell, or another cloud, than the settings name. Nothing was changed.',
    remedy:
      'Correct the setting cells: each database keeps its name, the first cell stays the first one, and each node has all cells. If a database was lost, restore it. A database that is a cell cannot be used with the setting db.',
    exit: 78,
  },
  STORE_NOT_MIGRATED: {
    meaning: 'The PostgreSQL database of the cloud is empty, but its directory contains a SQLite database with data.',
    remedy:
      "Run 'tallygate cloud migrate' to copy the data (docs/how-to/postgresql.md). To start empty, pass --store-start-empty true.",
    exit: 78,
  },
  MIGRATION_UNFINISHED: {
    meaning: 'The PostgreSQL database contains a part of the data of another database.',
    remedy: "Run 'tallygate cloud migrate' again with the same source, which continues it. Then start the cloud.",
    exit: 78,
  },
  MIGRATION_REFUSED: {
    meaning: 'The target of a migration contains other data, or its source has none. The command changed nothing.',
    remedy: "Create an empty database, and run 'tallygate cloud migrate' again with it.",
    exit: 65,
  },
  MIGRATION_DIFFERS: {
    meaning: 'The copied data are not the same as their source. No cloud starts on the copy.',
    remedy:
      "Stop every process that writes to either database, create an empty database, and run 'tallygate cloud migrate' again with it.",
    exit: 65,
  },
  OUTCOME_UNKNOWN: {
    meaning:
      'The database did not confirm a commit, so the service does not know whether the change was made and will last.',
    remedy:
      'Send a request that has an Idempotency-Key again with the same key. For others, check first whether the change was made.',
    http: 503,
  },
  BACKUP_UNUSABLE: {
    meaning: 'The file is not a backup of a ledger, or it is damaged. Nothing was replaced.',
    remedy: 'Use another backup that `tallygate backup` made.',
    exit: 65,
  },
  BACKUP_FOREIGN: {
    meaning:
      'The backup belongs to a different device than the ledger that it would replace, or to a copy of its device with other undelivered entries.',
    remedy:
      'Use a backup of this device, or another state directory. If the device was copied, start the agent until `tallygate status` shows that all is delivered, then restore.',
    exit: 65,
  },
  RESERVATION_OPEN: {
    meaning: 'The ledger to be replaced has an open reservation, so some usage may not be recorded in it yet.',
    remedy: 'Start the agent once and stop it cleanly, then restore.',
    exit: 75,
  },
  LEDGER_UNREADABLE: {
    meaning: 'The ledger does not exist or cannot be read.',
    remedy: 'Check the path, and that your user can read the file: the database belongs to the user of the agent.',
    exit: 66,
  },
  LOG_UNREADABLE: {
    meaning: 'No log lines can be read.',
    remedy:
      'Start the agent, or name a file that contains its output (--file). With systemd, run the command as root or as a member of systemd-journal, or name the unit (--unit).',
    exit: 66,
  },
  DECISION_UNKNOWN: {
    meaning: 'This device has no decision or refusal with that correlation id.',
    remedy:
      'Check the id (correlationId in the response, or the header x-tallygate-correlation-id of a refusal) and the device. explain.decisions sets how many decisions are kept; delivered usage is in the cloud (`tallygate usage export`).',
    http: 404,
    exit: 66,
  },
  DECISION_DIFFERS: {
    meaning: 'Replaying a recorded decision with its original rules and inputs gave a different result.',
    remedy:
      'Run `tallygate verify` to check the ledger: the database may have been altered. Send a `tallygate support-bundle` to support.',
    exit: 65,
  },
  ENGINE_DIFFERS: {
    meaning: 'Another version of the engine made the recorded decision, so this version cannot compare it.',
    remedy:
      'This is normal after an upgrade. Use `tallygate explain` of the version that decided to compare it; `tallygate verify` checks the ledger with any version.',
    exit: 69,
  },
  NOT_ENROLLED: {
    meaning: 'This device is not enrolled in a cloud yet.',
    remedy:
      'On a machine with an administration key, run `tallygate devices enrollment-token --instance INSTANCE | install -m 600 /dev/stdin token`. On this device, save this token as /etc/tallygate/enrollment-token, for the user of the agent only (with the package: `sudo install -m 400 -o tallygate token /etc/tallygate/enrollment-token`), or set TALLYGATE_AGENT_ENROLLMENT_TOKEN or enrollment.token_file. Then restart the agent (with systemd: `sudo systemctl restart tallygate-agent`).',
    http: 503,
    exit: 78,
  },
  ENROLLMENT_REFUSED: {
    meaning:
      'The cloud refused the enrollment token: it was used by another device, has expired, or was issued by another cloud.',
    remedy: 'Ask an administrator for a new token (`tallygate devices enrollment-token`).',
    http: 403,
    exit: 77,
  },
  DEVICE_UNKNOWN: {
    meaning:
      'A device enrolls again at a cloud that does not know it: another cloud, or one that was restored from a backup that is older than the enrollment.',
    remedy:
      'Use an enrollment token of the cloud that enrolled this device. If that cloud was restored, stop the agent, move its state directory away (it may contain unbilled usage), and enroll the device as a new one with a new token.',
    http: 403,
    exit: 77,
  },
  TRUST_MISMATCH: {
    meaning: 'The server at this address does not have a key that was pinned.',
    remedy: 'Check the address. If the cloud was set up again, enroll the device again.',
    http: 502,
    exit: 76,
  },
  DEVICE_LOCKED: {
    meaning: 'An administrator has locked this device. It grants no requests, but still delivers its backlog.',
    remedy:
      'Contact an administrator of the cloud: `tallygate audit list --device <name>` shows who locked it. The device resumes once it is unlocked and online.',
    http: 403,
    retry: 'online',
  },
  DEVICE_TERMINATED: {
    meaning:
      'An administrator has ended the service of this device. It still delivers its backlog, and receives no more grants.',
    remedy: 'Enroll the device again with a token that was made after the termination. Its backlog is not lost.',
    http: 403,
  },
  DEVICE_REVOKED: {
    meaning:
      'The key of this device was revoked permanently. The cloud accepts nothing from it, and grants it nothing.',
    remedy:
      'Contact an administrator of the cloud: `tallygate audit list --device <name>` shows who revoked it. To use the machine again: stop the agent, move its state directory away (it may contain unbilled usage), and start the agent with an empty directory and a new enrollment token. The cloud then treats it as a new device.',
    http: 403,
  },
  NOT_ON_DEVICE: {
    meaning: 'Devices do not offer this operation of the service API.',
    remedy: 'Send the request to the cloud, at the address that the message names.',
    http: 404,
  },
  POLICY_MISSING: {
    meaning: 'The device has not received the rules of this instance yet.',
    remedy: 'Connect the device to the cloud once.',
    http: 503,
    retry: 'online',
  },
  POLICY_STALE: {
    meaning: 'The rules on the device have been without confirmation from the cloud for too long.',
    remedy: 'Connect the device to the cloud. An administrator sets how long the rules can be used offline.',
    http: 503,
    retry: 'online',
  },
  POLICY_SIGNATURE_BAD: {
    meaning: 'The device refused a policy because it is not signed by a trusted key.',
    remedy: 'The current rules stay in force. Check which server responds at the cloud address.',
    http: 502,
    retry: 'later',
  },
  POLICY_REVISION_OLDER: {
    meaning: 'The device refused a policy because its revision is not newer than the one in force.',
    remedy: 'The current rules stay in force. Check whether the cloud was restored from a backup.',
    http: 502,
    retry: 'later',
  },
  POLICY_INCOMPLETE: {
    meaning: 'The device refused a policy because it is malformed or refers to something that it does not contain.',
    remedy: 'The current rules stay in force. Correct the rules in the cloud.',
    http: 502,
    retry: 'later',
  },
  AGENT_ENGINE_OLD: {
    meaning: 'The engine of the agent is too old for the rules of the cloud, so the device cannot get new rules.',
    remedy:
      'Upgrade the agent. Until then the device uses its current rules, for as long as they can be used without confirmation.',
    http: 409,
  },
  CLOUD_ENGINE_OLD: {
    meaning: 'The rules were made for an engine that is too old for the agent.',
    remedy: 'Upgrade the cloud, or install the previous version of the agent.',
    http: 409,
  },
  NOT_ATTACHED: {
    meaning:
      'The device is not attached to the cloud: it has not attached yet, its ledger was replaced, for example by a backup, or the cloud has fenced it.',
    remedy: 'Connect the device to the cloud; it attaches by itself.',
    http: 503,
    retry: 'online',
  },
  NOT_RECORDED: {
    meaning: 'The decision or change could not be written to the disk, so nothing was granted or changed.',
    remedy: 'Free disk space or repair the disk, then send the same request again.',
    http: 503,
    retry: 'later',
  },
  DISK_FAILED: {
    meaning:
      'A disk read or write failed and its outcome is unknown, or another program removed a file in use, so the process stops. The next start checks its state.',
    remedy: 'Let the service manager restart the process. If the error recurs, check the disk and the kernel log.',
    http: 503,
    exit: 74,
    retry: 'later',
  },
  OPEN_FILES_USED_UP: {
    meaning: 'The process, or the whole system, has as many open files as it may have.',
    remedy:
      'Raise the limit (LimitNOFILE of the unit, --ulimit of the container, ulimit -n of the shell, fs.file-max of the system), then start it again.',
    http: 503,
    exit: 71,
    retry: 'later',
  },
  CALLER_NOT_ALLOWED: {
    meaning: 'The user of the calling process does not have permission to do this on the agent socket.',
    remedy: 'Run the application as another user, or give this user permission (settings callers.*).',
    http: 403,
    exit: 77,
  },
  CALLER_UNMAPPED: {
    meaning:
      'The user namespace of the agent has no separate id for the calling user, so the agent cannot distinguish it from other users.',
    remedy:
      'Map this user into the container of the agent (for instance podman --uidmap), run the application in the same container, or run the agent outside.',
    http: 403,
    exit: 77,
  },
  CALLER_LIMITED: {
    meaning: 'The calling user exceeded its limit of requests or tokens for this time window.',
    remedy: 'Wait for the time in Retry-After, or raise the limit of this user (setting callers.limits).',
    http: 429,
    retry: 'later',
  },
  REQUESTERS_LIMITED: {
    meaning:
      'Applications have named too many new requesters of line items with a consumption limit on this device: 16,000 at once, or 5,000 an hour after that and after a restart of the agent. Requesters that have a balance are served.',
    remedy:
      'Try again after the time in Retry-After. Applications must name users or machines as requesters, not requests. The setting callers.limits can bind an application to one requester.',
    http: 429,
    retry: 'later',
  },
  SESSIONS_LIMITED: {
    meaning: 'The caller has as many open sessions as its limit allows.',
    remedy:
      'End a session that is no longer needed. On a device, an administrator can raise the limit of the user (setting callers.limits).',
    http: 429,
  },
  REQUEST_TOO_LARGE: {
    meaning: 'The request needs tokens of more accounts than one segment of the device can name.',
    remedy: 'Split it into several requests with fewer items.',
    http: 413,
  },
  LABEL_INVALID: {
    meaning:
      'A label is not key=value with the permitted characters, has several values, is set and removed at once, or a device would have too many labels.',
    remedy:
      'Write labels like site=berlin, without spaces. Remove labels that are not needed with tallygate devices label DEVICE --remove KEY.',
    http: 400,
    exit: 64,
  },
  IDEMPOTENCY_CONFLICT: {
    meaning: 'This idempotency key was already used with a different request.',
    remedy: 'Use a new key, or the next request number, for each new request. Repeat one only with the same body.',
    http: 409,
  },
  IDEMPOTENCY_IN_PROGRESS: {
    meaning: 'A request with this idempotency key is still being decided.',
    remedy: 'Repeat the same request under the same key: it gets the response of the first one.',
    http: 409,
    retry: 'later',
  },
  CLOUD_UNREACHABLE: {
    meaning: 'The cloud does not respond, or responds with a temporary error.',
    remedy:
      'Check the network, the address and TLS, or the cloud if it responded with an error. `tallygate status` on the device shows whether and how long it still decides.',
    http: 502,
    exit: 69,
    retry: 'later',
  },
  SERVICE_UNREACHABLE: {
    meaning: 'A command for administrators gets no response from the cloud.',
    remedy:
      'Check that the cloud runs, its address (`tallygate context list`, --url, TALLYGATE_URL) and the network. Then run the command again.',
    http: 502,
    exit: 69,
    retry: 'later',
  },
  CERTIFICATE_REFUSED: {
    meaning: 'A command does not trust the TLS certificate of the server.',
    remedy:
      'Renew the certificate of the server if it has expired, use a host name of the certificate, or name its authority with --ca-file (`tallygate context add` stores it). Check the clock of this machine.',
    http: 502,
    exit: 69,
  },
  CERTIFICATE_NOT_VALID: {
    meaning:
      'The TLS certificate of a service is expired, not valid yet, about to expire, or not for the host name that clients use. The service keeps running.',
    remedy:
      'Renew the certificate, or change its names or the public URL, then reload the service. Check the clock of this machine.',
  },
  SOURCE_UNREACHABLE: {
    meaning: 'The service from which data is imported does not respond, or not completely.',
    remedy: 'Check its address and the network. Then run the command again: it continues where it stopped.',
    http: 502,
    exit: 69,
    retry: 'later',
  },
  SOURCE_REFUSED: {
    meaning: 'The service from which data is imported refuses the request.',
    remedy: 'Check its address, the API version, and that it knows the key and permits it to read.',
    http: 502,
    exit: 77,
  },
  SOURCE_UNEXPECTED: {
    meaning: 'The service from which data is imported sent an answer that this program does not understand.',
    remedy:
      'Check that the address is that of a monetization service, prefix included. Nothing of the instance that the answer belongs to was imported.',
    http: 502,
    exit: 76,
  },
  IMPORT_CONFLICT: {
    meaning: 'Something cannot be imported without a decision: the output names it. The rest was compared or imported.',
    remedy: 'Resolve each conflict that the output names, and run the command again.',
    http: 409,
    exit: 65,
  },
  BROKER_UNREACHABLE: {
    meaning: 'The MQTT broker for change notifications does not respond, or closes every connection.',
    remedy:
      'Check its address, the network, TLS and its MQTT version. Until then, the device finds changes at its next sync.',
    http: 502,
    retry: 'later',
  },
  BROKER_REFUSED: {
    meaning:
      'The MQTT broker for change notifications refused the user name, password or client id, or denied a topic.',
    remedy:
      'If push.password_file is set, correct the password in it, or push.username. Otherwise the device signs in with its own key: run tallygate doctor to see whether the cloud accepts it, or correct the permissions at the broker. Until then, the device finds changes at its next sync.',
    http: 502,
  },
  BROKER_NOT_TRUSTED: {
    meaning: 'The certificate of the MQTT broker has expired, is for another name, or is from an untrusted authority.',
    remedy:
      'Renew the certificate, or add its authority: tls.ca_file of the agent, push.ca_file of the cloud. Until then, the device finds changes at its next sync.',
    http: 502,
  },
  AGENT_UNREACHABLE: {
    meaning: 'No agent responds on this socket.',
    remedy:
      'Start the agent, or restart one that hangs (with systemd: `sudo systemctl restart tallygate-agent.socket tallygate-agent`). If it does not start, its output shows why (with systemd: `tallygate logs`). Name the socket of another agent with --socket or TALLYGATE_SOCKET.',
    http: 502,
    exit: 69,
    retry: 'later',
  },
  AGENT_STARTING: {
    meaning: 'The agent starts and is checking its ledger. It answers requests when the check is done.',
    remedy: 'Wait. Do not restart the agent: the check would begin again.',
    http: 503,
    exit: 75,
    retry: 'later',
  },
  SOCKET_NOT_PERMITTED: {
    meaning: 'The permissions of the socket of the agent do not include this user.',
    remedy:
      'Run the command as root or as the user of the agent, or add this user to the group of the socket and sign in again (with the package: `sudo usermod -aG tallygate "$USER"`). The setting socket.mode gives all users access.',
    http: 403,
    exit: 77,
  },
  ANSWER_UNEXPECTED: {
    meaning: 'The program does not understand the response of the service.',
    remedy: 'Check that the address belongs to a tallygate service with a compatible version.',
    http: 502,
    exit: 76,
  },
  DEMO_FAILED: {
    meaning: 'The demo did not finish, or a service of `tallygate dev` did not run.',
    remedy: 'Run it again with --keep (demo) or --directory (dev), and read the logs in that directory.',
    exit: 70,
  },
  KEY_UNUSABLE: {
    meaning: 'The file does not contain a private key that can sign access tokens.',
    remedy:
      'Check the path, and that this user may read the file. It must be a PEM file with an RSA key of 2048 bits or more, or a P-256 key, without a passphrase.',
    exit: 66,
  },
  SIGNING_KEY_DIFFERS: {
    meaning: 'The devices of this store do not trust the signing key of this node.',
    remedy:
      'Copy signing-key.pem from the directory or a backup of another node to the path that the message names. If the key is lost, start with --keys-replace-signing and the thumbprint of the replacement key, and enroll the devices again.',
    exit: 78,
  },
  DEVICE_KEY_UNUSABLE: {
    meaning:
      'The private key file of this device is missing, readable by other users, or does not contain a key of the right kind.',
    remedy:
      'Put the newest key file back. If it is lost, move the state directory away (it may contain unbilled usage), and enroll the device again with an empty one and a new token.',
    exit: 66,
  },
  DEVICE_KEY_REFUSED: {
    meaning: 'The cloud does not accept the next key of this device.',
    remedy: 'Read the message. The device keeps using its current key, and tries again by itself.',
    http: 409,
    retry: 'later',
  },
  DEVICE_KEY_REPLACED: {
    meaning: 'This key was replaced by another one of the same device.',
    remedy:
      'If the key file was restored from a backup, put the newest key file back. Otherwise the key was copied: revoke the device, and enroll it again with an empty state directory.',
    http: 401,
  },
  DEVICE_KEY_PROVIDED: {
    meaning: 'The operator provides the key of this device (device.key_file), so the agent cannot make the next one.',
    remedy: 'Set device.next_key_file to the next key, restart the agent, and run `tallygate rotate-key` again.',
    http: 409,
  },
  DEVICE_FORKED: {
    meaning:
      'The cloud has a different history of this device: the state of the device was copied, or restored from a backup.',
    remedy:
      'Unless you have just restored a backup, look for a second machine with the same state: stop its agent, and enroll it with an empty state directory. The cloud bills the usage of both. A restart of this agent clears the message.',
    http: 409,
  },
  USAGE_UNBILLED: {
    meaning:
      'The cloud did not bill some entries of this device: they are inconsistent, or use more than the device could have been granted.',
    remedy:
      'An administrator sees the entries and the reason in the console of the cloud (`tallygate console`), on the page of this device.',
    http: 409,
  },
  ATTACH_TOO_OFTEN: {
    meaning:
      'The device has attached with a new state too often in a short time. Two devices probably share one identity.',
    remedy:
      'Look for a second machine with the same state: stop its agent, and enroll it with an empty state directory. This device then attaches again by itself, within minutes after the time that the message names.',
    http: 429,
    retry: 'later',
  },
  SYNC_TOO_OFTEN: {
    meaning:
      'The device has sent too many segments that contradict what the cloud received, or that it cannot read, or has named too many new requesters of line items with a consumption limit.',
    remedy:
      'The device tries again by itself after the time in Retry-After. Look for a second device with the same state, or for a stolen device key, and whether applications name a new requester in each request.',
    http: 429,
    retry: 'later',
  },
  STORE_RESTORED: {
    meaning:
      'The database of the cloud was restored from a backup: its sales mark is missing or is ahead of the database, or a device has shown a document that the cloud signed and no longer knows.',
    remedy:
      'The cloud recovers by itself and sells only tokens that are certain to be unsold. Run `tallygate recovery show <instance>` to see which devices it waits for. `tallygate recovery end <instance>` ends the recovery at the risk that it shows.',
    http: 409,
    retry: 'later',
  },
  CLOCK_JUMPED: {
    meaning:
      'The wall clock of a cloud node has jumped by more than 5 minutes against the time since boot. The sweeps of this node are paused.',
    remedy:
      'Correct the clock; the sweeps resume by themselves. If the clock is already correct, run `tallygate sweeps confirm clock`.',
    http: 503,
    retry: 'later',
  },
  CLOCK_BEHIND_RECORD: {
    meaning: 'A cloud node started with a wall clock before the newest time in its store. Its sweeps are paused.',
    remedy:
      'Correct the clock; the sweeps resume by themselves. If the clock is already correct, run `tallygate sweeps confirm clock`.',
    http: 503,
    retry: 'later',
  },
  CLOCK_AHEAD_OF_RECORD: {
    meaning:
      'A cloud node started with a wall clock more than 7 days, or half of edge.settle_after, after the newest time in its store. Its sweeps are paused.',
    remedy:
      'If the cloud was off that long, or its store comes from an old backup, run `tallygate sweeps confirm clock`. Otherwise correct the clock and restart the cloud.',
    http: 503,
    retry: 'later',
  },
  CLOCK_DIFFERS_FROM_DATABASE: {
    meaning:
      'The wall clocks of a cloud node and its database differ by more than 5 minutes. The sweeps of this node are paused.',
    remedy: 'Correct both clocks, for example with NTP; the sweeps resume by themselves.',
    http: 503,
    retry: 'later',
  },
  SETTLEMENT_TOO_LARGE: {
    meaning:
      'The number of silent devices that are due for settlement exceeds edge.settle_percent_max, so the cloud settles no devices.',
    remedy:
      'Find out why so many devices are silent. To settle the devices that are due now, run `tallygate sweeps confirm settlement`.',
    http: 503,
    retry: 'later',
  },
  CLOUD_BEHIND: {
    meaning: 'The cloud no longer has segments that it had acknowledged: it was restored from a backup.',
    remedy:
      'The device sends these segments again. Recover segments that the device no longer keeps from the backups of the cloud.',
    http: 409,
    retry: 'later',
  },
  SESSION_ENDED: {
    meaning: 'The cloud has ended the session of this device.',
    remedy: 'The device opens another session. An administrator can see the reason in the cloud.',
    http: 409,
    retry: 'later',
  },
  SESSION_LOCKED: {
    meaning: 'The session of this device is locked in the cloud.',
    remedy:
      'Ask an administrator to unlock the session (`tallygate sessions unlock SESSION`). The device keeps trying until then.',
    http: 409,
    retry: 'later',
  },
  SESSION_NOT_OPERABLE: {
    meaning: 'The session accepts no more requests: it was terminated, failed or disconnected, or is locked.',
    remedy: 'Stop the use that this session paid for, and create another session.',
    http: 409,
  },
  SESSION_ON_DEVICE: {
    meaning:
      'This session belongs to the agent of a device, which accepts its requests. The cloud can only show, lock and end it.',
    remedy: 'Send the request to the socket of the agent that opened the session.',
    http: 409,
  },
  GRANTS_FORGOTTEN: {
    meaning:
      'A device reports usage that this cloud, restored from a backup, could never have granted with its current rules.',
    remedy:
      'Make the changes since the backup again: quantities, overdrafts, allocations. Or revoke the device with `tallygate devices revoke <device>`.',
    http: 503,
    retry: 'later',
  },
  SEGMENT_REJECTED: {
    meaning: 'A sync message is malformed, not signed by its device, or inconsistent.',
    remedy: 'Run `tallygate verify` on the device: its database may have been altered.',
    http: 422,
  },
})

export type ErrorCode = keyof typeof ERRORS

export function isErrorCode(code: string): code is ErrorCode {
  return Object.hasOwn(ERRORS, code)
}

/** The remedy to show after the message of an error. Empty: the message ends with it. */
export function remedyAfter(code: string): string {
  return isErrorCode(code) && code !== 'CONFLICT' ? ERRORS[code].remedy : ''
}

/** An error that a user may see. Details must contain no secrets: they are logged and may be sent. */
export class CodedError extends Error {
  readonly code: ErrorCode
  readonly details: Readonly<Record<string, unknown>>

  constructor(code: ErrorCode, message: string, options: { cause?: unknown; details?: Record<string, unknown> } = {}) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause })
    this.name = 'CodedError'
    this.code = code
    this.details = options.details ?? {}
  }

  get httpStatus(): number {
    return ERRORS[this.code].http
  }

  get exitCode(): number {
    return ERRORS[this.code].exit
  }
}

export function messageOf(error: unknown): string {
  if (!(error instanceof Error)) return String(error)
  // A host name with several addresses to which Node cannot connect.
  if (error instanceof AggregateError && error.message === '') return error.errors.map(messageOf).join('; ')
  return error.message
}

/** Undefined: its message names the cause. Only the text: errors of Node carry received bytes and certificates. */
export function causeText({ cause, message }: CodedError): string | undefined {
  const text = cause === undefined ? '' : messageOf(cause)
  return message.includes(text) ? undefined : text
}

/** Error body, unless the interface defines another shape. */
export const errorBody = z.object({ message: z.string(), code: z.string() })

/** @param root name of the value in the message. @throws CodedError BAD_REQUEST */
export function parseInput<T>(schema: z.ZodType<T>, value: unknown, root = 'body'): T {
  const parsed = schema.safeParse(value)
  if (parsed.success) return parsed.data
  throw new CodedError('BAD_REQUEST', firstProblem(parsed.error, root))
}

/** A problem of a body that its schema does not find. @param path of the field; empty: the body as a whole */
export function bodyError(problem: string, path: readonly PropertyKey[] = []): CodedError {
  return new CodedError('BAD_REQUEST', `body${placeOf(path)}: ${problem}`, { details: { path, problem } })
}

/** The first problem that zod found, as `path: what is wrong`, without the offending value. */
export function firstProblem(error: z.ZodError, root = 'body'): string {
  const { path, message } = firstIssue(error)
  return `${root}${placeOf(path)}: ${message}`
}

function placeOf(path: readonly PropertyKey[]): string {
  return path.map((key) => (typeof key === 'number' ? `[${key}]` : `.${String(key)}`)).join('')
}

export function firstIssue(error: z.ZodError): Pick<z.core.$ZodIssue, 'path' | 'message'> {
  const [issue] = error.issues
  return issue === undefined ? { path: [], message: 'invalid' } : innermost(issue)
}

/** For a union, reports the alternative that matched furthest. */
function innermost(issue: z.core.$ZodIssue): Pick<z.core.$ZodIssue, 'path' | 'message'> {
  if (issue.code !== 'invalid_union') return issue
  const [closest] = issue.errors
    .flatMap(([first]) => (first === undefined ? [] : [innermost(first)]))
    .toSorted((a, b) => b.path.length - a.path.length)
  return closest === undefined ? issue : { ...closest, path: [...issue.path, ...closest.path] }
}
