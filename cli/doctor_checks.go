package cli

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/caretaker-go/caretaker/config"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/bulk"
	"github.com/caretaker-go/caretaker/service/loosefk"
)

// connection finds out whether a database answers, by a name of its own, and can be written to.
func (d *doctor) connection(ctx context.Context, database *repo.Database) ([]finding, error) {
	facts, err := database.ServerFacts(ctx)
	if err != nil {
		return []finding{unanswered(database.Name, err)}, nil
	}
	d.facts[database] = facts
	url := "databases." + database.Name + ".url"
	switch {
	case facts.Standby:
		return []finding{failed("it is a standby: nothing can be written",
			"let "+url+" lead to the primary, and replica_url to the standby")}, nil
	case facts.ReadOnly:
		return []finding{failed("it is read-only", fmt.Sprintf("take default_transaction_read_only "+
			"from the server, the database or the role %s", facts.Role))}, nil
	}
	return nil, nil
}

func (d *doctor) tls(_ context.Context, database *repo.Database) ([]finding, error) {
	return encryption(d.facts[database], "databases."+database.Name+".url"), nil
}

// encryption is what there is to say of a connection; key has its URL.
func encryption(f repo.ServerFacts, key string) []finding {
	switch {
	case f.Local:
	case !f.Encrypted:
		return []finding{warning("the connection is not encrypted", "add sslmode=verify-full to "+key)}
	case !f.Verified:
		return []finding{warning("nobody checks the certificate of the server: any server that is in "+
			"between would be believed", "add sslmode=verify-full, and sslrootcert, to "+key)}
	}
	return nil
}

// The versions of PostgreSQL that caretaker is tried with.
const oldestServer, newestServer = 14, 18

func (d *doctor) version(_ context.Context, database *repo.Database) ([]finding, error) {
	f := d.facts[database]
	supported := fmt.Sprintf("caretaker is made for %d to %d", oldestServer, newestServer)
	switch major := f.Number / 10000; {
	case major < oldestServer:
		return []finding{failed("PostgreSQL "+f.Version+": "+supported, "upgrade the server")}, nil
	case major > newestServer:
		return []finding{warning("PostgreSQL "+f.Version+": "+supported,
			"look for a newer caretaker, or try this one on a copy first")}, nil
	}
	return nil, nil
}

// maxSkew is how far clocks may be apart before that is worth a word. What is due, and whether a
// lease holds, is decided by a clock of one database alone.
const maxSkew = 2 * time.Second

func (d *doctor) clock(_ context.Context, database *repo.Database) (found []finding, _ error) {
	f := d.facts[database]
	if f.TimeZone != "UTC" {
		found = append(found, failed("the session's TimeZone is "+f.TimeZone+", though UTC was asked "+
			"for: dates would be wrong", "let the pooler pass on TimeZone (docs/databases.md)"))
	}
	if f.Ahead.Abs() > maxSkew+f.Within {
		found = append(found, warning("its clock is "+apart(f.Ahead)+" that of this machine: times in "+
			"logs and traces do not fit", "let NTP set both clocks"))
	}
	return found, nil
}

// hasMain reports whether the URL of main can be read: then it is the first of the databases.
func (d *doctor) hasMain() bool {
	return len(d.databases) > 0 && d.databases[0].Name == mainDatabase
}

// apart is how far a clock is from another one.
func apart(by time.Duration) string {
	if by < 0 {
		return by.Abs().Round(100*time.Millisecond).String() + " behind"
	}
	return by.Round(100*time.Millisecond).String() + " ahead of"
}

// clocks compares the servers with that of main, where it answers.
func (d *doctor) clocks(context.Context) (found []finding, _ error) {
	if !d.hasMain() {
		return nil, nil
	}
	main, ok := d.facts[d.databases[0]]
	for _, database := range d.databases[1:] {
		f, known := d.facts[database]
		by := f.Ahead - main.Ahead
		if ok && known && by.Abs() > maxSkew+f.Within+main.Within {
			one := warning("its clock is "+apart(by)+" that of main: what is postponed in one database "+
				"is due at another time in the other", "let NTP set the clocks of the servers")
			one.Database = database.Name
			found = append(found, one)
		}
	}
	return found, nil
}

