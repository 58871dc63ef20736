/**
 * The one catalogue of error codes, for every surface: HTTP, socket, CLI, configuration and database files. An entry says
 * what happened, who acts and whether to try again; the page `docs/reference/errors.md` is generated from it. A code, once shipped,
 * keeps its meaning.
 */
import { z } from 'zod'

interface CatalogueEntry {
  /** What happened, in one sentence. */
  readonly meaning: string
  /** What the reader should do. */
  readonly remedy: string
  /** HTTP status where the code leaves by HTTP. */
  readonly http: number
  /** Exit code of the process where the code ends it; 1 if absent. */
  readonly exit?: number
  /** `later`: the same call may succeed unchanged. `online`: once the device has reached the cloud. `no`: change something first. */
  readonly retry: 'no' | 'later' | 'online'
}

const catalogue = <T extends Record<string, CatalogueEntry>>(entries: T): T => entries

export const ERRORS = catalogue({
  BAD_JSON: {
    meaning: 'The body is not well-formed JSON.',
    remedy: 'Send one JSON value in UTF-8.',
    http: 400,
    retry: 'no',
  },
  BAD_REQUEST: {
    meaning: 'The request does not have the form that this operation takes.',
    remedy: 'Correct the field that the message names.',
    http: 400,
    retry: 'no',
  },
  BODY_TOO_LARGE: {
    meaning: 'The body is larger than the limit.',
    remedy: 'Send less in one request, or raise the limit in the configuration.',
    http: 413,
    retry: 'no',
  },
  MEDIA_TYPE_NOT_SUPPORTED: {
    meaning: 'The body is not declared as application/json, or is compressed where that is not taken.',
    remedy: 'Send the header Content-Type: application/json, and the body as it is.',
    http: 415,
    retry: 'no',
  },
  METHOD_NOT_ALLOWED: {
    meaning: 'There is something at this path, but not by this method.',
    remedy: 'Use a method that the header Allow names.',
    http: 405,
    retry: 'no',
  },
  HEADERS_TOO_LARGE: {
    meaning: 'The request line and the headers are larger than 16 KiB together.',
    remedy: 'Send a shorter path, and a token with fewer claims.',
    http: 431,
    retry: 'no',
  },
  EXPECTATION_UNKNOWN: {
    meaning: 'The header Expect asks for something that the service does not know.',
    remedy: 'Leave the header away, or send 100-continue.',
    http: 417,
    retry: 'no',
  },
  REQUEST_TOO_SLOW: {
    meaning: 'The request did not arrive in the time that it may take.',
    remedy: 'Send it again over a faster connection, or raise the limit in the configuration.',
    http: 408,
    retry: 'later',
  },
  NOT_ACCEPTABLE: {
    meaning: 'The service has the answer in none of the media types that the header Accept names.',
    remedy: 'Accept text/csv or application/x-ndjson, or say format=csv or format=ndjson.',
    http: 406,
    retry: 'no',
  },
  OUTPUT_UNWRITABLE: {
    meaning: 'The file that a command was told to write cannot be written.',
    remedy:
      'Make room, or correct the path or its permissions, and run the command again; an export with the same cursor.',
    http: 500,
    exit: 73,
    retry: 'no',
  },
  CONFIG_NOT_RELOADED: {
    meaning: 'A running service was told to reload its settings, and something in them is wrong.',
    remedy: 'Correct what the message names and reload again; until then the settings from before stay in force.',
    http: 500,
    retry: 'no',
  },
  CONFIG_NEEDS_RESTART: {
    meaning: 'Settings were changed that a running service cannot take over.',
    remedy: 'Restart the service when it suits, or undo the change and reload.',
    http: 500,
    retry: 'no',
  },
  WRITE_BUDGET_EXCEEDED: {
    meaning: 'The agent writes more to its storage than its write budget allows for a day.',
    remedy:
      'Compare bytes per decision with the page on operations; use durability = "reserved", or raise state.write_budget if the storage endures it.',
    http: 500,
    retry: 'no',
  },
  BACKUP_OVERDUE: {
    meaning: 'The last backup of the ledger is older than backup.max_age, or none is known.',
    remedy: 'Run tallygate backup, by a timer for instance, or change backup.max_age. Nothing is refused meanwhile.',
    http: 500,
    retry: 'no',
  },
  CURSOR_UNKNOWN: {
    meaning: 'The cursor is not one that this service has given, or it is of a database that has since been replaced.',
    remedy: 'Use the cursor of the export before, of the same twin; without one, everything is exported again.',
    http: 400,
    retry: 'no',
  },
  USAGE_FORGOTTEN: {
    meaning:
      'Usage up to this cursor was exported before the service was restored from an older backup, which has forgotten it.',
    remedy:
      'Go on with the cursor that the message names, the end of the backup. Devices report again what they keep: a line that was exported before has the same device, incarnation, entry and correlation id, and counts once.',
    http: 409,
    retry: 'no',
  },
  TOKEN_MISSING: {
    meaning: 'The request carries no bearer token.',
    remedy: 'Send the header Authorization: Bearer <JWT>.',
    http: 401,
    retry: 'no',
  },
  TOKEN_INVALID: {
    meaning: 'The bearer token is malformed, signed by an unknown key, or its signature does not fit.',
    remedy: 'Make a token with the private key of a registered public key (see `tallygate token`).',
    http: 401,
    retry: 'no',
  },
  TOKEN_NOT_IN_TIME: {
    meaning: 'The bearer token has expired or is not valid yet.',
    remedy: 'Make a new token; check the clock of the machine that made it.',
    http: 401,
    retry: 'no',
  },
  ACCESS_KIND_WRONG: {
    meaning: 'The token is valid but of the wrong access kind for this operation.',
    remedy: 'Use an AdministrationAccess token, or a ClientAccess token where the operation takes one.',
    http: 403,
    retry: 'no',
  },
  INSTANCE_NOT_IN_TOKEN: {
    meaning: 'The audience of the client token does not contain this instance.',
    remedy: 'Use a token whose aud claim lists the instance.',
    http: 403,
    retry: 'no',
  },
  INSTANCE_HEADER_MISSING: {
    meaning: 'A client token needs the header x-instance-id on this operation.',
    remedy: 'Send x-instance-id with the UUID of the instance.',
    http: 400,
    retry: 'no',
  },
  LAST_ADMINISTRATION_KEY: {
    meaning: 'The last administration key cannot be deleted.',
    remedy: 'Register another administration key first.',
    http: 403,
    retry: 'no',
  },
  NOT_FOUND: {
    meaning: 'There is no such resource or route.',
    remedy: 'Check the identifiers and the path.',
    http: 404,
    retry: 'no',
  },
  CONFLICT: {
    meaning: 'The resource is in a state that does not allow this.',
    remedy: 'Read the resource again and follow the message.',
    http: 409,
    retry: 'no',
  },
  KEY_BUSY: {
    meaning: 'More requests of one caller are under way than its share of the service allows.',
    remedy:
      'Wait for the time in Retry-After, send fewer at a time, and send bodies whole; the operator may raise http.requests_per_key_max.',
    http: 429,
    retry: 'later',
  },
  OVERLOADED: {
    meaning: 'More requests are waiting than the limit allows.',
    remedy: 'Wait for the time in Retry-After and send the same request again.',
    http: 503,
    retry: 'later',
  },
  INTERNAL: {
    meaning: 'The service met a condition that it does not handle.',
    remedy: 'Try again later; report the correlation id of the log line if it persists.',
    http: 500,
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
    meaning: 'This Node cannot run tallygate.',
    remedy: 'Use the pinned runtime (npx tallygate), or Node 24 or newer.',
    http: 500,
    exit: 78,
    retry: 'no',
  },
  SYSTEM_UNSUPPORTED: {
    meaning: 'The operating system lacks something that the agent cannot do without.',
    remedy: 'Run the agent on Linux with /proc mounted.',
    http: 500,
    exit: 78,
    retry: 'no',
  },
  CONFIG_UNREADABLE: {
    meaning: 'The configuration file cannot be read or is not TOML.',
    remedy: 'Check the path, its permissions, and the line that the message names.',
    http: 500,
    exit: 78,
    retry: 'no',
  },
  CONFIG_INVALID: {
    meaning: 'A setting is unknown or has a value that it does not take.',
    remedy: 'Correct the setting that the message names; docs/reference/configuration.md lists them all.',
    http: 500,
    exit: 78,
    retry: 'no',
  },
  USAGE: {
    meaning: 'The command line is not understood.',
    remedy: 'See --help.',
    http: 500,
    exit: 64,
    retry: 'no',
  },
  ADDRESS_IN_USE: {
    meaning: 'Another process listens on this port.',
    remedy: 'Stop it, or choose another port (0 takes any free one).',
    http: 500,
    exit: 75,
    retry: 'no',
  },
  ADDRESS_NOT_PERMITTED: {
    meaning: 'This address cannot be listened on.',
    remedy: 'Choose an address of this machine and a port that the user may open.',
    http: 500,
    exit: 77,
    retry: 'no',
  },
  SOCKET_IN_USE: {
    meaning: 'Another agent answers on this socket.',
    remedy: 'Stop it first, or give this agent another socket path.',
    http: 500,
    exit: 75,
    retry: 'no',
  },
  SOCKET_PATH_OCCUPIED: {
    meaning: 'The socket path exists and is not a socket, or cannot be created.',
    remedy: 'Remove the file by hand if nothing needs it, or choose another path.',
    http: 500,
    exit: 73,
    retry: 'no',
  },
  SOCKET_PASSED_UNUSABLE: {
    meaning: 'The service manager has passed a socket that the agent cannot serve.',
    remedy: 'Give the socket unit one ListenStream= with a path, or disable it: the agent makes its own socket then.',
    http: 500,
    exit: 78,
    retry: 'no',
  },
  STATE_IN_USE: {
    meaning: 'Another process holds this database.',
    remedy: 'Stop the other agent or twin that uses this directory.',
    http: 500,
    exit: 75,
    retry: 'no',
  },
  STATE_UNWRITABLE: {
    meaning: 'The state directory cannot be created or written.',
    remedy: 'Give the service user a directory that it owns.',
    http: 500,
    exit: 73,
    retry: 'no',
  },
  DATABASE_NEWER: {
    meaning: 'The database was written by a newer version of tallygate.',
    remedy: 'Install that version again, or restore a backup that this version wrote.',
    http: 500,
    exit: 65,
    retry: 'no',
  },
  DATABASE_CORRUPT: {
    meaning: 'The database file is damaged or is not a tallygate database.',
    remedy: 'Keep the file, restore a backup or move the file away; unbilled usage in it may be lost.',
    http: 500,
    exit: 65,
    retry: 'no',
  },
  DATABASE_UNREACHABLE: {
    meaning: 'The database server does not answer, or ended the connection; what was under way has changed nothing.',
    remedy: 'Check that it runs and that its address is right; the service goes on by itself when it answers again.',
    http: 503,
    exit: 69,
    retry: 'later',
  },
  DATABASE_REFUSED: {
    meaning: 'The database server refuses the login, the database, or a right that the service needs.',
    remedy: 'Correct user, password and name of the database, or give the user the right that the message names.',
    http: 503,
    exit: 77,
    retry: 'later',
  },
  DATABASE_UNSUITABLE: {
    meaning: 'The database lacks something that the service rests on, such as the version or the encoding.',
    remedy: 'Give it a database as the message asks for.',
    http: 503,
    exit: 78,
    retry: 'no',
  },
  OUTCOME_UNKNOWN: {
    meaning: 'The connection to the database was lost during a commit, and its outcome could not be learned.',
    remedy: 'Look whether the change took effect before it is sent again.',
    http: 503,
    retry: 'no',
  },
  BACKUP_FOREIGN: {
    meaning: 'The backup is of another device than the ledger that it should replace.',
    remedy: 'Take the backup of this device, or another state directory.',
    http: 500,
    exit: 65,
    retry: 'no',
  },
  BLOCK_OPEN: {
    meaning: 'Use that the ledger to be replaced has reserved may not be recorded in it yet.',
    remedy: 'Start the agent once and stop it cleanly, then restore.',
    http: 500,
    exit: 75,
    retry: 'no',
  },
  LEDGER_UNREADABLE: {
    meaning: 'The ledger to be checked is not there, or cannot be read.',
    remedy: 'Check the path, and that the user may read it: the database belongs to the user of the agent.',
    http: 500,
    exit: 66,
    retry: 'no',
  },
  LOG_UNREADABLE: {
    meaning: 'There are no log lines that can be read.',
    remedy:
      'Run it as root or as a member of systemd-journal, name the unit (--unit) or the file (--file), or start the agent.',
    http: 500,
    exit: 66,
    retry: 'no',
  },
  DECISION_UNKNOWN: {
    meaning: 'This device keeps no decision, and no refusal, with that correlation id.',
    remedy:
      'Check the id (correlationId of the answer, header x-tallygate-correlation-id of a refusal) and the device. explain.decisions sets how many are kept; delivered usage is in the cloud (`tallygate usage export`).',
    http: 404,
    exit: 66,
    retry: 'no',
  },
  DECISION_DIFFERS: {
    meaning: 'A recorded decision, made again from the rules and facts that were kept, comes out otherwise.',
    remedy:
      'Check the ledger with `tallygate verify`: the database may have been altered. Send a `tallygate support-bundle`.',
    http: 500,
    exit: 65,
    retry: 'no',
  },
  NOT_ENROLLED: {
    meaning: 'This device does not belong to a cloud yet.',
    remedy: 'Give the agent an enrollment token (see `tallygate devices enrollment-token`).',
    http: 503,
    exit: 78,
    retry: 'no',
  },
  ENROLLMENT_REFUSED: {
    meaning: 'The cloud refused the enrollment token: used by another device, expired, or not its own.',
    remedy: 'Have an administrator make a fresh token.',
    http: 403,
    exit: 77,
    retry: 'no',
  },
  TRUST_MISMATCH: {
    meaning: 'What answers at this address does not hold a key that was pinned.',
    remedy: 'Check the address; if the cloud was set up anew, enroll the device again.',
    http: 502,
    exit: 76,
    retry: 'no',
  },
  DEVICE_LOCKED: {
    meaning: 'An administrator has locked this device: it grants nothing, and delivers what it owes.',
    remedy: 'Ask the administrator that the message names; the device goes on as soon as it is unlocked and online.',
    http: 403,
    retry: 'online',
  },
  DEVICE_TERMINATED: {
    meaning:
      'An administrator has ended the service of this device: it delivers what it owes, and gets no more grants.',
    remedy: 'Enroll the device again with a token that was made since; nothing that it owes is lost.',
    http: 403,
    retry: 'no',
  },
  DEVICE_REVOKED: {
    meaning:
      'The key of this device was revoked, for good: the cloud takes nothing from it any more, and grants nothing.',
    remedy:
      'Ask the administrator that the message names. To take the machine into service again, stop the agent, put its state directory aside (it may hold use that is not billed), and start the agent with an empty one and a fresh enrollment token: it is another device then.',
    http: 403,
    retry: 'no',
  },
  INSTANCE_UNKNOWN: {
    meaning: 'This device does not serve that instance.',
    remedy: 'Use an instance id that the device was enrolled for.',
    http: 404,
    retry: 'no',
  },
  POLICY_MISSING: {
    meaning: 'The device has not received the rules of this instance yet.',
    remedy: 'Let the device reach the cloud once.',
    http: 503,
    retry: 'online',
  },
  POLICY_STALE: {
    meaning: 'The rules on the device are older than they may be used for.',
    remedy: 'Let the device reach the cloud; the administrator sets the grace.',
    http: 503,
    retry: 'online',
  },
  POLICY_SIGNATURE_BAD: {
    meaning: 'A policy was refused because it is not signed by a trusted key.',
    remedy: 'The rules in force stay; check what answers at the cloud address.',
    http: 502,
    retry: 'later',
  },
  POLICY_REVISION_OLDER: {
    meaning: 'A policy was refused because its revision is not above the one in force.',
    remedy: 'The rules in force stay; the cloud may have been restored from a backup.',
    http: 502,
    retry: 'later',
  },
  POLICY_INCOMPLETE: {
    meaning: 'A policy was refused because it is malformed or refers to something that it does not contain.',
    remedy: 'The rules in force stay; correct the rules in the cloud.',
    http: 502,
    retry: 'later',
  },
  NOT_ATTACHED: {
    meaning: 'The device has no standing at the cloud at the moment: it has not attached yet, or was fenced.',
    remedy: 'Let the device reach the cloud; it attaches by itself.',
    http: 503,
    retry: 'online',
  },
  NOT_RECORDED: {
    meaning: 'The decision could not be written to the ledger, so nothing was granted.',
    remedy: 'Free disk space or repair the disk; the same request may then be sent again.',
    http: 503,
    retry: 'later',
  },
  DISK_FAILED: {
    meaning: 'A write failed in a way that leaves its outcome unknown, so the process stops and opens its state again.',
    remedy: 'Let the supervisor start it again; check the disk and the kernel log if it recurs.',
    http: 503,
    exit: 74,
    retry: 'later',
  },
  CALLER_NOT_ALLOWED: {
    meaning: 'The user that the calling process runs as may not do this at the socket of the agent.',
    remedy: 'Run the application as another user, or let this one in (settings callers.*).',
    http: 403,
    exit: 77,
    retry: 'no',
  },
  CALLER_LIMITED: {
    meaning: 'The calling user has made more requests, or spent more tokens, than it may in this time.',
    remedy: 'Wait for the time in Retry-After, or raise the limit of this user (setting callers.limits).',
    http: 429,
    retry: 'later',
  },
  REQUEST_TOO_LARGE: {
    meaning: 'The request needs tokens of more accounts than the device can ask the cloud for at a time.',
    remedy: 'Split it into several requests with fewer items.',
    http: 413,
    retry: 'no',
  },
  REPEAT_MISMATCH: {
    meaning: 'This request number was already used in this application session for another request.',
    remedy: 'Count requests up by one; repeat a number only with the same body.',
    http: 409,
    retry: 'no',
  },
  CLOUD_UNREACHABLE: {
    meaning: 'The cloud does not answer.',
    remedy: 'Check network, address and TLS; the device goes on deciding within its grants.',
    http: 502,
    exit: 69,
    retry: 'later',
  },
  BROKER_UNREACHABLE: {
    meaning: 'The broker of hints does not answer, or ends every connection.',
    remedy: 'Check its address, network and version of MQTT. Changes are found at the next sync meanwhile.',
    http: 502,
    retry: 'later',
  },
  BROKER_REFUSED: {
    meaning: 'The broker of hints does not take the user name, the password or the client id, or denies a topic.',
    remedy:
      'With push.username set, correct it and the password in push.password_file; without, the device signs in with its own key: tallygate doctor says whether the cloud takes it. Or correct the rights at the broker. Changes are found at the next sync meanwhile.',
    http: 502,
    retry: 'no',
  },
  BROKER_NOT_TRUSTED: {
    meaning:
      'The certificate of the broker of hints has expired, is for another name, or is of an authority that is not trusted.',
    remedy:
      'Renew the certificate, or name its authority: tls.ca_file of the agent, push.ca_file of the twin. Changes are found at the next sync meanwhile.',
    http: 502,
    retry: 'no',
  },
  AGENT_UNREACHABLE: {
    meaning: 'No agent answers on this socket.',
    remedy: 'Start it with `tallygate agent`, or name its socket with --socket.',
    http: 502,
    exit: 69,
    retry: 'later',
  },
  ANSWER_UNEXPECTED: {
    meaning: 'The service answered something that this program does not understand.',
    remedy: 'Check that the address is that of a tallygate service, of a version that fits.',
    http: 502,
    exit: 76,
    retry: 'no',
  },
  DEMO_FAILED: {
    meaning: 'The demo could not be carried through.',
    remedy: 'Run it again with --keep, and look at the logs in the directory that it names.',
    http: 500,
    exit: 70,
    retry: 'no',
  },
  KEY_UNUSABLE: {
    meaning: 'The file holds no private key that can sign access tokens.',
    remedy: 'Give a PEM file with an RSA key of 2048 bits or more, or a P-256 key, without passphrase.',
    http: 500,
    exit: 66,
    retry: 'no',
  },
  SIGNING_KEY_DIFFERS: {
    meaning: 'The signing key of this node is not the one that the devices of this store trust.',
    remedy:
      'Copy signing-key.pem from the directory of another node, or from its backup, to the path that the message names. If it is lost, start with --keys-replace-signing and the thumbprint of the key that shall take its place, and enroll the devices again.',
    http: 500,
    exit: 78,
    retry: 'no',
  },
  DEVICE_KEY_UNUSABLE: {
    meaning:
      'The file of the private key of this device is missing, open to others, or holds no key of the right kind.',
    remedy: 'Put the file back, or remove it and enroll the device again with a fresh token.',
    http: 500,
    exit: 66,
    retry: 'no',
  },
  DEVICE_KEY_REFUSED: {
    meaning: 'The cloud does not take the key that shall follow the one of this device.',
    remedy: 'Read the message. The device goes on with the key that it has, and tries again by itself.',
    http: 409,
    retry: 'later',
  },
  DEVICE_KEY_REPLACED: {
    meaning: 'This key was replaced by another one of the same device.',
    remedy:
      'Where the key file was put back from a backup, put back the newest one. Else somebody has a copy of the key: revoke the device, and enroll it anew with an empty state directory.',
    http: 401,
    retry: 'no',
  },
  DEVICE_KEY_PROVIDED: {
    meaning: 'The key of this device is brought by its operator (device.key_file): the agent cannot make the next one.',
    remedy: 'Give the agent the next key as device.next_key_file, restart it, and order the change again.',
    http: 409,
    retry: 'no',
  },
  DEVICE_FORKED: {
    meaning: 'The cloud knows another history of this device: its state was copied, or restored from a backup.',
    remedy: 'Look for a second device with the same state; everything that was used is billed, from both.',
    http: 409,
    retry: 'no',
  },
  USAGE_UNBILLED: {
    meaning:
      'The cloud did not bill some entries of this device: they do not add up, or use more than the device can have held.',
    remedy: 'An administrator finds the entries and the reason in the evidence for this device in the cloud.',
    http: 409,
    retry: 'no',
  },
  ATTACH_TOO_OFTEN: {
    meaning: 'The device has begun anew too often in a short time: probably two devices have one identity.',
    remedy: 'Look for a second device with the same state; the device tries again by itself.',
    http: 429,
    retry: 'later',
  },
  STORE_RESTORED: {
    meaning:
      'The database of the twin comes from a backup: its sales mark has counted more, or is missing, or a device has shown what the twin has signed and does not know.',
    remedy:
      'The twin recovers by itself and sells only what is certain to be unsold. `tallygate recovery show <instance>` says what it waits for; `tallygate recovery end <instance>` ends it at the risk that it shows.',
    http: 409,
    retry: 'later',
  },
  CLOCK_JUMPED: {
    meaning:
      'The wall clock of a twin has jumped by more than 5 minutes against the time since boot. Its sweeps are paused.',
    remedy:
      'Set the clock right; the sweeps go on by themselves. If the clock is right now, run `tallygate sweeps confirm clock`.',
    http: 503,
    retry: 'later',
  },
  CLOCK_BEHIND_RECORD: {
    meaning: 'The wall clock of a twin that was started is before the newest time in its store. Its sweeps are paused.',
    remedy:
      'Set the clock right; the sweeps go on by themselves. If the clock is right now, run `tallygate sweeps confirm clock`.',
    http: 503,
    retry: 'later',
  },
  CLOCK_AHEAD_OF_RECORD: {
    meaning:
      'The wall clock of a twin that was started is more than 7 days, or half of edge.settle_after, after the newest time in its store. Its sweeps are paused.',
    remedy:
      'If the twin was off for so long, or its store comes from an old backup, run `tallygate sweeps confirm clock`. Otherwise set the clock right and start the twin again.',
    http: 503,
    retry: 'later',
  },
  CLOCK_DIFFERS_FROM_DATABASE: {
    meaning:
      'The wall clocks of a twin and of its database differ by more than 5 minutes. The sweeps of this twin are paused.',
    remedy: 'Set both clocks right, for example by NTP; the sweeps go on by themselves.',
    http: 503,
    retry: 'later',
  },
  SETTLEMENT_TOO_LARGE: {
    meaning:
      'More devices have been silent for so long that they are to be settled than edge.settle_percent_max allows. None of them is settled.',
    remedy:
      'Find out why so many devices are silent. To settle those that are due now, run `tallygate sweeps confirm settlement`.',
    http: 503,
    retry: 'later',
  },
  CLOUD_BEHIND: {
    meaning: 'The cloud has forgotten segments that it had acknowledged: it was restored from a backup.',
    remedy: 'The device sends them again; what it has not kept must be recovered from the backups of the cloud.',
    http: 409,
    retry: 'later',
  },
  SESSION_ENDED: {
    meaning: 'The cloud has ended the session of this device.',
    remedy: 'The device opens another one; an administrator sees the reason in the cloud.',
    http: 409,
    retry: 'later',
  },
  SESSION_LOCKED: {
    meaning: 'The session of this device is locked in the cloud.',
    remedy: 'Have an administrator unlock it; the device asks again by itself until then.',
    http: 409,
    retry: 'later',
  },
  SESSION_NOT_OPERABLE: {
    meaning: 'The session takes no more requests: it was terminated, failed or disconnected, or is locked.',
    remedy: 'Stop what was paid by it, and create another session.',
    http: 409,
    retry: 'no',
  },
  SESSION_ON_DEVICE: {
    meaning: 'A device keeps this session: its agent takes the requests, here it can be watched, locked and ended.',
    remedy: 'Make the request over the socket of the agent that opened the session.',
    http: 409,
    retry: 'no',
  },
  GRANTS_FORGOTTEN: {
    meaning:
      'A device reports use that this cloud, restored from a backup, can never have granted by the rules it has now.',
    remedy: 'Enter again what was changed since the backup: quantities, overdrafts, allocations. Or revoke the device.',
    http: 503,
    retry: 'later',
  },
  SEGMENT_REJECTED: {
    meaning: 'A sync message is malformed, not signed by its device, or does not add up.',
    remedy: 'The device must be looked at: its database may have been altered.',
    http: 422,
    retry: 'no',
  },
})

