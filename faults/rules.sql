-- The rules of the fault harness: triggers in each database. A broken rule writes a row to
-- faults.violations in the transaction that broke it, so that a rollback is no violation.
CREATE SCHEMA faults;
CREATE TABLE faults.violations (at timestamptz NOT NULL DEFAULT clock_timestamp(), rule text NOT NULL, detail text NOT NULL);
-- The holders of leases, and the replicas that started the last attempt and any attempt of a job.
CREATE TABLE faults.epochs (
  name text, epoch bigint, app text NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp(), PRIMARY KEY (name, epoch));
CREATE TABLE faults.attempts (job_id bigint PRIMARY KEY, app text NOT NULL, begun_at timestamptz NOT NULL DEFAULT clock_timestamp());
CREATE TABLE faults.attempted (job_id bigint, app text, PRIMARY KEY (job_id, app));
-- Workers that the harness has paused, with the time of the confirmation.
CREATE TABLE faults.paused (worker text PRIMARY KEY, at timestamptz NOT NULL DEFAULT clock_timestamp());
-- Bots without an active token, and the places of the children of tracked parents.
CREATE TABLE faults.bots (id bigint PRIMARY KEY);
CREATE TABLE faults.children (parent text, child text, child_column text);
-- A row for each record that has left its queue.
CREATE TABLE faults.done (at timestamptz DEFAULT clock_timestamp());
-- The number of rows that each rule has checked. The table is unlogged: after a crash or a failover of
-- PostgreSQL the counts start at 0.
CREATE UNLOGGED TABLE faults.watched (rule text);

-- application_name names the writer: replica0, replica1 and so on are the replicas. The rules skip faults (the
-- harness) and application. They depend on repo, which keeps a name that is in the URL.
CREATE FUNCTION faults.app() RETURNS text LANGUAGE sql AS $$ SELECT current_setting('application_name') $$;
CREATE FUNCTION faults.ours() RETURNS boolean LANGUAGE sql AS $$ SELECT faults.app() IN ('faults', 'application') $$;

CREATE FUNCTION faults.violate(rule text, detail text) RETURNS void LANGUAGE sql AS $$
  INSERT INTO faults.violations (rule, detail) VALUES (rule, faults.app() || ': ' || detail)
$$;

-- A replica takes only a free lease, and its epoch grows by one. Only the holder changes it. Its times are those of
-- the database: the clocks of some replicas are seven minutes wrong, and no lease lasts for two minutes.
CREATE FUNCTION faults.lease() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE taken_by text;
BEGIN
  IF faults.ours() THEN RETURN NULL; END IF;
  INSERT INTO faults.watched VALUES ('lease');
  IF NEW.renewed_at > greatest(clock_timestamp(), transaction_timestamp())
    OR NEW.renewed_at < transaction_timestamp() - interval '2 min'
    OR NEW.expires_at > greatest(clock_timestamp(), transaction_timestamp()) + interval '2 min' THEN
    PERFORM faults.violate('the times of a lease are not by the clock of the database', to_jsonb(NEW)::text);
  END IF;
  IF TG_OP = 'INSERT' OR NEW.epoch <> OLD.epoch OR NEW.holder <> OLD.holder THEN
    -- The lease may have expired by a clock that was set back within this transaction.
    IF TG_OP = 'UPDATE' AND OLD.expires_at > greatest(clock_timestamp(), transaction_timestamp()) THEN
      PERFORM faults.violate('a lease was taken from its holder', to_jsonb(OLD)::text || ' ' || to_jsonb(NEW)::text);
    END IF;
    IF NEW.epoch <> coalesce((SELECT max(epoch) FROM faults.epochs e WHERE e.name = NEW.name), 0) + 1 THEN
      PERFORM faults.violate('an epoch did not grow by one', to_jsonb(NEW)::text);
    END IF;
    -- A run that a replica was starting when it was frozen starts nevertheless, and ends soon.
    IF EXISTS (SELECT FROM faults.paused p WHERE NEW.name IN (p.worker, p.worker || '/main')
        AND p.at < transaction_timestamp() - interval '3 s') THEN
      PERFORM faults.violate('a lease was taken while its worker was paused', to_jsonb(NEW)::text);
    END IF;
    INSERT INTO faults.epochs VALUES (NEW.name, NEW.epoch, faults.app()) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN PERFORM faults.violate('one epoch was taken twice', to_jsonb(NEW)::text); END IF;
    RETURN NULL;
  END IF;
  SELECT app INTO taken_by FROM faults.epochs e WHERE e.name = NEW.name AND e.epoch = NEW.epoch;
  IF taken_by IS DISTINCT FROM faults.app() THEN
    PERFORM faults.violate('a lease was changed by one who does not hold it', coalesce(taken_by, 'nobody') || ' ' || to_jsonb(NEW)::text);
  ELSIF OLD.expires_at < transaction_timestamp() AND NEW.expires_at > OLD.expires_at THEN
    PERFORM faults.violate('an expired lease was renewed', to_jsonb(OLD)::text || ' ' || to_jsonb(NEW)::text);
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER faults AFTER INSERT OR UPDATE ON maintenance.leases FOR EACH ROW EXECUTE FUNCTION faults.lease();

