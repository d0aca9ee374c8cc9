package group_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// routes of everything, "source=path (name)".
const routesSQL = `SELECT string_agg(format('%s%s=%s (%s)', left(source_type, 1), source_id, path, name), ', ' ORDER BY source_type, source_id) FROM routes`

func TestAdjournedGroupDeletion_Restore(t *testing.T) {
	servicetest.Turns(t, servicetest.NewGroups(servicetest.Parallel(t)),
		restoreGivesBackNamesRoutesAndState, restoreTakesOffOnlyTheGroupsOwnSuffix,
		restoreFindsFreeNamesAndTheOldState, restoreIsAllOrNothing, failedRestoreStopsNoOtherGroup,
	)
}

func restoreGivesBackNamesRoutesAndState(g *servicetest.Groups) {
	// From 80 on there are neighbours whose routes only look alike: "_" is no wildcard, and the parts must end where they end.
	plant(g, "5 path=p_1", "77<5 path=team-deletion_scheduled-77 mark=1@15 state=2", "78<77 path=sub-deletion_scheduled-77 state=1",
		"80<5 path=team-deletion_scheduled-770", "81 path=px1", "82<81 path=team-deletion_scheduled-77")
	g.Project(8, 78, "code")
	g.Project(9, 77, "team-deletion_scheduled-77")
	g.Project(10, 82, "code")
	g.MarkDetails(77, 15, `{"deletion_scheduled_by_user_id": 1, "deletion_error": "x", "last_error": "y", "preserved_states": {"schedule_deletion": "ancestor_inherited"}}`)
	g.Exec("main", `UPDATE namespaces SET updated_at = '2001-01-01'`)
	r := g.Run("restored_groups=1")

	g.Want("main", routesSQL, "N5=p_1 (P_1), N77=p_1/team (P_1 / Team), N78=p_1/team/sub-deletion_scheduled-77 (P_1 / Team / Sub-deletion_scheduled-77), "+
		"N80=p_1/team-deletion_scheduled-770 (P_1 / Team-deletion_scheduled-770), N81=px1 (Px1), N82=px1/team-deletion_scheduled-77 (Px1 / Team-deletion_scheduled-77), "+
		"P8=p_1/team/sub-deletion_scheduled-77/code (P_1 / Team / Sub-deletion_scheduled-77 / Code), "+
		"P9=p_1/team/team-deletion_scheduled-77 (P_1 / Team / Team-deletion_scheduled-77), P10=px1/team-deletion_scheduled-77/code (Px1 / Team-deletion_scheduled-77 / Code)")
	g.Want("main", `SELECT format('%s %s %s %s', path, name, state, updated_at > now() AT TIME ZONE 'UTC' - interval '1 hour') FROM namespaces WHERE id = 77`, "team Team 0 t")
	g.Want("main", `SELECT string_agg(id || ' ' || state, ', ' ORDER BY id) FROM namespaces WHERE updated_at = '2001-01-01' AND state <> 0`, "78 1")
	g.WantMarked("")
	g.Want("main", `SELECT state_metadata FROM namespace_details WHERE namespace_id = 77`, `{"last_error": "y"}`)
	g.WantLog(1, "group restored", "group_id=77", "user_id=1", "old_path=p_1/team-deletion_scheduled-77", "new_path=p_1/team")
	got := fmt.Sprint(r.Tables)
	assert.That(g.T, got == "[{group_deletion_schedules 1 0} {namespace_details 0 1} {namespaces 0 1} {routes 0 4}]", "tables %s", got)
}

func restoreTakesOffOnlyTheGroupsOwnSuffix(g *servicetest.Groups) {
	cases := []struct{ path, want string }{
		{"a-deleted-10", "a"},
		{"b", "b"},
		{"c-deletion_scheduled-1", "c-deletion_scheduled-1"},
		{"d-deletion_scheduled-113", "d-deletion_scheduled-113"},
		{"e-deleted-14-x", "e-deleted-14-x"},
		{"-deletion_scheduled-15", "-deletion_scheduled-15"},
		{"f-deleted-16-deletion_scheduled-16", "f-deleted-16"},
		{"g-DELETED-17", "g-DELETED-17"},
	}
	for i, c := range cases {
		plant(g, fmt.Sprintf("%d path=%s mark=1@15", 10+i, c.path))
	}
	g.Run("restored_groups=8")
	for i, c := range cases {
		want := c.want + " " + strings.ToUpper(c.want[:1]) + c.want[1:] + " " + c.want
		g.Want("main", fmt.Sprintf(`SELECT n.path || ' ' || n.name || ' ' || r.path FROM namespaces n JOIN routes r ON r.source_id = n.id WHERE n.id = %d`, 10+i), want)
	}
	g.WantMarked("")
}

