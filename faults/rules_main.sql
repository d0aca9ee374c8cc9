-- Rules for the tables of main: runs, jobs, and the changes that queue jobs.

-- A receipt belongs to a run whose lease is held, with the epoch of the run, or to the running attempt.
CREATE FUNCTION faults.receipt_main() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE r record; j record;
BEGIN
  IF NEW.run_id IS NOT NULL THEN
    SELECT database, lease_epoch INTO r FROM maintenance.runs WHERE id = NEW.run_id;
    IF r.lease_epoch > 0 AND r.database IN ('', 'main') AND NOT EXISTS (SELECT FROM maintenance.leases l
        WHERE l.name IN (NEW.worker, NEW.worker || '/main') AND l.epoch = r.lease_epoch) THEN
      PERFORM faults.violate('written under an epoch that is over', NEW.worker || ' ' || r.lease_epoch);
    END IF;
    RETURN NULL;
  END IF;
  INSERT INTO faults.watched VALUES ('write of a job');
  SELECT x.state, a.app INTO j FROM maintenance.river_job x LEFT JOIN faults.attempts a ON a.job_id = x.id WHERE x.id = NEW.job_id;
  IF j.state <> 'running' AND NOT EXISTS (SELECT FROM maintenance.river_job x
      WHERE x.id = NEW.job_id AND x.xmin = pg_current_xact_id()::xid) OR j.app IS DISTINCT FROM faults.app() THEN
    PERFORM faults.violate('written by an attempt that is over', NEW.job_id || ' ' || to_jsonb(j)::text);
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER faults AFTER INSERT ON maintenance.receipts FOR EACH ROW EXECUTE FUNCTION faults.receipt_main();

-- Only a replica that runs or ran a job completes it. A replica that was frozen before the completion completes the
-- job when it wakes up, perhaps during another attempt.
CREATE FUNCTION faults.job() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE begun_by text;
BEGIN
  -- A failed attempt is retried after attempt^4 seconds, by the clock of a replica, which may be minutes wrong.
  IF NOT faults.ours() AND NEW.state IN ('available', 'scheduled', 'retryable')
    AND NEW.scheduled_at > clock_timestamp() + 1.1 * interval '1 s' * (NEW.attempt + 1) ^ 4 + interval '20 min' THEN
    PERFORM faults.violate('a job was put off for too long', NEW.kind || ' attempt ' || NEW.attempt || ' until ' || NEW.scheduled_at);
  END IF;
  IF NEW.state = 'running' THEN
    INSERT INTO faults.attempts VALUES (NEW.id, faults.app())
      ON CONFLICT (job_id) DO UPDATE SET app = EXCLUDED.app, begun_at = EXCLUDED.begun_at;
    INSERT INTO faults.attempted VALUES (NEW.id, faults.app()) ON CONFLICT DO NOTHING;
    RETURN NULL;
  END IF;
  INSERT INTO faults.watched VALUES ('end of a job');
  SELECT string_agg(app, ',') INTO begun_by FROM faults.attempted WHERE job_id = NEW.id;
  IF NOT faults.ours() AND NEW.state = 'completed'
    AND (OLD.state <> 'running' OR NOT EXISTS (SELECT FROM faults.attempted a WHERE a.job_id = NEW.id AND a.app = faults.app())) THEN
    PERFORM faults.violate('a job was completed by one who has not worked it', NEW.id || ' ' || OLD.state || ' ' || coalesce(begun_by, ''));
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER faults AFTER UPDATE ON maintenance.river_job FOR EACH ROW
  WHEN (NEW.state IS DISTINCT FROM OLD.state OR NEW.attempted_at IS DISTINCT FROM OLD.attempted_at) EXECUTE FUNCTION faults.job();

-- A job and the change that causes it are one transaction, checked at its commit. xmin is the transaction's unless a
-- step uses a savepoint: rows written after a savepoint have another xmin.
CREATE FUNCTION faults.job_begun() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE caused boolean := true;
BEGIN
  IF faults.ours() THEN RETURN NULL; END IF;
  INSERT INTO faults.watched VALUES ('begin of a job');
  IF NEW.kind = 'delete_placeholder_user' THEN
    caused := EXISTS (SELECT FROM import_placeholder_user_details
      WHERE placeholder_user_id = (NEW.args ->> 'placeholder_user_id')::bigint AND xmin = pg_current_xact_id()::xid);
  ELSIF NEW.kind = 'delete_user' AND NEW.args ->> 'reason' = 'No active token assigned' THEN
    caused := EXISTS (SELECT FROM maintenance.token_passes WHERE xmin = pg_current_xact_id()::xid);
  ELSIF NEW.kind = 'delete_user' AND NEW.args ->> 'reason' = 'Group was deleted' THEN
    caused := EXISTS (SELECT FROM maintenance.receipts WHERE "table" = 'members' AND xmin = pg_current_xact_id()::xid);
  ELSIF NEW.kind = 'delete_user' AND NEW.args ->> 'reason' = 'Placeholder user is no longer referenced' THEN
    caused := EXISTS (SELECT FROM maintenance.river_job
      WHERE kind = 'delete_placeholder_user' AND state = 'completed' AND xmin = pg_current_xact_id()::xid);
  END IF;
  IF EXISTS (SELECT FROM maintenance.river_job j, maintenance.river_job i WHERE i.id = NEW.id AND i.finalized_at IS NULL
      AND j.id <> i.id AND j.finalized_at IS NULL AND j.kind = i.kind AND i.kind IN ('delete_user', 'destroy_group', 'delete_placeholder_user')
      AND (j.args -> 'user_id', j.args -> 'reason', j.args -> 'group_id', j.args -> 'placeholder_user_id')
        IS NOT DISTINCT FROM (i.args -> 'user_id', i.args -> 'reason', i.args -> 'group_id', i.args -> 'placeholder_user_id')) THEN
    PERFORM faults.violate('a job was queued that waits already', NEW.kind || ' ' || NEW.args::text);
  END IF;
  IF NOT caused THEN
    PERFORM faults.violate('a job was queued outside the transaction that causes it', NEW.kind || ' ' || NEW.args::text);
  END IF;
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER faults_begun AFTER INSERT ON maintenance.river_job DEFERRABLE INITIALLY DEFERRED
  FOR EACH ROW EXECUTE FUNCTION faults.job_begun();

