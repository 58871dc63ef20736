-- Tables of the service API. Instants are POSIX milliseconds, amounts micro-tokens, flags 0 or 1. `seq` gives rows
-- the order of their creation.

CREATE TABLE instances (
  seq INTEGER PRIMARY KEY AUTOINCREMENT,
  id TEXT NOT NULL UNIQUE,
  short_name TEXT NOT NULL,
  account_id TEXT NOT NULL,
  is_default INTEGER NOT NULL,
  created INTEGER NOT NULL,
  modified INTEGER NOT NULL
) STRICT;

CREATE INDEX instances_by_account ON instances (account_id);
CREATE UNIQUE INDEX instances_one_default ON instances (account_id) WHERE is_default = 1;

CREATE TABLE policy_revisions (
  instance_id TEXT NOT NULL PRIMARY KEY REFERENCES instances (id),
  revision INTEGER NOT NULL,
  bumped_at INTEGER NOT NULL,
  listed_at INTEGER NOT NULL,
  calendar_due INTEGER,
  engine INTEGER NOT NULL
) STRICT;

CREATE INDEX policy_revisions_by_calendar ON policy_revisions (calendar_due) WHERE calendar_due IS NOT NULL;

CREATE TABLE line_items (
  seq INTEGER PRIMARY KEY AUTOINCREMENT,
  instance_id TEXT NOT NULL REFERENCES instances (id),
  id TEXT NOT NULL,
  state TEXT NOT NULL CHECK (state IN ('DEPLOYED', 'INACTIVE', 'OBSOLETE')),
  quantity INTEGER NOT NULL CHECK (quantity >= 0),
  start_at INTEGER NOT NULL,
  end_at INTEGER NOT NULL,
  elastic INTEGER NOT NULL,
  rate_table_series TEXT,
  overdraft_type TEXT CHECK (overdraft_type IN ('Number', 'Unlimited')),
  overdraft_limit INTEGER CHECK (overdraft_limit >= 0),
  reset_frequency TEXT,
  -- Integers of the request that are larger than the stored ones, as JSON.
  given TEXT NOT NULL,
  calendar_frequency TEXT NOT NULL,
  calendar_first INTEGER NOT NULL,
  calendar_first_at INTEGER NOT NULL,
  calendar_next INTEGER NOT NULL,
  created INTEGER NOT NULL,
  modified INTEGER NOT NULL,
  deleted INTEGER,
  UNIQUE (instance_id, id)
) STRICT;

CREATE TABLE actions (
  instance_id TEXT NOT NULL,
  line_item_id TEXT NOT NULL,
  position INTEGER NOT NULL,
  id TEXT NOT NULL,
  name TEXT,
  condition_id TEXT,
  effect TEXT NOT NULL CHECK (effect IN ('ALLOW', 'DENY')),
  allocation INTEGER CHECK (allocation >= 0),
  PRIMARY KEY (instance_id, line_item_id, position),
  FOREIGN KEY (instance_id, line_item_id) REFERENCES line_items (instance_id, id),
  FOREIGN KEY (instance_id, condition_id) REFERENCES conditions (instance_id, id)
) STRICT;

CREATE INDEX actions_by_condition ON actions (instance_id, condition_id);

CREATE TABLE conditions (
  seq INTEGER PRIMARY KEY AUTOINCREMENT,
  instance_id TEXT NOT NULL REFERENCES instances (id),
  id TEXT NOT NULL,
  -- The condition with the ids and names of every level, as JSON.
  body TEXT NOT NULL,
  UNIQUE (instance_id, id)
) STRICT;

CREATE TABLE rate_tables (
  seq INTEGER PRIMARY KEY AUTOINCREMENT,
  series TEXT NOT NULL,
  version TEXT NOT NULL,
  effective_from INTEGER NOT NULL,
  created INTEGER NOT NULL,
  -- `[{ name, version, rate }]` as JSON; the rate is decimal text.
  items TEXT NOT NULL,
  UNIQUE (series, version)
) STRICT;