func restoreFindsFreeNamesAndTheOldState(g *servicetest.Groups) {
	plant(g, "77 path=team-deletion_scheduled-77 mark=1@15", "5", "6<5 path=team", "20", "21<20 path=crew-deletion_scheduled-21 mark=1@15",
		"22<21",
		"23<20", "30", "31<30 path=staff-deletion_scheduled-31 mark=1@15")
	g.Project(8, 77, "code")
	g.Project(9, 31, "code")
	// A path is taken without regard to case, by whatever group. A name by a sibling only. The last
	// group has no route.
	g.Exec("main", `UPDATE routes SET path = 'TEAM' WHERE source_id = 6; UPDATE namespaces SET name = 'Crew' WHERE id = 23;
		DELETE FROM routes WHERE source_id = 31`)
	// States that were preserved.
	for id, metadata := range map[int]string{
		40: `{"preserved_states": {"schedule_deletion": "archived"}, "deletion_scheduled_by_user_id": 1}`,
		41: `{"preserved_states": {"schedule_deletion": "archived", "other": "kept"}, "deletion_scheduled_by_user_id": "1"}`,
		42: `{"preserved_states": ["schedule_deletion"], "deletion_scheduled_by_user_id": 1}`,
		43: `{"preserved_states": {}, "deletion_scheduled_by_user_id": 1}`,
	} {
		g.Group(id, 0, fmt.Sprintf("g%d", id))
		g.MarkDetails(id, 15, metadata)
	}
	g.Exec("main", `UPDATE namespaces SET state = CASE WHEN id = 43 THEN 6 ELSE 2 END WHERE id BETWEEN 40 AND 43`)
	g.Run("restored_groups=7")

	path, name := g.Value("main", `SELECT path FROM namespaces WHERE id = 77`), g.Value("main", `SELECT name FROM namespaces WHERE id = 21`)
	random := regexp.MustCompile(`^(team|Crew)-[a-z0-9]{5}$`)
	assert.That(g.T, random.MatchString(path) && random.MatchString(name), "path %q, name %q", path, name)
	g.Want("main", `SELECT string_agg(path, ' ' ORDER BY id) FROM routes WHERE path LIKE 'team%'`, path+" "+path+"/code")
	g.WantLog(1, "group restored", "new_path="+path)
	g.Want("main", `SELECT string_agg(path || '=' || name, ', ' ORDER BY source_id) FROM routes WHERE path LIKE 'g20/crew%'`,
		"g20/crew=G20 / "+name+", g20/crew/g22=G20 / "+name+" / G22")
	g.Want("main", `SELECT string_agg(path || '=' || name, ', ') FROM routes WHERE path LIKE 'g30/%'`, "g30/staff/code=G30 / Staff / Code")
	g.Want("main", `SELECT string_agg(concat_ws(' ', path, CASE id WHEN 77 THEN name END), ', ' ORDER BY id) FROM namespaces
		WHERE id IN (21, 31, 77)`,
		"crew, staff, "+path+" Team")
	g.Want("main", `SELECT string_agg(format('%s %s %s', id, state, state_metadata), ', ' ORDER BY id)
		FROM namespaces JOIN namespace_details ON namespace_id = id WHERE id BETWEEN 40 AND 43`,
		`40 1 {}, 41 1 {"preserved_states": {"other": "kept"}}, 42 0 {"preserved_states": ["schedule_deletion"]}, 43 6 {}`)
}

// 2,500 routes are more than two statements. A stale route of another group is in the way of the
// last one.
func restoreIsAllOrNothing(g *servicetest.Groups) {
	g.Group(77, 0, "team-deletion_scheduled-77")
	g.Exec("main", `INSERT INTO routes (source_type, source_id, namespace_id, path, name)
		SELECT 'Project', i, 77, 'team-deletion_scheduled-77/p' || i, NULL FROM generate_series(1, 2500) i`)
	g.Exec("main", `INSERT INTO routes (source_type, source_id, namespace_id, path) VALUES ('Project', 9999, 77, 'team/p999')`)
	g.Mark(77, 1, 15)
	before := g.Value("main", `SELECT md5(string_agg(r::text, '' ORDER BY id)) FROM routes r`)
	r := g.Run("failed_groups=1")
	assert.That(g.T, r.Reason != "", "the reason does not say that a group failed")
	st, err := g.Service.Status(g.T.Context(), servicetest.AdjournedGroups)
	assert.That(g.T, err == nil && strings.Contains(st[0].ConditionDetail, "last run ("+r.ID+"): 1 group "+
		"failed"), "status %v, %v", st, err)
	g.Want("main", `SELECT md5(string_agg(r::text, '' ORDER BY id)) FROM routes r`, before)
	g.WantMarked("77")
	g.WantLog(1, "group failed", "level=ERROR", "group_id=77", "unique_violation")
	g.Exec("main", `DELETE FROM routes WHERE source_id = 9999`)
	g.Run("restored_groups=1")
	g.Want("main", `SELECT count(*) FROM routes WHERE path ~ '^team(/p[0-9]+)?$'`, "2501")
}

func failedRestoreStopsNoOtherGroup(g *servicetest.Groups) {
	plant(g, "10 path=g10-deletion_scheduled-10 mark=1@15", "11 path=g11-deletion_scheduled-11 mark=1@15",
		"12 path=g12-deletion_scheduled-12 mark=1@15",
		"13 owner=1 mark=1@15")
	g.Exec("main", `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not this one'; END $$`)
	g.Exec("main", `CREATE TRIGGER refuse BEFORE DELETE ON group_deletion_schedules FOR EACH ROW WHEN (OLD.group_id = 11) EXECUTE FUNCTION refuse()`)
	g.Run("restored_groups=2 failed_groups=1 scheduled_jobs=1")
	g.WantMarked("11 13")
	g.Want("main", `SELECT string_agg(path, ' ' ORDER BY source_id) FROM routes`, "g10 g11-deletion_scheduled-11 g12 g13")
	g.Want("main", `SELECT path FROM namespaces WHERE id = 11`, "g11-deletion_scheduled-11")
	g.WantJobs("13:1@60")
}