CREATE FUNCTION faults.claimed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM FROM maintenance.river_job WHERE kind = 'delete_placeholder_user' AND (args ->> 'placeholder_user_id')::bigint = NEW.placeholder_user_id;
  IF NOT FOUND AND NOT faults.ours() THEN
    PERFORM faults.violate('an attempt was claimed without its job', NEW.placeholder_user_id::text);
  END IF;
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER faults_claimed AFTER UPDATE ON import_placeholder_user_details DEFERRABLE INITIALLY DEFERRED
  FOR EACH ROW WHEN (NEW.deletion_attempts > OLD.deletion_attempts) EXECUTE FUNCTION faults.claimed();
CREATE TRIGGER faults_claim AFTER UPDATE ON import_placeholder_user_details FOR EACH ROW
  WHEN (NEW.deletion_attempts > OLD.deletion_attempts) EXECUTE FUNCTION faults.claim('placeholder_user_cleanup');
CREATE TRIGGER faults_claim AFTER UPDATE OR DELETE ON ghost_user_migrations
  FOR EACH ROW EXECUTE FUNCTION faults.claim('ghost_user_migration');
CREATE TRIGGER faults_put_off AFTER UPDATE ON ghost_user_migrations FOR EACH ROW
  WHEN (NEW.consume_after > OLD.consume_after) EXECUTE FUNCTION faults.put_off('31 min');
CREATE TRIGGER faults_claim AFTER UPDATE ON maintenance.token_passes
  FOR EACH ROW EXECUTE FUNCTION faults.claim('inactive_token_deletion');

-- A cursor does not pass a bot that must be deleted and has no job.
CREATE FUNCTION faults.cursor_saved() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE skipped bigint;
BEGIN
  INSERT INTO faults.watched VALUES ('cursor saved');
  SELECT b.id INTO skipped FROM faults.bots b JOIN users u ON u.id = b.id
  WHERE b.id > OLD.cursor AND b.id <= NEW.cursor AND NOT EXISTS (SELECT FROM ghost_user_migrations g WHERE g.user_id = b.id)
    AND NOT EXISTS (SELECT FROM maintenance.river_job j WHERE j.kind = 'delete_user' AND (j.args ->> 'user_id')::bigint = b.id)
  LIMIT 1;
  IF FOUND THEN PERFORM faults.violate('a cursor was saved before the job', skipped::text); END IF;
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER faults_cursor AFTER UPDATE ON maintenance.token_passes DEFERRABLE INITIALLY DEFERRED
  FOR EACH ROW WHEN (NEW.cursor > OLD.cursor) EXECUTE FUNCTION faults.cursor_saved();

-- A fire is not missed at its time: a replica has a minute to run it.
CREATE FUNCTION faults.missed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.outcome = 'missed' AND NEW.fire_time > clock_timestamp() - interval '1 minute' THEN
    PERFORM faults.violate('a fire was given up before its time', to_jsonb(NEW)::text);
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER faults AFTER INSERT OR UPDATE ON maintenance.fires FOR EACH ROW EXECUTE FUNCTION faults.missed();

-- No child of an existing parent changes, whatever the records contain.
CREATE FUNCTION faults.living() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF EXISTS (SELECT FROM shelves WHERE id = OLD.shelf_id) THEN
    PERFORM faults.violate('a child of a living parent was changed', to_jsonb(OLD)::text);
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER faults_living AFTER UPDATE OR DELETE ON books FOR EACH ROW EXECUTE FUNCTION faults.living();

-- No protected user is deleted, whatever deletes the row.
CREATE FUNCTION faults.protected_user() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF EXISTS (SELECT FROM maintenance.protected_targets WHERE kind = 'user' AND id = OLD.id) THEN
    PERFORM faults.violate('a protected user was deleted', to_jsonb(OLD)::text);
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER faults_protected AFTER DELETE ON users FOR EACH ROW EXECUTE FUNCTION faults.protected_user();