// pooler looks at what may stand between us and the server, and at settings of the session.
func (d *doctor) pooler(ctx context.Context, database *repo.Database) (found []finding, _ error) {
	err := database.CheckPooler(ctx)
	if _, refused := errors.AsType[*repo.Error](err); refused {
		return nil, err
	}
	if err != nil {
		found = append(found, failed("the connection goes through a pooler that may lose prepared "+
			"statements", err.Error()))
	}
	f := d.facts[database]
	for _, name := range f.Harmful {
		one := warning(name+" is under a second: small statements may be ended by it", "0")
		switch name {
		case "array_nulls":
			one = failed("array_nulls is off: behind a pooler, jobs break", "on")
		case "bytea_output":
			one = failed("bytea_output is escape: behind a pooler, jobs break", "hex")
		}
		one.Remedy = fmt.Sprintf("ALTER ROLE %s SET %s = %s, and leave it out of databases.%s.url",
			f.Role, name, one.Remedy, database.Name)
		found = append(found, one)
	}
	return found, nil
}

const (
	// lateReplica is from when on it is worth a word: until a replica has replayed what a run has
	// written, that run reads the primary.
	lateReplica = 30 * time.Second
	// shortReplicaDelay is how long a standby should at least let a query keep it from replaying.
	shortReplicaDelay = 5 * time.Second
)

func (d *doctor) replica(ctx context.Context, database *repo.Database) (found []finding, _ error) {
	key := "databases." + database.Name + ".replica_url"
	pooled := database.CheckReplicaPooler(ctx)
	_, refused := errors.AsType[*repo.Error](pooled)
	f, err := database.ReplicaFacts(ctx)
	switch {
	case errors.Is(err, repo.ErrNoReplica):
		return nil, nil
	case pooled != nil && !refused:
		return []finding{warning("the replica is behind a pooler that may lose prepared statements: "+
			"the primary is read", oneLine(pooled.Error()))}, nil
	case err != nil:
		return []finding{warning("the replica does not answer, the primary is read: "+
			oneLine(err.Error()), "correct "+key+", or leave it out")}, nil
	}
	found = encryption(f.ServerFacts, key)
	if err := database.CheckReplica(ctx); err != nil {
		return append(found, warning("the primary is read: "+oneLine(err.Error()),
			"let "+key+" lead to a hot standby of this database's server")), nil
	}
	if f.Late > lateReplica {
		found = append(found, warning("the replica is "+f.Late.Round(time.Second).String()+
			" late, the primary is read most of the time",
			"look at pg_stat_wal_receiver and the log there: what keeps it from replaying?"))
	}
	if f.Patience != nil && *f.Patience < shortReplicaDelay {
		found = append(found, warning(fmt.Sprintf("the replica cancels queries that are in the way of "+
			"replay after %s: the primary is then read", f.Patience),
			"hot_standby_feedback = on, or a longer max_standby_streaming_delay, there"))
	}
	return found, nil
}

func (d *doctor) schema(ctx context.Context, database *repo.Database) ([]finding, error) {
	err := checkMigrated(ctx, database)
	if errors.Is(err, repo.ErrNotMigrated) {
		return []finding{failed("the schema maintenance is missing or old: "+oneLine(err.Error()),
			"run caretaker migrate with this configuration, as a role that may create schemas")}, nil
	}
	if err != nil {
		return nil, err
	}
	newer, current, known, err := database.NewerSchema(ctx)
	if newer {
		return []finding{warning(fmt.Sprintf("the schema maintenance is at %d, this caretaker knows "+
			"%d: a newer one has migrated it", current, known), "use the newer one")}, err
	}
	return nil, err
}

func (d *doctor) application(ctx context.Context, database *repo.Database) ([]finding, error) {
	_, err := database.ApplicationSchema(ctx)
	if none, ok := errors.AsType[*repo.NoSchemaError](err); ok {
		return []finding{failed("it has no application schema", none.Advice)}, nil
	}
	if err != nil || database.Name != mainDatabase || database.LooseForeignKeysOnly {
		return nil, err
	}
	is, err := database.LooksLikeGitLab(ctx)
	if err != nil || is {
		return nil, err
	}
	_, err = database.DeletedRecordsShape(ctx)
	if moved, ok := errors.AsType[*repo.QueueMovedError](err); ok {
		return []finding{failed(moved.Changed(), moved.Advice())}, nil
	}
	if err != nil {
		return nil, err
	}
	return []finding{warning("it has not the tables of GitLab, for which use: gitlab is",
		"set use: loose_foreign_keys")}, nil
}

// sequences are those of the queue and of the schema maintenance, whether there are definitions or
// not. Other checks report a missing schema.
func (d *doctor) sequences(ctx context.Context, database *repo.Database) ([]finding, error) {
	result, err := loosefk.Admin{Databases: []*repo.Database{database}}.Sequences(ctx)
	_, none := errors.AsType[*repo.NoSchemaError](err)
	if none || errors.Is(err, repo.ErrNotMigrated) {
		return nil, nil
	}
	return linted(result.Findings), err
}

