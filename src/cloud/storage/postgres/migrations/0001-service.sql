-- Tables of the service API. Instants are POSIX milliseconds, amounts micro-tokens, flags 0 or 1. `seq` gives rows
-- the order of their creation. Equal in effect to the migration of the same number for SQLite: so each whole number has 64
-- bits, and text that is compared or ordered is compared by its bytes, whatever the locale of the database.

CREATE TABLE instances (
  seq BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  id TEXT COLLATE "C" NOT NULL UNIQUE,
  short_name TEXT NOT NULL,
  account_id TEXT COLLATE "C" NOT NULL,
  is_default BIGINT NOT NULL,
  created BIGINT NOT NULL,
  modified BIGINT NOT NULL
);

CREATE INDEX instances_by_account ON instances (account_id);
CREATE UNIQUE INDEX instances_one_default ON instances (account_id) WHERE is_default = 1;

CREATE TABLE policy_revisions (
  instance_id TEXT COLLATE "C" NOT NULL PRIMARY KEY REFERENCES instances (id),
  revision BIGINT NOT NULL,
  bumped_at BIGINT NOT NULL,
  listed_at BIGINT NOT NULL,
  calendar_due BIGINT,
  engine BIGINT NOT NULL
);

CREATE INDEX policy_revisions_by_calendar ON policy_revisions (calendar_due) WHERE calendar_due IS NOT NULL;

CREATE TABLE line_items (
  seq BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  instance_id TEXT COLLATE "C" NOT NULL REFERENCES instances (id),
  id TEXT COLLATE "C" NOT NULL,
  state TEXT NOT NULL CHECK (state IN ('DEPLOYED', 'INACTIVE', 'OBSOLETE')),
  quantity BIGINT NOT NULL CHECK (quantity >= 0),
  start_at BIGINT NOT NULL,
  end_at BIGINT NOT NULL,
  elastic BIGINT NOT NULL,
  rate_table_series TEXT,
  overdraft_type TEXT CHECK (overdraft_type IN ('Number', 'Unlimited')),
  overdraft_limit BIGINT CHECK (overdraft_limit >= 0),
  reset_frequency TEXT,
  -- Integers of the request that are larger than the stored ones, as JSON.
  given TEXT NOT NULL,
  calendar_frequency TEXT NOT NULL,
  calendar_first BIGINT NOT NULL,
  calendar_first_at BIGINT NOT NULL,
  calendar_next BIGINT NOT NULL,
  created BIGINT NOT NULL,
  modified BIGINT NOT NULL,
  deleted BIGINT,
  UNIQUE (instance_id, id)
);

CREATE TABLE conditions (
  seq BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  instance_id TEXT COLLATE "C" NOT NULL REFERENCES instances (id),
  id TEXT COLLATE "C" NOT NULL,
  -- The condition with the ids and names of every level, as JSON.
  body TEXT NOT NULL,
  UNIQUE (instance_id, id)
);

CREATE TABLE actions (
  instance_id TEXT COLLATE "C" NOT NULL,
  line_item_id TEXT COLLATE "C" NOT NULL,
  position BIGINT NOT NULL,
  id TEXT NOT NULL,
  name TEXT,
  condition_id TEXT COLLATE "C",
  effect TEXT NOT NULL CHECK (effect IN ('ALLOW', 'DENY')),
  allocation BIGINT CHECK (allocation >= 0),
  PRIMARY KEY (instance_id, line_item_id, position),
  FOREIGN KEY (instance_id, line_item_id) REFERENCES line_items (instance_id, id),
  FOREIGN KEY (instance_id, condition_id) REFERENCES conditions (instance_id, id)
);

CREATE INDEX actions_by_condition ON actions (instance_id, condition_id);

