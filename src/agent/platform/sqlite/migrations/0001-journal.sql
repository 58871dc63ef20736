-- The device's journal. Amounts are integers of micro-tokens, instants POSIX milliseconds, hashes lower-case hexadecimal.

-- One row: everything of which there is one, so that a commit touches one page for all of it.
CREATE TABLE state (
  only INTEGER NOT NULL PRIMARY KEY CHECK (only = 1),
  epoch INTEGER NOT NULL,
  fenced INTEGER NOT NULL CHECK (fenced IN (0, 1)),
  -- Id of the entry before the first one of this epoch.
  entry_base INTEGER NOT NULL,
  -- The newest entry in a block; later ones are in slots.
  last_entry INTEGER NOT NULL,
  entry_head TEXT NOT NULL,
  sealed_entry INTEGER NOT NULL CHECK (sealed_entry <= last_entry),
  sealed_head TEXT NOT NULL,
  -- Up to here the cloud has the entries of this epoch.
  acked_entry INTEGER NOT NULL CHECK (acked_entry <= sealed_entry),
  acked_head TEXT NOT NULL,
  last_seq INTEGER NOT NULL,
  segment_head TEXT NOT NULL,
  -- The cloud has lost segments of the epochs before: they are sent again before the first one of this is acknowledged.
  resends_earlier INTEGER NOT NULL DEFAULT 0 CHECK (resends_earlier IN (0, 1)),
  grant_term INTEGER,
  grant_lifetime_ms INTEGER,
  grant_expires_at INTEGER,
  grant_aged_ms INTEGER,
  -- The segment whose answer is the newest grant.
  grant_proof INTEGER,
  -- Slots of this generation are pending.
  slot_generation INTEGER NOT NULL,
  clock_boot_id TEXT,
  clock_since_boot INTEGER,
  clock_earliest INTEGER,
  clock_latest INTEGER
) STRICT;

CREATE TABLE identity (
  only INTEGER NOT NULL PRIMARY KEY CHECK (only = 1),
  -- JSON.
  document TEXT NOT NULL
) STRICT;

CREATE TABLE policy (
  instance_id TEXT NOT NULL PRIMARY KEY,
  revision INTEGER NOT NULL,
  document TEXT NOT NULL,
  confirmed_at INTEGER NOT NULL,
  -- The segment whose answer confirmed it then.
  confirmed_by INTEGER
) STRICT;

-- The four counters of the current epoch, and what the sealed segments say of them.
CREATE TABLE account (
  id TEXT NOT NULL PRIMARY KEY,
  granted INTEGER NOT NULL DEFAULT 0 CHECK (granted >= 0),
  used INTEGER NOT NULL DEFAULT 0 CHECK (used >= 0),
  refunded INTEGER NOT NULL DEFAULT 0 CHECK (refunded BETWEEN 0 AND used),
  returned INTEGER NOT NULL DEFAULT 0 CHECK (returned >= 0),
  exhausted INTEGER NOT NULL DEFAULT 0 CHECK (exhausted IN (0, 1)),
  -- Not counted down: granted without limit, which the rules in force allow.
  unlimited INTEGER NOT NULL DEFAULT 0 CHECK (unlimited IN (0, 1)),
  -- At most so many tokens, the last of granted, are overdraft of the line item.
  overdraft INTEGER NOT NULL DEFAULT 0 CHECK (overdraft BETWEEN 0 AND granted),
  -- End of the block that may be spent without a flush, as a value of used; at or below it: no block.
  reserved INTEGER NOT NULL DEFAULT 0,
  -- How far use may be above granted until the cloud has heard of it: of an essential line item, offline, or of one that was
  -- unlimited.
  allowance INTEGER NOT NULL DEFAULT 0 CHECK (allowance >= 0),
  -- Of used: what power cuts may have cost at most.
  burned INTEGER NOT NULL DEFAULT 0 CHECK (burned BETWEEN 0 AND used),
  sealed_used INTEGER NOT NULL DEFAULT 0 CHECK (sealed_used <= used),
  sealed_refunded INTEGER NOT NULL DEFAULT 0 CHECK (sealed_refunded <= refunded),
  sealed_returned INTEGER NOT NULL DEFAULT 0 CHECK (sealed_returned <= returned),
  -- The segment whose answer proves `granted`: without it, a start gives the account no balance.
  proof INTEGER,
  CONSTRAINT never_overspent CHECK (unlimited = 1 OR max(used, reserved) - refunded + returned <= granted + allowance)
) STRICT, WITHOUT ROWID;

-- Entries of earlier epochs that the cloud does not have, because their chain was forked or refused: they go up with
-- the segments of the current one, and a row goes when a segment with its end has been acknowledged. Those of an epoch
-- with a gap between them, or of two chains, have a row for each list.
CREATE TABLE undelivered_ranges (
  -- In the order of delivery, which is that of their entries.
  id INTEGER NOT NULL PRIMARY KEY,
  epoch INTEGER NOT NULL,
  -- Id of the entry before the first one of that epoch.
  entry_base INTEGER NOT NULL,
  acked_entry INTEGER NOT NULL,
  acked_head TEXT NOT NULL,
  sealed_entry INTEGER NOT NULL CHECK (acked_entry <= sealed_entry),
  sealed_head TEXT NOT NULL,
  last_entry INTEGER NOT NULL CHECK (sealed_entry <= last_entry),
  -- Head of the chain over all of them: what a reader of a damaged journal can prove them by.
  last_head TEXT NOT NULL,
  -- Everything that was recorded in that epoch is here or acknowledged: its end says so. There may be nothing else to say.
  whole INTEGER NOT NULL CHECK (whole IN (0, 1)),
  -- A segment holds its end.
  end_sealed INTEGER NOT NULL CHECK (end_sealed IN (0, sealed_entry = last_entry))
) STRICT;