CREATE TABLE consumption_limits (
  instance_id TEXT NOT NULL,
  line_item_id TEXT NOT NULL,
  -- NULL: removed.
  limit_amount INTEGER CHECK (limit_amount > 0),
  frequency TEXT NOT NULL CHECK (frequency IN ('DAILY', 'WEEKLY', 'MONTHLY', 'YEARLY')),
  next_reset INTEGER NOT NULL,
  first_period INTEGER NOT NULL,
  PRIMARY KEY (instance_id, line_item_id),
  FOREIGN KEY (instance_id, line_item_id) REFERENCES line_items (instance_id, id)
) STRICT;

-- `keys` is a word of SQL.
CREATE TABLE public_keys (
  seq INTEGER PRIMARY KEY AUTOINCREMENT,
  type TEXT NOT NULL CHECK (type IN ('administration-key', 'client-key')),
  id TEXT NOT NULL,
  -- Given by an administrator.
  name TEXT,
  -- JSON, of an administration key; NULL: all.
  roles TEXT,
  instances TEXT,
  pem TEXT NOT NULL,
  active_from INTEGER NOT NULL,
  -- JSON: the key that is accepted until active_from.
  previous TEXT,
  retires_at INTEGER,
  created INTEGER NOT NULL,
  modified INTEGER NOT NULL,
  UNIQUE (type, id)
) STRICT;

CREATE TABLE configuration (
  name TEXT NOT NULL PRIMARY KEY,
  value TEXT NOT NULL,
  modified INTEGER NOT NULL,
  updated_by TEXT NOT NULL
) STRICT;

CREATE TABLE accounts (
  id TEXT NOT NULL PRIMARY KEY,
  instance_id TEXT NOT NULL,
  line_item_id TEXT NOT NULL,
  -- Of the limit of a requester; NULL: another account.
  limit_period INTEGER,
  charged INTEGER NOT NULL CHECK (charged >= 0),
  granted_out INTEGER NOT NULL CHECK (granted_out >= 0),
  -- The part of granted_out that no grant on record explains.
  claimed INTEGER NOT NULL CHECK (claimed >= 0 AND claimed <= granted_out),
  billed_by_devices INTEGER NOT NULL CHECK (billed_by_devices >= 0),
  -- All that was ever charged or granted: compared with the sales mark, a file beside the database.
  sold INTEGER NOT NULL CHECK (sold >= 0),
  -- Sold after the backup from which the database was restored, and not accounted for.
  withheld INTEGER NOT NULL CHECK (withheld >= 0),
  cap_target INTEGER CHECK (cap_target >= 0),
  cap_in_force INTEGER CHECK (cap_in_force >= 0),
  -- The highest cap_target so far: devices may have spent up to any of them.
  cap_highest INTEGER NOT NULL CHECK (cap_highest >= 0 AND (cap_target IS NULL OR cap_target <= cap_highest)),
  -- Never oversold: charged and granted tokens together are at most the cap in force. NULL: metered only.
  CHECK (charged + granted_out <= cap_in_force)
) STRICT, WITHOUT ROWID;

CREATE INDEX accounts_by_line_item ON accounts (instance_id, line_item_id, limit_period);

-- Use of another service that an import has added to `charged` of the account: a repeated import adds the difference.
CREATE TABLE imported_use (
  account TEXT NOT NULL PRIMARY KEY REFERENCES accounts (id),
  amount INTEGER NOT NULL CHECK (amount >= 0)
) STRICT, WITHOUT ROWID;

