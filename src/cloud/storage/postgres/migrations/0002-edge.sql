-- Devices, and what the cloud knows of them. Instants are POSIX milliseconds, amounts micro-tokens, flags 0 or 1.
-- Equal in effect to the migration of the same number for SQLite.

CREATE TABLE devices (
  seq BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  id TEXT COLLATE "C" NOT NULL UNIQUE,
  name TEXT COLLATE "C",
  -- JWK, as JSON.
  public_key TEXT NOT NULL,
  thumbprint TEXT COLLATE "C" NOT NULL UNIQUE,
  key_since BIGINT NOT NULL,
  -- Announced by the device and also accepted. With its first use, it becomes public_key.
  next_public_key TEXT,
  next_thumbprint TEXT,
  -- Thumbprint of the key that an administrator wants replaced.
  replace_key TEXT,
  enrolled_at BIGINT NOT NULL,
  revoked_at BIGINT,
  -- Id of an administration key.
  revoked_by TEXT,
  suspension_state TEXT CHECK (suspension_state IN ('LOCKED', 'TERMINATED')),
  suspended_since BIGINT,
  suspended_by TEXT,
  last_sync_at BIGINT,
  software TEXT,
  epoch BIGINT NOT NULL,
  backlog BIGINT NOT NULL,
  -- `[{ instanceId, revision }]` as JSON.
  applied_policies TEXT NOT NULL,
  release_requested BIGINT NOT NULL,
  -- Reading of its clock at its last segment, as JSON.
  clock TEXT,
  -- As JSON: those that device_instances contains.
  instance_ids TEXT NOT NULL,
  -- `{ key: value }` as JSON. The rows of device_labels are the same, as an index.
  labels TEXT NOT NULL DEFAULT '{}'
);

CREATE INDEX devices_by_name ON devices (name);
CREATE INDEX devices_by_contact ON devices (last_sync_at) WHERE revoked_at IS NULL AND suspension_state IS NULL;
CREATE INDEX devices_suspended ON devices (seq) WHERE suspension_state IS NOT NULL AND revoked_at IS NULL;
CREATE INDEX devices_revoked ON devices (seq) WHERE revoked_at IS NOT NULL;

-- Every key that a device has, had or announced, kept permanently: two devices never have the same key.
CREATE TABLE device_keys (
  thumbprint TEXT COLLATE "C" NOT NULL PRIMARY KEY,
  device_id TEXT COLLATE "C" NOT NULL REFERENCES devices (id),
  -- JWK, as JSON.
  public_key TEXT NOT NULL,
  registered_at BIGINT NOT NULL
);

CREATE INDEX device_keys_by_device ON device_keys (device_id, registered_at);

CREATE TABLE device_instances (
  instance_id TEXT COLLATE "C" NOT NULL REFERENCES instances (id),
  device_id TEXT COLLATE "C" NOT NULL REFERENCES devices (id),
  PRIMARY KEY (instance_id, device_id)
);

CREATE INDEX device_instances_by_device ON device_instances (device_id);

-- In the order of a list, so that a page with a label reads only its own devices.
CREATE TABLE device_labels (
  key TEXT COLLATE "C" NOT NULL,
  value TEXT COLLATE "C" NOT NULL,
  device_seq BIGINT NOT NULL REFERENCES devices (seq),
  PRIMARY KEY (key, value, device_seq)
);

CREATE INDEX device_labels_by_device ON device_labels (device_seq, key);

CREATE TABLE enrollments (
  jti TEXT COLLATE "C" NOT NULL PRIMARY KEY,
  thumbprint TEXT NOT NULL,
  device_id TEXT COLLATE "C" NOT NULL REFERENCES devices (id),
  at BIGINT NOT NULL
);

-- Epochs of the ledgers of devices, kept permanently: without them, known entries would be billed again or refused.
CREATE TABLE epochs (
  device_id TEXT COLLATE "C" NOT NULL REFERENCES devices (id),
  number BIGINT NOT NULL,
  status TEXT NOT NULL CHECK (status IN ('ACTIVE', 'FENCED', 'CLOSED')),
  created_at BIGINT NOT NULL,
  fenced_at BIGINT,
  fence_reason TEXT,
  -- When it last reported, or was fenced.
  quiet_since BIGINT NOT NULL,
  settlement TEXT CHECK (settlement IN ('CHARGED', 'RELEASED')),
  settled_at BIGINT,
  forked BIGINT NOT NULL,
  rejected BIGINT NOT NULL,
  grants_forgotten BIGINT NOT NULL,
  carried_on BIGINT NOT NULL,
  last_seq BIGINT NOT NULL,
  last_hash TEXT NOT NULL,
  last_entry BIGINT NOT NULL,
  entry_head TEXT NOT NULL,
  term BIGINT NOT NULL,
  -- The newest recovery in which it has reported.
  recovery BIGINT NOT NULL,
  nonce TEXT COLLATE "C",
  attach_answer TEXT,
  PRIMARY KEY (device_id, number)
);

