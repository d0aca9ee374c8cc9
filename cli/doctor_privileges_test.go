package cli_test

import (
	"fmt"
	"net/url"
	"testing"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// The path of docs/guides/security.md#database-privileges, without a superuser.
func TestDoctor_EndsWithoutErrorsForARoleThatOwnsNothing(t *testing.T) {
	for _, c := range []struct {
		use      string
		commands []string
		want     string
	}{
		{
			"loose_foreign_keys",
			[]string{"migrate", "lfk install", "lfk track orders"},
			"0 errors, 1 warning",
		},
		{"gitlab", []string{"migrate"}, "0 errors, 3 warnings"},
	} {
		t.Run(c.use, func(t *testing.T) {
			sh := newShell(t)
			sh.set("CARETAKER_USE", c.use)
			address := databases.Clone(t, devdb.Template{Name: "bare"})
			super := servicetest.Connect(t, address)
			id, database := super.PgConn().PID(), super.Config().Database
			owner, cleaner := fmt.Sprintf("owner_%d", id), fmt.Sprintf("cleaner_%d", id)
			execute(t, super, fmt.Sprintf(`CREATE ROLE %s LOGIN PASSWORD 'x';
				CREATE ROLE %s LOGIN PASSWORD 'x'; ALTER DATABASE %s OWNER TO %[1]s;
				ALTER SCHEMA public OWNER TO %[1]s`, owner, cleaner, database))
			t.Cleanup(func() {
				execute(t, super, "ALTER DATABASE "+database+" OWNER TO CURRENT_USER")
				execute(t, super, fmt.Sprintf("DROP OWNED BY %s, %s; DROP ROLE %[1]s, %[2]s", owner, cleaner))
			})
			as := func(role string) string {
				u := assert.Must(url.Parse(address))(t)
				u.User = url.UserPassword(role, "x")
				return u.String()
			}
			owned := servicetest.Connect(t, as(owner))
			if c.use == "gitlab" {
				assert.NoError(t, devdb.LoadSchema(t.Context(), as(owner), "main"))
			} else {
				execute(t, owned, `CREATE TABLE orders (id bigint PRIMARY KEY);
					CREATE TABLE order_items (id bigint PRIMARY KEY, order_id bigint);
					CREATE INDEX ON order_items (order_id)`)
				sh.defined("order_items: [{table: orders, column: order_id, on_delete: async_delete}]")
			}

			sh.set("CARETAKER_DATABASES_MAIN_URL", as(owner))
			for _, command := range c.commands {
				sh.want(0, command)
			}
			script := sh.want(0, "doctor --grants --role "+cleaner+" --database main")
			sh.set("CARETAKER_DATABASES_MAIN_URL", as(cleaner))
			before := sh.want(1, "doctor --output json", cleaner+" has no privileges on the maintenance schema",
				"`caretaker doctor --grants --role "+cleaner+" --database main`")
			assert.Lacks(t, before, "42501")
			execute(t, owned, script)
			sh.want(0, "doctor", c.want)
		})
	}
}
