package oracle

import "math/rand/v2"

// Rows in ci and sec: some have parents in main. Others are parents that are deleted, with children
// in main.

// pipeline has one build, with the same user. 0 means no user, no trigger.
type pipeline struct{ id, project, user, trigger int }

// vulnerability has a note in the first project, which stays. 0 means that it is not resolved.
type vulnerability struct{ id, project, resolvedBy int }

// triggers are how many there are. Every second one is deleted at the start, and so is every third
// vulnerability.
func (e *Estate) triggers() int { return 20 * e.size }

func triggerGone(id int) bool { return id%2 == 0 }

// addElsewhere draws from a source of its own, so that what a seed means in main does not change.
func (e *Estate) addElsewhere(random *rand.Rand) {
	user := func() int {
		u := e.users[random.IntN(e.lastUser)]
		if u.kind == 15 || u.id == hardDeleted { // a placeholder with a pipeline is still referenced
			return 0
		}
		return u.id
	}
	for id := 1; id <= 80*e.size; id++ {
		project := 1 + random.IntN(len(e.projects))
		e.pipelines = append(e.pipelines, pipeline{id, project, user(), random.IntN(e.triggers() + 1)})
	}
	for id := 1; id <= 40*e.size; id++ {
		e.vulnerabilities = append(e.vulnerabilities, vulnerability{id, 1 + random.IntN(len(e.projects)), user()})
	}
}

func (e *Estate) vulnerabilityGone(v vulnerability) bool {
	return v.id%3 == 0 || e.projectGone(v.project)
}

func (e *Estate) loadElsewhere(w *writer) {
	w.ci.Queue(`INSERT INTO ci_triggers (id, token, project_id, owner_id) SELECT n, n, 1, $2 FROM generate_series(1, $1::integer) n`,
		e.triggers(), Owner)
	for _, p := range e.pipelines {
		w.ci.Queue(`INSERT INTO p_ci_pipelines (id, partition_id, project_id, user_id, trigger_id)
			VALUES ($1, $2, $3, nullif($4::bigint, 0), nullif($5::bigint, 0))`, p.id, 100+p.id%3, p.project, p.user, p.trigger)
		w.ci.Queue(`INSERT INTO p_ci_builds (id, partition_id, project_id, user_id) VALUES ($1, $2, $3, nullif($4::bigint, 0))`,
			p.id, 100+p.id%3, p.project, p.user)
	}
	w.ci.Queue(`DELETE FROM ci_triggers WHERE id % 2 = 0`)
	for _, v := range e.vulnerabilities {
		w.sec.Queue(`INSERT INTO vulnerabilities (id, project_id, author_id, resolved_by_id, title, created_at, updated_at)
			VALUES ($1, $2, $3, nullif($4::bigint, 0), 'v', now(), now())`, v.id, v.project, Owner, v.resolvedBy)
		w.main.Queue(`INSERT INTO notes (id, noteable_type, noteable_id, author_id, project_id) VALUES ($1, 'Vulnerability', $2, $3, 1)`,
			50_000+v.id, v.id, Owner)
	}
	w.sec.Queue(`DELETE FROM vulnerabilities WHERE id % 3 = 0`)
}

func (e *Estate) addElsewhereRows(add func(string, ...any)) {
	// The ghost migration clears who has resolved something, also where the user stays in the end.
	resolvedBy := func(user int) int {
		if user == 0 || user == KeptByProject || e.userGone(user) {
			return 0
		}
		return user
	}
	runBy := func(user int) string {
		if user == 0 {
			return "nobody"
		}
		return e.author(user)
	}
	for _, p := range e.pipelines {
		if e.projectGone(p.project) {
			continue
		}
		trigger := p.trigger
		if triggerGone(trigger) {
			trigger = 0
		}
		add("pipelines", p.id, runBy(p.user), "trigger", trigger)
		add("builds", p.id, runBy(p.user))
	}
	for _, v := range e.vulnerabilities {
		if !e.vulnerabilityGone(v) {
			add("vulnerabilities", v.id, "resolved by", resolvedBy(v.resolvedBy))
			add("notes of vulnerabilities", v.id)
		}
	}
}
