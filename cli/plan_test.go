package cli_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// people makes a database in which a user, a group and a placeholder can be planned, which the environment names.
func (sh *shell) people() *pgx.Conn {
	sh.t.Helper()
	conn := sh.database("main", servicetest.Migrated("all"))
	execute(sh.t, conn, `
		INSERT INTO organizations (id, path, created_at, updated_at) VALUES (1, 'o', now(), now());
		INSERT INTO users (id, name, email, username, projects_limit, state, user_type, organization_id) VALUES
			(5, 'Ghost', 'ghost@x', 'ghost', 0, 'active', 5, 1), (7, 'Sam', 'sam@x', 'sam', 0, 'active', 0, 1), (9, 'P', 'p@x', 'placeholder_9', 0, 'active', 15, 1);
		INSERT INTO namespaces (id, name, path, type, organization_id, traversal_ids) VALUES (100, 'acme', 'acme', 'Group', 1, '{100}');
		INSERT INTO routes (source_id, source_type, path, name, namespace_id) VALUES (100, 'Namespace', 'acme', 'acme', 100);
		INSERT INTO emails (user_id, email) VALUES (7, 'sam2@x'), (7, 'sam3@x')`)
	return conn
}

var anyDigest = regexp.MustCompile(`[0-9a-f]{64}`)

const planOfUser = `user 7 sam
  counts  exact
  digest  DIGEST
TABLE   MOVED  NULLIFIED  DELETED  KEPT
emails  0      0          2        0
users   0      0          1        0
`

func TestPlan_ShowsWhatADeletionWouldDo(t *testing.T) {
	sh := newShell(t)
	sh.people()
	sh.set("CARETAKER_JOBS_ENABLED", "false")
	r := sh.serving()
	assert.Equal(t, anyDigest.ReplaceAllString(r.want(0, "plan user 7"), "DIGEST"), planOfUser)
	r.want(0, "plan group 100", "group 100 acme\n  refused NO_LONGER_MARKED: it is not marked for deletion", "namespaces         0      0          1        0\n")
	r.want(0, "plan placeholder 9", "placeholder 9 placeholder_9\n  jobs    delete_user\n", "users  0      0          1        0\n")
	for command, message := range map[string]string{
		"plan user 4711":        "there is no user 4711",
		"plan group 7":          "there is no group 7: its id is that of namespaces, with the type Group",
		"plan placeholder 4711": "there is no placeholder 4711",
		"plan project 7":        `"project": must be user, group or placeholder`,
		"plan usr 7":            "did you mean user?",
		"plan user x":           `"x" is not the ID of a user`,
		"plan user 0":           `"0" is not the ID of a user`,
		"plan user -1":          `"-1" is not an ID: a number above 0`,
		"plan user":             "missing argument ID",
		"plan":                  "missing argument user|group|placeholder",
		"plan user 7 8":         `unexpected argument "8"`,
	} {
		r.want(2, command, message)
	}
	// As JSON it is the answer.
	text := r.want(0, "plan user 7")
	plan, _ := document(t, r.want(0, "plan user 7 -o json"))["plan"].(map[string]any)
	digest, _ := plan["digest"].(string)
	tables, _ := plan["tables"].([]any)
	if plan["kind"] != "user" || plan["id"] != "7" || plan["name"] != "sam" || plan["exact"] != true || plan["refused"] != nil || len(tables) != 2 ||
		digest == "" || !strings.Contains(text, digest) {
		t.Errorf("got %v", plan)
	}
	r.want(0, "protect user 7 --reason evidence")
	r.want(0, "plan user 7", "  refused PROTECTED: ", "evidence")
	plan, _ = document(t, r.want(0, "plan user 7 -o json"))["plan"].(map[string]any)
	if refused, _ := plan["refused"].(map[string]any); refused["reason"] != "PROTECTED" || plan["digest"] == digest {
		t.Errorf("got %v", plan)
	}
	r.want(2, "protect usr 7 --reason x", "did you mean user?")
	r.want(2, "run ghost_user_migraton", `unknown worker "ghost_user_migraton": there are `, "did you mean ghost_user_migration?")
	r.want(2, "run "+worker+" --database mian", "did you mean main?")
	r.want(2, "jobs --kind delete_usr", "did you mean delete_user?")
	r.want(2, "status --addrss "+r.address, "unknown flag: --addrss, did you mean --address?")
	r.want(2, "status --zzzzzzz", "unknown flag: --zzzzzzz\n")
}
