package oracle

import "math/rand/v2"

// Rows of users beside issues and notes: merge requests in any project, and epics in the first
// group, which stays.

// addBelongings draws from a source of its own, so that what a seed means elsewhere does not change.
func (e *Estate) addBelongings(random *rand.Rand) {
	for id := 1; id <= 40*e.size; id++ {
		e.mergeRequests = append(e.mergeRequests, text{id: id, author: e.anybody(random), project: 1 + random.IntN(len(e.projects))})
		e.epics = append(e.epics, text{id: id, author: e.anybody(random)})
	}
}

func (e *Estate) loadBelongings(w *writer) {
	for _, m := range e.mergeRequests {
		w.main.Queue(`INSERT INTO merge_requests (id, target_branch, source_branch, target_project_id, author_id, iid)
			VALUES ($1::bigint, 'main', 'topic', $2, $3, $1::bigint)`, m.id, m.project, m.author)
	}
	for _, x := range e.epics {
		w.main.Queue(`INSERT INTO epics (id, group_id, iid, title, author_id) VALUES ($1::bigint, $2, $1::bigint, 'e', $3)`, x.id, FirstGroup, x.author)
	}
}

// addUsersBelongings adds what a user who stays keeps.
func (e *Estate) addUsersBelongings(add func(string, ...any), u user) {
	if len(u.tokens) > 0 {
		revoked := 0
		for _, t := range u.tokens {
			revoked += min(t.revoked, 1)
		}
		add("tokens", u.id, len(u.tokens), "revoked", revoked)
	}
	if u.placed {
		group, attempts := u.group, 0
		if e.groupGone(group) {
			group = 0
		}
		if e.candidate(u) {
			attempts = 1
		}
		add("placeholders", u.id, "of", group, "attempts", attempts)
	}
}

// addWork adds merge requests, which go as issues do, and epics.
func (e *Estate) addWork(add func(string, ...any)) {
	for _, m := range e.mergeRequests {
		if !e.issueGone(m) {
			add("merge requests", m.id, e.author(m.author))
		}
	}
	for _, x := range e.epics {
		if x.author != hardDeleted {
			add("epics", x.id, e.author(x.author))
		}
	}
}