export type ErrorCode = keyof typeof ERRORS

/**
 * An error that a user may see. `message` describes this occurrence in its own words; the catalogue has the general
 * meaning and remedy. Facts must hold no secret: they are logged and may be sent.
 */
export class CodedError extends Error {
  readonly code: ErrorCode
  readonly facts: Readonly<Record<string, unknown>>

  constructor(code: ErrorCode, message: string, options: { cause?: unknown; facts?: Record<string, unknown> } = {}) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause })
    this.name = 'CodedError'
    this.code = code
    this.facts = options.facts ?? {}
  }

  get httpStatus(): number {
    return ERRORS[this.code].http
  }

  get exitCode(): number {
    const entry: CatalogueEntry = ERRORS[this.code]
    return entry.exit ?? 1
  }
}

/** Body of every error that the interface does not give another shape. */
export const errorBody = z.object({ message: z.string(), code: z.string() })

/** The first problem that zod found, as `path: what is wrong`, without the offending value. */
export function firstProblem(error: z.ZodError, root = 'body'): string {
  const issue = error.issues[0]
  if (issue === undefined) return `${root}: invalid`
  const { path, message } = innermost(issue)
  const place = path.map((key) => (typeof key === 'number' ? `[${key}]` : `.${String(key)}`)).join('')
  return `${root}${place}: ${message}`
}

/** Of forms of which none fits, the one that fits farthest tells what is wrong. */
function innermost(issue: z.core.$ZodIssue): Pick<z.core.$ZodIssue, 'path' | 'message'> {
  if (issue.code !== 'invalid_union') return issue
  const [closest] = issue.errors
    .flatMap(([first]) => (first === undefined ? [] : [innermost(first)]))
    .toSorted((a, b) => b.path.length - a.path.length)
  if (closest !== undefined) return { ...closest, path: [...issue.path, ...closest.path] }
  return { path: issue.path, message: 'is none of the known values' }
}
