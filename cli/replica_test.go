package cli_test

import (
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
)

func TestServe_AReplicaThatCannotBeReadIsAWarning(t *testing.T) {
	sh := newShell(t)
	sql := sh.prepared()
	for url, words := range map[string][]string{
		"postgres://nobody@127.0.0.1:1/none?sslmode=disable": {"replica not readable, reading from the primary until it is", "unreachable"},
		"host=x port=many":                   {"replica not used, reading from the primary", "databases.main.replica_url"},
		sql.Config().ConnString():            {"replica not readable", "it is no standby"},
		databases.Cluster(t).URL("postgres"): {"replica not readable", "it is no standby"},
	} {
		sh.set("CARETAKER_DATABASES_MAIN_REPLICA_URL", url)
		r := sh.serving()
		r.want(0, "status", worker)
		r.stop()
		assert.Equal(t, <-r.exit, 0, "exit", &r.log)
		assert.Contains(t, r.log.String(), words...)
	}
}

func TestFault_Serve_WarnsOfAPoolerWithoutItsSetting(t *testing.T) {
	sh := newShell(t)
	sql := sh.prepared()
	p := assert.Must(databases.Cluster(t).Pooler(t.Context(), 3))(t)
	defer func() {
		if err := p.Stop(); err != nil {
			t.Error(err)
		}
	}()
	for url, warns := range map[string]bool{p.URL(sql.Config().Database): false, p.PlainURL(sql.Config().Database): true} {
		sh.set("CARETAKER_DATABASES_MAIN_URL", url)
		r := sh.serving()
		r.stop()
		<-r.exit
		assert.Equal(t, strings.Contains(r.log.String(), "add default_query_exec_mode=exec to databases.main.url"), warns, "warned", url, &r.log)
	}
}