-- Usage records that were written together: those of one transaction for one instance, or those of a segment of a device.
CREATE TABLE usage (
  -- The records have positions up to this number times 2^17. Events have other numbers of the same sequence.
  seq INTEGER PRIMARY KEY AUTOINCREMENT,
  -- NULL: several.
  instance_id TEXT,
  -- Number of records, those of refusals among them, and the time of the earliest and latest use.
  records INTEGER NOT NULL,
  refused INTEGER NOT NULL,
  from_time INTEGER NOT NULL,
  to_time INTEGER NOT NULL,
  write_time INTEGER NOT NULL,
  -- NULL: not of a device.
  device_id TEXT,
  -- NULL: the cloud has made the records itself. Else they are those of the ledger entries of a segment, each billed once.
  epoch INTEGER,
  segment INTEGER,
  -- 1: from another writer than that of the merged chain.
  branch INTEGER CHECK (branch IN (0, 1)),
  first_entry INTEGER,
  last_entry INTEGER,
  -- Compressed with zstd, unless it is short: packed-usage.ts, packed-delivery.ts.
  body BLOB NOT NULL,
  FOREIGN KEY (device_id, epoch) REFERENCES epochs (device_id, number),
  CHECK ((epoch IS NULL) = (segment IS NULL)),
  CHECK ((epoch IS NULL) = (branch IS NULL)),
  CHECK ((epoch IS NULL) = (first_entry IS NULL)),
  CHECK ((epoch IS NULL) = (last_entry IS NULL))
) STRICT;

CREATE INDEX usage_by_instance ON usage (instance_id, seq);
-- Unique in the chain, not among branches.
CREATE UNIQUE INDEX usage_by_entry ON usage (device_id, epoch, first_entry, (branch * seq)) WHERE epoch IS NOT NULL;

-- Positions that were used after a backup from which the cloud was then restored: those after `backup_end`, up to `lost_up_to`.
-- They are never used again.
CREATE TABLE forgotten_usage (
  backup_end INTEGER PRIMARY KEY,
  lost_up_to INTEGER NOT NULL
) STRICT;

-- Changes that sinks send as events. Usage records are events as well, without a row here.
CREATE TABLE events (
  -- Position among the usage records: the table usage has other numbers of the same sequence.
  seq INTEGER PRIMARY KEY,
  id TEXT NOT NULL UNIQUE,
  type TEXT NOT NULL,
  at INTEGER NOT NULL,
  instance_id TEXT,
  device_id TEXT,
  -- JSON.
  data TEXT NOT NULL
) STRICT;

CREATE INDEX events_by_instance ON events (instance_id, seq);
CREATE INDEX events_by_device ON events (device_id, seq);

-- Position that each sink of events has reached. Kept when the sink is removed from the settings, so that it can be added again.
CREATE TABLE event_sinks (
  name TEXT NOT NULL PRIMARY KEY,
  -- Everything up to this position of the usage record is acknowledged, or a dead letter.
  position INTEGER NOT NULL,
  -- The node that sends to it, until this instant.
  leased_by TEXT,
  leased_until INTEGER NOT NULL,
  delivered_at INTEGER,
  -- NULL: the last attempt succeeded.
  failing_since INTEGER,
  problem TEXT,
  -- No attempt before this instant.
  retry_at INTEGER
) STRICT;

-- Events that a sink has rejected.
CREATE TABLE dead_letters (
  sink TEXT NOT NULL REFERENCES event_sinks (name),
  position INTEGER NOT NULL,
  event_id TEXT NOT NULL,
  type TEXT NOT NULL,
  problem TEXT NOT NULL,
  at INTEGER NOT NULL,
  -- 1: to be sent again.
  replayed INTEGER NOT NULL CHECK (replayed IN (0, 1)),
  PRIMARY KEY (sink, position)
) STRICT, WITHOUT ROWID;

-- Archives that were written. Their records are deleted here, step by step.
CREATE TABLE usage_archives (
  -- Positions of their records: above `after`, up to `up_to`.
  up_to INTEGER PRIMARY KEY,
  after INTEGER NOT NULL,
  records INTEGER NOT NULL,
  -- Latest use, except use that devices date more than a day after it was written: that is from ahead_from to ahead_to.
  latest_use INTEGER NOT NULL,
  ahead_from INTEGER,
  ahead_to INTEGER,
  place TEXT NOT NULL,
  manifest TEXT NOT NULL,
  -- Of the manifest.
  sha256 TEXT NOT NULL,
  archived_at INTEGER NOT NULL
) STRICT;