CREATE TABLE rate_tables (
  seq BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  series TEXT COLLATE "C" NOT NULL,
  version TEXT COLLATE "C" NOT NULL,
  effective_from BIGINT NOT NULL,
  created BIGINT NOT NULL,
  -- `[{ name, version, rate }]` as JSON; the rate is decimal text.
  items TEXT NOT NULL,
  UNIQUE (series, version)
);

CREATE TABLE consumption_limits (
  instance_id TEXT COLLATE "C" NOT NULL,
  line_item_id TEXT COLLATE "C" NOT NULL,
  -- NULL: removed.
  limit_amount BIGINT CHECK (limit_amount > 0),
  frequency TEXT NOT NULL CHECK (frequency IN ('DAILY', 'WEEKLY', 'MONTHLY', 'YEARLY')),
  next_reset BIGINT NOT NULL,
  first_period BIGINT NOT NULL,
  PRIMARY KEY (instance_id, line_item_id),
  FOREIGN KEY (instance_id, line_item_id) REFERENCES line_items (instance_id, id)
);

-- `keys` is a word of SQL.
CREATE TABLE public_keys (
  seq BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  type TEXT COLLATE "C" NOT NULL CHECK (type IN ('administration-key', 'client-key')),
  id TEXT COLLATE "C" NOT NULL,
  -- Given by an administrator.
  name TEXT,
  -- JSON, of an administration key; NULL: all.
  roles TEXT,
  instances TEXT,
  pem TEXT NOT NULL,
  active_from BIGINT NOT NULL,
  -- JSON: the key that is accepted until active_from.
  previous TEXT,
  retires_at BIGINT,
  created BIGINT NOT NULL,
  modified BIGINT NOT NULL,
  UNIQUE (type, id)
);

CREATE TABLE configuration (
  name TEXT COLLATE "C" NOT NULL PRIMARY KEY,
  value TEXT NOT NULL,
  modified BIGINT NOT NULL,
  updated_by TEXT NOT NULL
);

CREATE TABLE accounts (
  id TEXT COLLATE "C" NOT NULL PRIMARY KEY,
  instance_id TEXT COLLATE "C" NOT NULL,
  line_item_id TEXT COLLATE "C" NOT NULL,
  -- Of the limit of a requester; NULL: another account.
  limit_period BIGINT,
  charged BIGINT NOT NULL CHECK (charged >= 0),
  granted_out BIGINT NOT NULL CHECK (granted_out >= 0),
  -- The part of granted_out that no grant on record explains.
  claimed BIGINT NOT NULL CHECK (claimed >= 0 AND claimed <= granted_out),
  billed_by_devices BIGINT NOT NULL CHECK (billed_by_devices >= 0),
  -- All that was ever charged or granted: compared with the sales mark, a file beside the database.
  sold BIGINT NOT NULL CHECK (sold >= 0),
  -- Sold after the backup from which the database was restored, and not accounted for.
  withheld BIGINT NOT NULL CHECK (withheld >= 0),
  cap_target BIGINT CHECK (cap_target >= 0),
  cap_in_force BIGINT CHECK (cap_in_force >= 0),
  -- The highest cap_target so far: devices may have spent up to any of them.
  cap_highest BIGINT NOT NULL CHECK (cap_highest >= 0 AND (cap_target IS NULL OR cap_target <= cap_highest)),
  -- Never oversold: charged and granted tokens together are at most the cap in force. NULL: metered only.
  CHECK (charged + granted_out <= cap_in_force)
);

CREATE INDEX accounts_by_line_item ON accounts (instance_id, line_item_id, limit_period);

-- Use of another service that an import has added to `charged` of the account: a repeated import adds the difference.
CREATE TABLE imported_use (
  account TEXT COLLATE "C" NOT NULL PRIMARY KEY REFERENCES accounts (id),
  amount BIGINT NOT NULL CHECK (amount >= 0)
);