CREATE FUNCTION faults.lease_row() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM faults.violate('the row of a lease was deleted', OLD.name);
  RETURN NULL;
END $$;
CREATE TRIGGER faults_row AFTER DELETE ON maintenance.leases FOR EACH ROW EXECUTE FUNCTION faults.lease_row();

-- Every write of a worker, when it commits: this session's replica took the newest epoch of one of the
-- worker's leases, and that lease had not expired when the transaction began. It may expire while the
-- transaction runs: a guard checks it once and locks its row until the commit. So a write with a guard
-- cannot break this rule.
CREATE FUNCTION faults.needs_lease(worker text, detail text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO faults.watched VALUES ('write of a worker');
  PERFORM FROM maintenance.leases l JOIN faults.epochs e USING (name, epoch)
  WHERE (l.name = worker OR l.name LIKE worker || '/%') AND e.app = faults.app() AND l.expires_at >= transaction_timestamp();
  IF NOT FOUND THEN
    PERFORM faults.violate('written without the lease', worker || ' ' || detail || ' ' ||
      coalesce((SELECT jsonb_agg(to_jsonb(l))::text FROM maintenance.leases l WHERE l.name LIKE worker || '%'), ''));
  END IF;
END $$;

CREATE FUNCTION faults.claim() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NOT faults.ours() THEN PERFORM faults.needs_lease(TG_ARGV[0], TG_RELID::regclass::text); END IF;
  RETURN NULL;
END $$;
-- The same holds for the rows that a run changes in any database: each has a receipt there.
CREATE FUNCTION faults.receipt() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.run_id IS NOT NULL THEN PERFORM faults.needs_lease(NEW.worker, NEW."table"); END IF;
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER faults_receipt AFTER INSERT ON maintenance.receipts
  DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION faults.receipt();

-- A record leaves the queue after its last child in this database, unless its parent exists.
CREATE FUNCTION faults.record_done() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE c record; there boolean;
BEGIN
  IF TG_OP = 'UPDATE' AND NEW.status = 1 THEN RETURN NULL; END IF;
  INSERT INTO faults.done DEFAULT VALUES;
  IF to_regclass(OLD.fully_qualified_table_name) IS NOT NULL THEN
    EXECUTE format('SELECT EXISTS (SELECT FROM %s WHERE id = $1)', to_regclass(OLD.fully_qualified_table_name)) INTO there
      USING OLD.primary_key_value;
    IF there THEN
      INSERT INTO faults.watched VALUES ('record of a living parent');
      RETURN NULL;
    END IF;
  END IF;
  INSERT INTO faults.watched VALUES ('record done');
  FOR c IN SELECT * FROM faults.children WHERE parent = split_part(OLD.fully_qualified_table_name, '.', 2) LOOP
    EXECUTE format('SELECT EXISTS (SELECT FROM %I WHERE %I = $1)', c.child, c.child_column) INTO there USING OLD.primary_key_value;
    IF there THEN
      PERFORM faults.violate('a record was done before its last child',
        OLD.fully_qualified_table_name || ' ' || OLD.primary_key_value || ' ' || c.child);
    END IF;
  END LOOP;
  RETURN NULL;
END $$;

-- A postponed record or job does not wait longer than its time.
CREATE FUNCTION faults.put_off() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NOT faults.ours() AND NEW.consume_after > clock_timestamp() + TG_ARGV[0]::interval THEN
    PERFORM faults.violate('a record or a user was put off for too long', to_jsonb(NEW)::text);
  END IF;
  RETURN NULL;
END $$;

-- The queues of deleted parents. Those of users and projects are routed to the queues of their owners.
DO $$ DECLARE queue regclass; parts text[] := '{}'; BEGIN
  FOR queue IN SELECT c.oid FROM pg_class c WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'p'
    AND c.relname LIKE 'loose\_foreign\_keys\_%' LOOP
    parts := parts || format('SELECT fully_qualified_table_name, primary_key_value FROM %s WHERE status = 1', queue);
    EXECUTE format('CREATE CONSTRAINT TRIGGER faults_claim AFTER UPDATE OR DELETE ON %s
      DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (OLD.status = 1) EXECUTE FUNCTION faults.claim(''loose_foreign_keys_cleanup'')', queue);
    EXECUTE format('CREATE CONSTRAINT TRIGGER faults_done AFTER UPDATE OR DELETE ON %s
      DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (OLD.status = 1) EXECUTE FUNCTION faults.record_done()', queue);
    EXECUTE format('CREATE TRIGGER faults_put_off AFTER UPDATE ON %s FOR EACH ROW
      WHEN (NEW.consume_after > OLD.consume_after) EXECUTE FUNCTION faults.put_off(''61 min'')', queue);
  END LOOP;
  EXECUTE 'CREATE VIEW faults.pending_records AS ' || array_to_string(parts, ' UNION ALL ');
  IF to_regclass('public.users') IS NOT NULL THEN
    CREATE OR REPLACE TRIGGER users_loose_fk_trigger AFTER DELETE ON public.users REFERENCING OLD TABLE AS old_table FOR EACH STATEMENT
      EXECUTE FUNCTION insert_into_loose_foreign_keys_deleted_records(
        '[{"table": "loose_foreign_keys_organization_deleted_records", "column": "organization_id", "source": "organization_id"}]');
    CREATE OR REPLACE TRIGGER projects_loose_fk_trigger AFTER DELETE ON public.projects REFERENCING OLD TABLE AS old_table FOR EACH STATEMENT
      EXECUTE FUNCTION insert_into_loose_foreign_keys_deleted_records(
        '[{"table": "loose_foreign_keys_organization_deleted_records", "column": "organization_id", "source": "organization_id"},
          {"table": "loose_foreign_keys_namespace_deleted_records", "column": "namespace_id", "source": "namespace_id"}]');
  END IF;
END $$;

-- A repeated step has less to do: no update keeps a row as it was. Only the restoration of a group always clears its
-- details.
CREATE FUNCTION faults.changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NOT faults.ours() THEN PERFORM faults.violate('a row was changed to what it was', TG_RELID::regclass || ' ' || to_jsonb(NEW)::text); END IF;
  RETURN NULL;
END $$;
DO $$ DECLARE t regclass; BEGIN
  FOR t IN SELECT c.oid FROM pg_class c WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
    AND c.relname NOT LIKE 'loose\_foreign\_keys\_%' AND c.relname <> 'namespace_details' LOOP
    EXECUTE format('CREATE TRIGGER faults_changed AFTER UPDATE ON %s FOR EACH ROW
      WHEN (pg_trigger_depth() = 0 AND OLD.* IS NOT DISTINCT FROM NEW.*) EXECUTE FUNCTION faults.changed()', t);
  END LOOP;
END $$;