CREATE UNIQUE INDEX epochs_by_nonce ON epochs (device_id, nonce) WHERE nonce IS NOT NULL;
CREATE INDEX epochs_inactive ON epochs (quiet_since) WHERE settled_at IS NULL AND status <> 'CLOSED';
CREATE INDEX epochs_settled ON epochs (settled_at) WHERE settled_at IS NOT NULL;
CREATE UNIQUE INDEX epochs_one_active ON epochs (device_id) WHERE status = 'ACTIVE';

CREATE TABLE segments (
  device_id TEXT COLLATE "C" NOT NULL,
  epoch BIGINT NOT NULL,
  seq BIGINT NOT NULL,
  hash TEXT NOT NULL,
  PRIMARY KEY (device_id, epoch, seq),
  FOREIGN KEY (device_id, epoch) REFERENCES epochs (device_id, number)
);

-- The last segment of each epoch. A separate row is overwritten in place. In "segments", long values would leave gaps.
CREATE TABLE last_segments (
  device_id TEXT COLLATE "C" NOT NULL,
  epoch BIGINT NOT NULL,
  seq BIGINT NOT NULL,
  -- The signed segment (packed-document.ts) and the signed answer.
  document BYTEA NOT NULL,
  answer TEXT NOT NULL,
  PRIMARY KEY (device_id, epoch),
  FOREIGN KEY (device_id, epoch) REFERENCES epochs (device_id, number)
);

-- Segments that were not merged: they are from a second writer, or do not add up.
CREATE TABLE evidence (
  device_id TEXT COLLATE "C" NOT NULL,
  epoch BIGINT NOT NULL,
  hash TEXT COLLATE "C" NOT NULL,
  kind TEXT NOT NULL CHECK (kind IN ('FORK', 'REJECTED', 'UNDELIVERED_RANGE')),
  seq BIGINT NOT NULL,
  recorded_hash TEXT,
  recorded_document TEXT,
  problem TEXT,
  document TEXT NOT NULL,
  received_at BIGINT NOT NULL,
  PRIMARY KEY (device_id, epoch, hash),
  FOREIGN KEY (device_id, epoch) REFERENCES epochs (device_id, number)
);

-- Compressed already.
ALTER TABLE last_segments ALTER COLUMN document SET STORAGE EXTERNAL;

-- Shows which entries of archived deliveries were billed.
CREATE TABLE archived_entries (
  -- That of the first of these deliveries.
  seq BIGINT NOT NULL PRIMARY KEY,
  device_id TEXT COLLATE "C" NOT NULL,
  epoch BIGINT NOT NULL,
  branch BIGINT NOT NULL CHECK (branch IN (0, 1)),
  first_entry BIGINT NOT NULL,
  last_entry BIGINT NOT NULL,
  -- The first 8 bytes of the hash of each entry, in the sequence of their numbers.
  hashes BYTEA NOT NULL,
  FOREIGN KEY (device_id, epoch) REFERENCES epochs (device_id, number)
);

-- Cannot be compressed.
ALTER TABLE archived_entries ALTER COLUMN hashes SET STORAGE EXTERNAL;

CREATE INDEX archived_entries_by_entry ON archived_entries (device_id, epoch, last_entry);

CREATE TABLE device_accounts (
  device_id TEXT COLLATE "C" NOT NULL,
  epoch BIGINT NOT NULL,
  account TEXT COLLATE "C" NOT NULL REFERENCES accounts (id),
  granted BIGINT NOT NULL CHECK (granted >= 0),
  used BIGINT NOT NULL CHECK (used >= 0),
  refunded BIGINT NOT NULL CHECK (refunded >= 0 AND refunded <= used),
  returned BIGINT NOT NULL CHECK (returned >= 0),
  branch_used BIGINT NOT NULL CHECK (branch_used >= 0),
  overspend BIGINT NOT NULL CHECK (overspend >= 0),
  -- The part of branch_used that was spent above the grants, under the offline policy.
  branch_overspend BIGINT NOT NULL CHECK (branch_overspend >= 0 AND branch_overspend <= branch_used),
  presumed BIGINT NOT NULL CHECK (presumed >= 0),
  released BIGINT NOT NULL CHECK (released >= 0),
  -- The last grant was without a limit.
  unlimited BIGINT NOT NULL CHECK (unlimited IN (0, 1)),
  -- Unlimited, or unlimited at an earlier time: the device may report usage from before it received the limit.
  metered BIGINT NOT NULL CHECK (metered = unlimited OR metered = 1),
  -- Metered at any time: a copy of the device, or the restored device, may still meter it.
  was_metered BIGINT NOT NULL CHECK (was_metered = metered OR was_metered = 1),
  PRIMARY KEY (device_id, epoch, account),
  FOREIGN KEY (device_id, epoch) REFERENCES epochs (device_id, number),
  -- More is never spent and returned than was granted.
  CHECK (used - refunded + returned <= granted)
);