-- The process that archives, and the archive that it writes, which the next process continues.
CREATE TABLE usage_archiving (
  slot INTEGER PRIMARY KEY CHECK (slot = 1),
  holder TEXT,
  seen_at INTEGER NOT NULL,
  place TEXT,
  up_to INTEGER,
  -- When a run last archived everything that was due.
  finished_at INTEGER
) STRICT;

CREATE TABLE sessions (
  seq INTEGER PRIMARY KEY AUTOINCREMENT,
  id TEXT NOT NULL UNIQUE,
  instance_id TEXT NOT NULL REFERENCES instances (id),
  device_id TEXT,
  -- Id of the device for this opening, so that it happens once; null: not the session of an agent.
  opening TEXT,
  -- The device that charges it, ends it and reports it; null: the cloud does.
  kept_by TEXT,
  -- Command of an administrator for a session that a device keeps.
  wanted TEXT CHECK (wanted IN ('LOCK', 'UNLOCK', 'TERMINATE')),
  state TEXT NOT NULL CHECK (state IN ('IDLE', 'ACTIVE', 'LOCKED', 'TERMINATED', 'FAILED', 'DISCONNECTED')),
  created INTEGER NOT NULL,
  -- JSON.
  requester TEXT,
  -- JSON: what paid for the running interval.
  charge TEXT,
  interval_ms INTEGER NOT NULL,
  heartbeat_due INTEGER,
  last_heartbeat INTEGER NOT NULL,
  last_access_request INTEGER NOT NULL,
  since INTEGER NOT NULL,
  next_due INTEGER NOT NULL,
  -- Before this time, a clock that was ahead has made the charge, and the session is charged anew; null: never.
  renewal_due_before INTEGER
) STRICT;

CREATE INDEX sessions_by_due ON sessions (next_due);
CREATE INDEX sessions_renewal_due ON sessions (renewal_due_before) WHERE renewal_due_before IS NOT NULL;
CREATE INDEX sessions_live ON sessions (instance_id, created) WHERE state IN ('IDLE', 'ACTIVE');
CREATE INDEX sessions_not_ended ON sessions (seq) WHERE state IN ('IDLE', 'ACTIVE', 'LOCKED');
CREATE INDEX sessions_kept_by ON sessions (kept_by) WHERE state IN ('IDLE', 'ACTIVE', 'LOCKED');
CREATE INDEX sessions_commanded ON sessions (kept_by, id)
  WHERE state IN ('IDLE', 'ACTIVE', 'LOCKED') AND (wanted = 'TERMINATE' OR (wanted = 'LOCK') = (state <> 'LOCKED'));
CREATE INDEX sessions_of_device ON sessions (device_id) WHERE state IN ('IDLE', 'ACTIVE', 'LOCKED');
CREATE UNIQUE INDEX sessions_by_opening ON sessions (device_id, instance_id, opening) WHERE opening IS NOT NULL;

CREATE TABLE outbox (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  kind TEXT NOT NULL CHECK (kind IN ('policy', 'device')),
  instance_id TEXT,
  revision INTEGER,
  device_id TEXT,
  reason TEXT,
  written INTEGER NOT NULL,
  claimed_until INTEGER NOT NULL
) STRICT;
CREATE INDEX outbox_by_instance ON outbox (instance_id);
CREATE INDEX outbox_by_device ON outbox (device_id);

CREATE TABLE idempotency_keys (
  -- Digest of the caller, the instance and the key.
  scope TEXT PRIMARY KEY,
  request_hash TEXT NOT NULL,
  answer TEXT NOT NULL,
  created INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX idempotency_keys_by_age ON idempotency_keys (created);
