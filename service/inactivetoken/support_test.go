package inactivetoken_test

// continuations are the jobs that go on with a pass, by their states.
const continuations = `SELECT coalesce(string_agg(state::text, ' ' ORDER BY id), '') FROM maintenance.river_job WHERE kind = 'continue_inactive_token_deletion'`

// passes are all passes: cursor, examined, scheduled, and whether they are finished.
const passes = `SELECT coalesce(string_agg(concat_ws('/', cursor, examined, scheduled) || CASE WHEN finished_at IS NULL THEN '' ELSE ' finished' END, ', ' ORDER BY started_at), '') FROM maintenance.token_passes`
