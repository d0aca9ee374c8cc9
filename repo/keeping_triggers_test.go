package repo_test

import (
	"context"
	"slices"
	"testing"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestKeepingTriggers_AreEnabledRowTriggersAndRulesOfTheTableAndItsPartitions(t *testing.T) {
	t.Parallel()
	b := newBench(t, "")
	b.exec(`CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
		CREATE TABLE plain (id bigint);
		CREATE TRIGGER keep BEFORE DELETE ON plain FOR EACH ROW EXECUTE FUNCTION keep();
		CREATE TRIGGER touch BEFORE UPDATE ON plain FOR EACH ROW EXECUTE FUNCTION keep();
		CREATE TRIGGER change BEFORE UPDATE OR DELETE ON plain FOR EACH ROW EXECUTE FUNCTION keep();
		CREATE TRIGGER off BEFORE DELETE ON plain FOR EACH ROW EXECUTE FUNCTION keep();
		ALTER TABLE plain DISABLE TRIGGER off;
		CREATE TRIGGER after AFTER DELETE ON plain FOR EACH ROW EXECUTE FUNCTION keep();
		CREATE TRIGGER statement BEFORE DELETE ON plain EXECUTE FUNCTION keep();
		CREATE RULE hide AS ON DELETE TO plain DO INSTEAD NOTHING;
		CREATE TABLE many (id bigint) PARTITION BY LIST (id);
		CREATE TABLE many_1 PARTITION OF many FOR VALUES IN (1); CREATE TABLE many_2 PARTITION OF many FOR VALUES IN (2);
		CREATE TRIGGER keep BEFORE DELETE ON many FOR EACH ROW EXECUTE FUNCTION keep();
		CREATE TRIGGER own BEFORE DELETE ON many_2 FOR EACH ROW EXECUTE FUNCTION keep();
		CREATE SCHEMA elsewhere; CREATE TABLE elsewhere.plain (id bigint);
		CREATE TRIGGER far BEFORE DELETE ON elsewhere.plain FOR EACH ROW EXECUTE FUNCTION keep()`)
	for _, c := range []struct {
		table   string
		deletes bool
		want    []string
	}{
		{"plain", true, []string{"trigger change of plain", "trigger keep of plain", "rule hide of plain"}},
		{"plain", false, []string{"trigger change of plain", "trigger touch of plain"}},
		{"many", true, []string{"trigger keep of many", "trigger own of many_2"}},
		{"many_2", true, []string{"trigger keep of many_2", "trigger own of many_2"}},
		{"many", false, nil},
		{"nowhere", true, nil},
	} {
		found := servicetest.Must(b.KeepingTriggers(context.Background(), repo.Table{Schema: "public", Name: c.table}, c.deletes))(t)
		var got []string
		for _, k := range found {
			got = append(got, k.String())
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s, deletes %t: %q, want %q", c.table, c.deletes, got, c.want)
		}
	}
}