-- Partitions of ranges of rows are made in advance: partitions.ts.
-- Usage records that were written together: those of one transaction for one instance, or those of a segment of a device.
CREATE TABLE usage (
  -- The records have positions up to this number times 2^17. Events have other numbers of the same sequence.
  seq BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  -- NULL: several.
  instance_id TEXT COLLATE "C",
  -- Number of records, those of refusals among them, and the time of the earliest and latest use.
  records BIGINT NOT NULL,
  refused BIGINT NOT NULL,
  from_time BIGINT NOT NULL,
  to_time BIGINT NOT NULL,
  write_time BIGINT NOT NULL,
  -- NULL: not of a device.
  device_id TEXT COLLATE "C",
  -- NULL: the cloud has made the records itself. Else they are those of the ledger entries of a segment, each billed once.
  epoch BIGINT,
  segment BIGINT,
  -- 1: from another writer than that of the merged chain.
  branch BIGINT CHECK (branch IN (0, 1)),
  first_entry BIGINT,
  last_entry BIGINT,
  -- Compressed with zstd, unless it is short: packed-usage.ts, packed-delivery.ts.
  body BYTEA NOT NULL,
  CHECK ((epoch IS NULL) = (segment IS NULL)),
  CHECK ((epoch IS NULL) = (branch IS NULL)),
  CHECK ((epoch IS NULL) = (first_entry IS NULL)),
  CHECK ((epoch IS NULL) = (last_entry IS NULL))
) PARTITION BY RANGE (seq);

-- Compressed already.
ALTER TABLE usage ALTER COLUMN body SET STORAGE EXTERNAL;

-- Rows without another partition. Usually empty.
CREATE TABLE usage_rest PARTITION OF usage DEFAULT;

CREATE INDEX usage_by_instance ON usage (instance_id, seq);
-- Each partition has this index: unique in the chain, not among branches.
CREATE UNIQUE INDEX usage_rest_by_entry ON usage_rest (device_id, epoch, first_entry, (branch * seq)) WHERE epoch IS NOT NULL;

-- Positions that were used after a backup from which the cloud was then restored: those after `backup_end`, up to `lost_up_to`.
-- They are never used again.
CREATE TABLE forgotten_usage (
  backup_end BIGINT NOT NULL PRIMARY KEY,
  lost_up_to BIGINT NOT NULL
);

-- Always empty: its lock orders the numbers of rows in usage and events.
CREATE TABLE row_numbers (locked BIGINT NOT NULL);

-- Changes that sinks send as events. Usage records are events as well, without a row here.
CREATE TABLE events (
  -- Position among the usage records: the table usage has other numbers of the same sequence.
  seq BIGINT NOT NULL PRIMARY KEY,
  id TEXT COLLATE "C" NOT NULL UNIQUE,
  type TEXT COLLATE "C" NOT NULL,
  at BIGINT NOT NULL,
  instance_id TEXT COLLATE "C",
  device_id TEXT COLLATE "C",
  -- JSON.
  data TEXT COLLATE "C" NOT NULL
);

CREATE INDEX events_by_instance ON events (instance_id, seq);
CREATE INDEX events_by_device ON events (device_id, seq);

-- Position that each sink of events has reached. Kept when the sink is removed from the settings, so that it can be added again.
CREATE TABLE event_sinks (
  name TEXT COLLATE "C" NOT NULL PRIMARY KEY,
  -- Everything up to this position of the usage record is acknowledged, or a dead letter.
  position BIGINT NOT NULL,
  -- The node that sends to it, until this instant.
  leased_by TEXT COLLATE "C",
  leased_until BIGINT NOT NULL,
  delivered_at BIGINT,
  -- NULL: the last attempt succeeded.
  failing_since BIGINT,
  problem TEXT COLLATE "C",
  -- No attempt before this instant.
  retry_at BIGINT
);