-- Counters of an earlier epoch before the first entry of its undelivered range, where the cloud has lost those before it and they
-- are no longer kept here: they go up before the entries, and a row goes when it has been acknowledged.
CREATE TABLE undelivered_range_account (
  epoch INTEGER NOT NULL,
  id TEXT NOT NULL,
  used INTEGER NOT NULL CHECK (used >= 0),
  refunded INTEGER NOT NULL CHECK (refunded BETWEEN 0 AND used),
  sealed INTEGER NOT NULL DEFAULT 0 CHECK (sealed IN (0, 1)),
  PRIMARY KEY (epoch, id)
) STRICT, WITHOUT ROWID;

-- Journals before this one that could not be used, and what could be read of each.
CREATE TABLE salvage (
  at INTEGER NOT NULL,
  -- Where it was put.
  file TEXT NOT NULL,
  why TEXT NOT NULL,
  -- Entries that the cloud did not have: those that are here, and those that could not be read (null: unknown).
  salvaged_entries INTEGER NOT NULL,
  lost_entries INTEGER
) STRICT;

-- Ledger entries of all epochs in the order in which they were made, compressed in blocks; never edited.
CREATE TABLE block (
  -- Id of its first entry; the others follow without gaps.
  first_id INTEGER NOT NULL PRIMARY KEY,
  -- Number of its first entry in its epoch.
  first_n INTEGER NOT NULL,
  entries INTEGER NOT NULL CHECK (entries > 0),
  -- Bodies, and the inputs that they were decided by besides rules and body. Inputs are no part of the chain, and never sent.
  data BLOB NOT NULL
) STRICT;

-- Commits since the counters, answers, sessions and blocks were last brought up to date. Rows are overwritten in place and keep
-- their size, so that a commit writes only pages that have content.
CREATE TABLE slot (
  n INTEGER NOT NULL PRIMARY KEY,
  data BLOB NOT NULL
) STRICT;

-- Rules that were replaced, for as long as an entry that was decided by them is kept.
CREATE TABLE past_policy (
  id INTEGER NOT NULL PRIMARY KEY,
  instance_id TEXT NOT NULL,
  revision INTEGER NOT NULL,
  document TEXT NOT NULL,
  -- Of the document.
  bytes INTEGER NOT NULL,
  -- Id of the last entry when they were replaced.
  last_entry_id INTEGER NOT NULL,
  UNIQUE (instance_id, revision)
) STRICT;

CREATE TABLE segment (
  id INTEGER NOT NULL PRIMARY KEY,
  epoch INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  hash TEXT NOT NULL,
  final INTEGER NOT NULL CHECK (final IN (0, 1)),
  -- Id of the last entry in it, or before it.
  last_entry_id INTEGER NOT NULL,
  state TEXT NOT NULL CHECK (state IN ('UNACKNOWLEDGED', 'ACKNOWLEDGED', 'ABANDONED')),
  -- When it came into this state.
  since INTEGER NOT NULL,
  -- The cloud may ask for it again until then, by its own clock; null while it has not said so.
  retain_until INTEGER,
  -- Of its document.
  bytes INTEGER NOT NULL,
  UNIQUE (epoch, seq)
) STRICT;

-- What was signed, in a table of its own: it is long and never changes.
CREATE TABLE segment_document (
  id INTEGER NOT NULL PRIMARY KEY REFERENCES segment (id) ON DELETE CASCADE,
  document TEXT NOT NULL,
  -- The cloud's signed answer to it: the receipt, and the proof of what was granted with it.
  answer TEXT
) STRICT;

CREATE INDEX segment_by_age ON segment (state, since);

CREATE UNIQUE INDEX segment_in_flight ON segment (state) WHERE state = 'UNACKNOWLEDGED';

-- Slots without gaps: a caller that has its share of them takes over its own least recently used one.
CREATE TABLE answer (
  slot INTEGER NOT NULL PRIMARY KEY,
  session TEXT NOT NULL,
  n INTEGER NOT NULL,
  request_hash TEXT NOT NULL,
  body TEXT NOT NULL,
  status INTEGER NOT NULL,
  policy_revision INTEGER NOT NULL,
  -- Id of the entry that it answered: the order of use.
  entry_id INTEGER NOT NULL
) STRICT;

-- Sessions that this device keeps, each as its last entry left it.
CREATE TABLE session (
  id TEXT NOT NULL PRIMARY KEY,
  ended INTEGER NOT NULL CHECK (ended IN (0, 1)),
  since INTEGER NOT NULL,
  -- JSON: for the device, and for the cloud.
  document TEXT NOT NULL,
  snapshot TEXT NOT NULL,
  -- No segment of this epoch holds the snapshot.
  unsealed INTEGER NOT NULL CHECK (unsealed IN (0, 1))
) STRICT, WITHOUT ROWID;

CREATE INDEX session_unsealed ON session (id) WHERE unsealed = 1;

INSERT INTO state (
  only, epoch, fenced, entry_base, last_entry, entry_head, sealed_entry, sealed_head, acked_entry, acked_head, last_seq, segment_head,
  slot_generation
)
VALUES (
  1, 0, 0, 0,
  0, '0000000000000000000000000000000000000000000000000000000000000000',
  0, '0000000000000000000000000000000000000000000000000000000000000000',
  0, '0000000000000000000000000000000000000000000000000000000000000000',
  0, '0000000000000000000000000000000000000000000000000000000000000000',
  1
);

WITH RECURSIVE number (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM number WHERE n < 127)
INSERT INTO slot (n, data) SELECT n, zeroblob(984) FROM number;
