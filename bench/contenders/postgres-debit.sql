-- The debit that the agent makes, as PostgreSQL would: both accounts must have the amount, then both are debited and the ledger
-- gets its entry. All callers need the same two rows.
CREATE TABLE account (id text PRIMARY KEY, available bigint NOT NULL CHECK (available >= 0)) WITH (fillfactor = 50);
CREATE TABLE ledger (n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, body text NOT NULL);
INSERT INTO account VALUES ('line', 9000000000000000), ('action', 9000000000000000);

CREATE FUNCTION debit(amount bigint, body text) RETURNS integer LANGUAGE plpgsql AS $$
BEGIN
  UPDATE account SET available = available - amount WHERE id = 'line' AND available >= amount;
  IF NOT FOUND THEN RAISE EXCEPTION 'INSUFFICIENT_TOKENS'; END IF;
  UPDATE account SET available = available - amount WHERE id = 'action' AND available >= amount;
  IF NOT FOUND THEN RAISE EXCEPTION 'ALLOCATION_EXHAUSTED'; END IF;
  INSERT INTO ledger (body) VALUES (debit.body);
  RETURN 1;
END $$;
