package oracle

import (
	"github.com/caretaker-go/caretaker/repo/jobqueue"
)

// Jobs are those that wait at the start. They are requested deletions of users, and a few of bots
// and groups that must stay. These bots have a token that keeps them. These groups are not due yet,
// have no mark, or are protected.
func (e *Estate) Jobs() (all []jobqueue.Job) {
	add := func(args jobqueue.Args) { all = append(all, jobqueue.Job{Args: args}) }
	for _, u := range e.users {
		if u.deletedBy > 0 {
			add(jobqueue.DeleteUser{UserID: int64(u.id), DeletedByID: new(int64(u.deletedBy)), Reason: "asked for"})
		}
	}
	bots := 0
	for _, u := range e.users {
		if bots < 5 && u.id >= lastCast && u.kind == 6 && !e.inactive(u) {
			bots++
			bot := int64(u.id)
			add(jobqueue.DeleteUser{UserID: bot, DeletedByID: &bot, SkipAuthorization: true, Reason: jobqueue.TokenDeletionReason})
		}
	}
	groups := 0
	for _, g := range e.groups {
		by := g.by
		switch {
		case g.id == protectedGroup, groups < 8 && g.marked && !due(g) && g.by < nobody && g.id != markerGroup:
		case groups < 4 && !g.marked && !g.lost:
			by = adminUser
		default:
			continue
		}
		groups++
		add(jobqueue.DestroyGroup{GroupID: int64(g.id), UserID: new(int64(by))})
	}
	return all
}
