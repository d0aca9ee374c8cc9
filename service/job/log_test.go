package job_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestDeleteUser_TheLogOfAFailureHasNoWordsOfTriggers(t *testing.T) {
	t.Parallel()
	e := servicetest.NewTokens(t)
	e.User(7, 0, 1)
	e.Exec("main", `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'a secret of %', NEW.email; END $$;
		CREATE TRIGGER refuse BEFORE UPDATE ON users FOR EACH ROW EXECUTE FUNCTION refuse()`)
	log := &bytes.Buffer{}
	if _, err := e.AttemptOf(e.Service("", e.WithQueue, servicetest.TracedLogTo(log)), servicetest.Authorized(7), nil); err == nil {
		t.Fatal("the trigger has refused nothing")
	}
	if text := log.String(); strings.Contains(text, "secret") || !strings.Contains(text, "on main: P0001 raise_exception, table users") {
		t.Errorf("logged %s", text)
	}
}