CREATE INDEX device_accounts_by_account ON device_accounts (account);

CREATE INDEX device_accounts_metered ON device_accounts (device_id, epoch) WHERE metered = 1;

-- Devices and parts of the cloud that got less of an account than they need, or want in advance. Written under the lock of
-- the account.
CREATE TABLE shortages (
  account TEXT COLLATE "C" NOT NULL REFERENCES accounts (id),
  -- Id of a device, or 'cloud/...' for a part of the cloud.
  who TEXT COLLATE "C" NOT NULL,
  -- Number of tokens that are needed; 0: they are only wanted in advance, or are available again.
  lacking BIGINT NOT NULL CHECK (lacking >= 0),
  -- It can be served once the pool has this many free tokens.
  enough BIGINT NOT NULL,
  -- What other devices may keep; NULL: nothing is recalled from them.
  keep BIGINT CHECK (keep >= 0),
  -- When the need began, and when it was last recorded.
  since BIGINT NOT NULL,
  at BIGINT NOT NULL,
  -- When others were last notified that tokens are recalled.
  recalled_at BIGINT,
  -- When it was last notified that tokens are available again.
  notified_at BIGINT,
  PRIMARY KEY (account, who)
);

CREATE INDEX shortages_by_time ON shortages (at);
-- Contains those with a level for other devices; the lowest level is found first.
CREATE INDEX shortages_recalled ON shortages (account, keep, at, who, lacking, enough, recalled_at)
  WHERE recalled_at IS NOT NULL;

-- Commands of administrators for sessions that the device has not reported. Its report deletes the row.
CREATE TABLE session_commands (
  device_id TEXT COLLATE "C" NOT NULL REFERENCES devices (id),
  session_id TEXT COLLATE "C" NOT NULL,
  wanted TEXT COLLATE "C" NOT NULL CHECK (wanted IN ('LOCK', 'UNLOCK', 'TERMINATE')),
  at BIGINT NOT NULL,
  PRIMARY KEY (device_id, session_id)
);

-- Tokens of a line item that devices may spend above their grants while they are offline; no row, or 0: none.
CREATE TABLE offline_policies (
  instance_id TEXT COLLATE "C" NOT NULL REFERENCES instances (id),
  line_item_id TEXT COLLATE "C" NOT NULL,
  overspend_cap BIGINT NOT NULL CHECK (overspend_cap >= 0),
  -- The highest that any revision of the rules has had.
  overspend_cap_max BIGINT NOT NULL CHECK (overspend_cap_max >= overspend_cap),
  PRIMARY KEY (instance_id, line_item_id)
);

-- Tokens of a line item, in each period, that devices are never granted; no row, or 0: none.
CREATE TABLE cloud_reserves (
  instance_id TEXT COLLATE "C" NOT NULL REFERENCES instances (id),
  line_item_id TEXT COLLATE "C" NOT NULL,
  tokens BIGINT NOT NULL CHECK (tokens >= 0),
  PRIMARY KEY (instance_id, line_item_id)
);

-- Post-restore recovery of an instance: the database comes from a backup, and may not know all that was sold and granted.
CREATE TABLE recoveries (
  instance_id TEXT COLLATE "C" NOT NULL PRIMARY KEY REFERENCES instances (id),
  -- Above those of all earlier recoveries of the store. Devices must report in this one or a newer one.
  number BIGINT NOT NULL,
  since BIGINT NOT NULL,
  -- Why it is not known how much was sold, so that nothing is: 'MARK' until an administrator ends the recovery, 'NODE' until
  -- another node has shown its sales mark. NULL: what may have been sold is withheld from each account, and the rest is sold.
  unproven TEXT CHECK (unproven IN ('MARK', 'NODE')),
  -- NULL: under way.
  ended_at BIGINT
);