-- Events that a sink has rejected.
CREATE TABLE dead_letters (
  sink TEXT COLLATE "C" NOT NULL REFERENCES event_sinks (name),
  position BIGINT NOT NULL,
  event_id TEXT COLLATE "C" NOT NULL,
  type TEXT COLLATE "C" NOT NULL,
  problem TEXT COLLATE "C" NOT NULL,
  at BIGINT NOT NULL,
  -- 1: to be sent again.
  replayed BIGINT NOT NULL CHECK (replayed IN (0, 1)),
  PRIMARY KEY (sink, position)
);

-- Archives that were written. Their records are deleted here, step by step.
CREATE TABLE usage_archives (
  -- Positions of their records: above `after`, up to `up_to`.
  up_to BIGINT NOT NULL PRIMARY KEY,
  after BIGINT NOT NULL,
  records BIGINT NOT NULL,
  -- Latest use, except use that devices date more than a day after it was written: that is from ahead_from to ahead_to.
  latest_use BIGINT NOT NULL,
  ahead_from BIGINT,
  ahead_to BIGINT,
  place TEXT NOT NULL,
  manifest TEXT NOT NULL,
  -- Of the manifest.
  sha256 TEXT NOT NULL,
  archived_at BIGINT NOT NULL
);

-- The process that archives, and the archive that it writes, which the next process continues.
CREATE TABLE usage_archiving (
  slot BIGINT NOT NULL PRIMARY KEY CHECK (slot = 1),
  holder TEXT,
  seen_at BIGINT NOT NULL,
  place TEXT,
  up_to BIGINT,
  -- When a run last archived everything that was due.
  finished_at BIGINT
);

CREATE TABLE sessions (
  seq BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  id TEXT COLLATE "C" NOT NULL UNIQUE,
  instance_id TEXT COLLATE "C" NOT NULL REFERENCES instances (id),
  device_id TEXT COLLATE "C",
  -- Id of the device for this opening, so that it happens once; null: not the session of an agent.
  opening TEXT COLLATE "C",
  -- The device that charges it, ends it and reports it; null: the cloud does.
  kept_by TEXT COLLATE "C",
  -- Command of an administrator for a session that a device keeps.
  wanted TEXT CHECK (wanted IN ('LOCK', 'UNLOCK', 'TERMINATE')),
  state TEXT NOT NULL CHECK (state IN ('IDLE', 'ACTIVE', 'LOCKED', 'TERMINATED', 'FAILED', 'DISCONNECTED')),
  created BIGINT NOT NULL,
  -- JSON.
  requester TEXT,
  -- JSON: what paid for the running interval.
  charge TEXT,
  interval_ms BIGINT NOT NULL,
  heartbeat_due BIGINT,
  last_heartbeat BIGINT NOT NULL,
  last_access_request BIGINT NOT NULL,
  since BIGINT NOT NULL,
  next_due BIGINT NOT NULL,
  -- Before this time, a clock that was ahead has made the charge, and the session is charged anew; null: never.
  renewal_due_before BIGINT
);

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
  id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  kind TEXT NOT NULL CHECK (kind IN ('policy', 'device')),
  instance_id TEXT COLLATE "C",
  revision BIGINT,
  device_id TEXT COLLATE "C",
  reason TEXT,
  written BIGINT NOT NULL,
  claimed_until BIGINT NOT NULL
);
CREATE INDEX outbox_by_instance ON outbox (instance_id);
CREATE INDEX outbox_by_device ON outbox (device_id);

CREATE TABLE idempotency_keys (
  -- Digest of the caller, the instance and the key.
  scope TEXT COLLATE "C" PRIMARY KEY,
  request_hash TEXT NOT NULL,
  answer TEXT NOT NULL,
  created BIGINT NOT NULL
);
CREATE INDEX idempotency_keys_by_age ON idempotency_keys (created);

-- PostgreSQL empties an unlogged table after a crash, and does not copy it to a standby. The row identifies the time between.
CREATE UNLOGGED TABLE server_runs (
  singleton BOOLEAN PRIMARY KEY DEFAULT true CHECK (singleton),
  id UUID NOT NULL
);