// linted are findings of caretaker lfk lint.
func linted(findings []loosefk.Finding) (found []finding) {
	for _, f := range findings {
		found = append(found, finding{
			Status: f.Severity, Database: f.Database, Problem: f.Code + ": " + f.Object, Remedy: f.Advice,
		})
	}
	return found
}

// definitions are those of loose foreign keys, as caretaker lfk lint finds them.
func (d *doctor) definitions(ctx context.Context) ([]finding, error) {
	keys, err := (&lfk{app: d.app}).keys(service.Settings[loosefk.Config](&d.config.service))
	if err != nil || keys.Definitions == nil || !d.hasMain() {
		return nil, err
	}
	keys.Databases = d.databases
	result, err := keys.Lint(ctx)
	return linted(slices.DeleteFunc(result.Findings, func(f loosefk.Finding) bool {
		return f.Code == loosefk.CodeSequenceBehind
	})), err
}

// references are foreign keys to users that no rule covers: rows that keep users from going.
func (d *doctor) references(
	ctx context.Context, database *repo.Database,
) (found []finding, err error) {
	needs, err := database.Needs(ctx, map[string][]string{"users": {"id"}})
	if err != nil || needs.Catalog.Table("users") == nil {
		return nil, err
	}
	users := needs.Catalog.Table("users").Table
	for _, k := range bulk.Forbidding(needs.Catalog, users, d.listed()...) {
		what := k.Child.Name + "." + k.ColumnNames()
		found = append(found, warning(
			fmt.Sprintf("users to whom %s refers are not deleted: no list names it, and the foreign key "+
				"%s neither cascades nor sets NULL", what, k.Name),
			"give it ON DELETE CASCADE or SET NULL, or empty the column before users go"))
	}
	return found, nil
}

// certificateTime is how long before its end a certificate should be replaced.
const certificateTime = 14 * 24 * time.Hour

// certificate looks at the server's certificate, and at the authorities of its clients. One of
// several authorities may have expired: its clients are refused, those of the others are not.
func (d *doctor) certificate(context.Context) (found []finding, _ error) {
	const renew = "replace the files that %s, and start the server again"
	for i, c := range certificates(d.config.TLS.CertFile) {
		if i == 0 { // those behind it are the authority's
			found = d.expiry(c, "the server's certificate",
				fmt.Sprintf(renew, "tls.cert_file and tls.key_file name"))
		}
	}
	authorities := certificates(d.config.TLS.ClientCAFile)
	for _, c := range authorities {
		of := d.expiry(c, "an authority of clients", fmt.Sprintf(renew, "tls.client_ca_file names"))
		if len(authorities) > 1 && len(of) > 0 {
			of[0].Status = statusWarning
		}
		found = append(found, of...)
	}
	return found, nil
}

// certificates are those of a PEM file. What cannot be read is for the configuration's check.
func certificates(file string) (all []*x509.Certificate) {
	content, err := os.ReadFile(file)
	for err == nil {
		var block *pem.Block
		if block, content = pem.Decode(content); block == nil {
			break
		}
		if c, err := x509.ParseCertificate(block.Bytes); err == nil {
			all = append(all, c)
		}
	}
	return all
}

// expiry is what there is to say of a certificate's time.
func (d *doctor) expiry(c *x509.Certificate, what, renew string) []finding {
	what += " (" + c.Subject.String() + ")"
	switch now := time.Now(); {
	case c.NotBefore.After(now):
		return []finding{failed(what+" is valid from "+d.zoned(c.NotBefore)+" only",
			renew+", or set the clock")}
	case c.NotAfter.Before(now):
		return []finding{failed(what+" has expired on "+d.zoned(c.NotAfter), renew)}
	case c.NotAfter.Before(now.Add(certificateTime)):
		return []finding{warning(what+" expires on "+d.zoned(c.NotAfter), renew)}
	}
	return nil
}

// ports opens and closes the listeners that a server would have.
func (d *doctor) ports(ctx context.Context) (found []finding, _ error) {
	for _, one := range [][2]string{
		{"listen", d.config.Listen},
		{"metrics_listen", d.config.MetricsListen},
		{"web_listen", d.config.WebListen},
	} {
		key, address := one[0], one[1]
		if address == "" {
			continue
		}
		listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
		switch {
		case err == nil:
			_ = listener.Close()
		case errors.Is(err, syscall.EADDRINUSE):
			found = append(found, warning(key+": "+address+" is in use, by a server with this "+
				"configuration or another process",
				"if no such server runs, set "+config.Variable(key)+" to a free address"))
		default:
			found = append(found, failed(strings.TrimSpace(err.Error()),
				"correct "+key+" ("+config.Variable(key)+")"))
		}
	}
	return slices.Clip(found), nil
}