-- The sales mark of each node: a file outside the database, which a restore of the database leaves as it is.
CREATE TABLE sales_marks (
  id TEXT COLLATE "C" NOT NULL PRIMARY KEY,
  -- Counted up in the file and here: where the two differ, one of them is older than the other.
  turn BIGINT NOT NULL,
  seen_at BIGINT NOT NULL,
  -- Recovery waits for what this mark shows.
  awaited BIGINT NOT NULL,
  -- It was there before the database had anything to lose, or a node that has its own mark has accepted it.
  accepted BIGINT NOT NULL
);

-- When the cloud last learned that it was restored from a backup; one row at most. It knows only a part of what happened
-- before.
CREATE TABLE last_restore (
  slot BIGINT NOT NULL PRIMARY KEY CHECK (slot = 1),
  at BIGINT NOT NULL,
  -- 0: it may have been later. Until a node trusts its wall clock, the time of the restore is not known.
  dated BIGINT NOT NULL CHECK (dated IN (0, 1))
);

-- Policies as signed, once per revision; the newest of each instance.
CREATE TABLE policy_documents (
  instance_id TEXT COLLATE "C" NOT NULL REFERENCES instances (id),
  revision BIGINT NOT NULL,
  document TEXT NOT NULL,
  PRIMARY KEY (instance_id, revision)
);

-- The key that signs for all nodes, by its thumbprint; one row at most.
CREATE TABLE signing_key (
  slot BIGINT NOT NULL PRIMARY KEY CHECK (slot = 1),
  thumbprint TEXT NOT NULL,
  since BIGINT NOT NULL
);

-- The cell that this database is; no row: it is the whole cloud.
CREATE TABLE cell (
  slot BIGINT NOT NULL PRIMARY KEY CHECK (slot = 1),
  name TEXT NOT NULL,
  -- 1: rate tables, keys and configuration are changed here, and copied to the other cells.
  is_control BIGINT NOT NULL CHECK (is_control IN (0, 1)),
  -- The same in all cells of a cloud.
  cloud_id TEXT NOT NULL
);

-- In the first cell: all cells of the cloud. A node that lacked one would not know its instances.
CREATE TABLE cell_name (
  name TEXT COLLATE "C" NOT NULL PRIMARY KEY
);

-- Who changed what, kept permanently. Written in the transaction of the change.
CREATE TABLE audit (
  seq BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  at BIGINT NOT NULL,
  by_kind TEXT NOT NULL CHECK (by_kind IN ('ADMINISTRATOR', 'CLIENT', 'DEVICE', 'CLOUD')),
  -- Of the key that signed the token, or the subject at the issuer; NULL for CLOUD.
  key_id TEXT COLLATE "C",
  -- Of the key, the device or the person at that time.
  key_name TEXT,
  -- The OpenID Connect provider of an administrator who signed in.
  issuer TEXT,
  action TEXT NOT NULL,
  instance_id TEXT COLLATE "C",
  line_item_id TEXT COLLATE "C",
  device_id TEXT COLLATE "C",
  session_id TEXT COLLATE "C",
  -- JSON: other objects, and the values that were set.
  detail TEXT,
  -- 1: a session that a client or device opened or closed. Such rows are deleted after a while.
  is_traffic BIGINT NOT NULL CHECK (is_traffic IN (0, 1))
);

CREATE INDEX audit_by_traffic ON audit (is_traffic, seq);
CREATE INDEX audit_by_instance ON audit (instance_id, is_traffic, seq);
CREATE INDEX audit_by_device ON audit (device_id, is_traffic, seq);

-- The instances of rows without instance_id: those of the device or of the enrollment token.
CREATE TABLE audit_instances (
  instance_id TEXT COLLATE "C" NOT NULL,
  seq BIGINT NOT NULL REFERENCES audit (seq),
  PRIMARY KEY (instance_id, seq)
);

-- When a node last trusted its wall clock; one row at most. A node whose clock does not fit it pauses its sweeps.
CREATE TABLE clock_record (
  slot BIGINT NOT NULL PRIMARY KEY CHECK (slot = 1),
  at BIGINT NOT NULL,
  -- Time since boot, ms, and which boot.
  since_boot BIGINT NOT NULL,
  boot_id TEXT COLLATE "C" NOT NULL
);

-- Times, by the clock, that may not have passed: the cloud was off, or the clock jumped.
CREATE TABLE clock_gaps (
  until BIGINT NOT NULL PRIMARY KEY,
  since BIGINT NOT NULL
);

-- An administrator has confirmed the settlement of every epoch that was inactive since before this instant; one row at most.
CREATE TABLE settlement_confirmed (
  slot BIGINT NOT NULL PRIMARY KEY CHECK (slot = 1),
  quiet_before BIGINT NOT NULL
);
