package cli

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/caretaker-go/caretaker/internal/docs"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/dberr"
	lfkrepo "github.com/caretaker-go/caretaker/repo/lfk"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/bulk"
	"github.com/caretaker-go/caretaker/service/gitlab/ghost"
	"github.com/caretaker-go/caretaker/service/lfk"
	"github.com/caretaker-go/caretaker/service/lfk/admin"
)

// connection checks that a database answers, accepts writes, and has only one name.
func (d *doctor) connection(ctx context.Context, database *repo.Database, found *findings) error {
	facts, err := database.ServerFacts(ctx)
	if err != nil {
		found.unanswered(database.Name, err)
		return nil
	}
	d.facts[database] = facts
	url := "databases." + database.Name + ".url"
	switch {
	case facts.Standby:
		found.failed("the server is a standby, which accepts no writes",
			"set "+url+" to the primary, and replica_url to the standby")
	case facts.ReadOnly:
		found.failed("the database is read-only", fmt.Sprintf("reset default_transaction_read_only "+
			"for the server, the database or the role %s", facts.Role))
	}
	return nil
}

// tls checks whether the connection to the primary is encrypted.
func (d *doctor) tls(_ context.Context, database *repo.Database, found *findings) error {
	found.encryption(d.facts[database], "databases."+database.Name+".url")
	return nil
}

// encryption checks the TLS of a connection. key is the configuration key of its URL.
func (f *findings) encryption(facts repo.ServerFacts, key string) {
	switch {
	case facts.Local:
	case !facts.Encrypted:
		f.warning("the connection is not encrypted", "add sslmode=verify-full to "+key)
	case !facts.Verified:
		f.warning("the certificate of the server is not verified",
			"add sslmode=verify-full and sslrootcert to "+key)
	}
}

// The oldest and newest versions of PostgreSQL that caretaker is tested with.
const oldestServer, newestServer = 14, 18

// version checks the server's major version. An older one than oldestServer fails, a newer one
// than newestServer is a warning.
func (d *doctor) version(_ context.Context, database *repo.Database, found *findings) error {
	f := d.facts[database]
	problem := fmt.Sprintf("the server runs PostgreSQL %s, but caretaker supports versions %d to %d",
		f.Version, oldestServer, newestServer)
	switch major := f.Number / 10000; {
	case major < oldestServer:
		found.failed(problem, "upgrade the server")
	case major > newestServer:
		found.warning(problem, "install a newer caretaker, or first test this PostgreSQL version on a copy of the database")
	}
	return nil
}

// maxSkew is the clock difference from which doctor reports it. Due times and leases depend on the
// clock of only one database.
const maxSkew = 2 * time.Second

// clock checks the session's time zone and the server's clock. A difference above maxSkew, plus
// the uncertainty of the measurement, is a warning.
func (d *doctor) clock(_ context.Context, database *repo.Database, found *findings) error {
	f := d.facts[database]
	if f.TimeZone != "UTC" {
		found.failed("the session's TimeZone is "+f.TimeZone+" instead of UTC: dates would be wrong",
			"configure the pooler to preserve the TimeZone setting: "+docs.URL("guides/managed-postgresql.md"))
	}
	if f.Ahead.Abs() > maxSkew+f.Within {
		found.warning("the server's clock is "+apart(f.Ahead)+" the clock of this machine: times in "+
			"logs and traces differ", "synchronize both clocks with NTP")
	}
	return nil
}

// hasMain reports whether the URL of main can be read. Then main is the first database.
func (d *doctor) hasMain() bool {
	return len(d.databases) > 0 && d.databases[0].Name == mainDatabase
}

// apart describes the difference between two clocks.
func apart(by time.Duration) string {
	if by < 0 {
		return by.Abs().Round(100*time.Millisecond).String() + " behind"
	}
	return by.Round(100*time.Millisecond).String() + " ahead of"
}

// clocks compares the servers' clocks with the clock of main, if main answers.
func (d *doctor) clocks(_ context.Context, found *findings) error {
	if !d.hasMain() {
		return nil
	}
	main, ok := d.facts[d.databases[0]]
	for _, database := range d.databases[1:] {
		f, known := d.facts[database]
		by := f.Ahead - main.Ahead
		if ok && known && by.Abs() > maxSkew+f.Within+main.Within {
			*found = append(*found, finding{
				Status: statusWarning, Database: database.Name,
				Problem: "the server's clock is " + apart(by) + " the clock of main: due times " +
					"of the databases differ",
				Remedy: "synchronize the clocks of the servers with NTP",
			})
		}
	}
	return nil
}

// pooler checks for a pooler between caretaker and the server, and checks the session settings.
func (d *doctor) pooler(ctx context.Context, database *repo.Database, found *findings) error {
	err := database.CheckPooler(ctx)
	if _, refused := errors.AsType[*dberr.Error](err); refused {
		return err
	}
	if err != nil {
		found.failed("the connection goes through a pooler that may lose prepared statements",
			dberr.PoolerAdvice(database.Name))
	}
	f := d.facts[database]
	for _, name := range f.Harmful {
		report, value := found.failed, "on"
		problem := "array_nulls is off, so jobs fail if a pooler is used"
		switch name {
		case "array_nulls":
		case "bytea_output":
			problem, value = "bytea_output is escape, so jobs fail if a pooler is used", "hex"
		default:
			report, value = found.warning, "0"
			problem = name + " is less than a second and may cancel short statements"
		}
		report(problem, fmt.Sprintf("run ALTER ROLE %s SET %s = %s, and remove the setting from databases.%s.url",
			f.Role, name, value, database.Name))
	}
	return nil
}

const (
	// lateReplica is the replication delay from which doctor reports it. Until a replica has
	// replayed the writes of a run, that run reads the primary.
	lateReplica = 30 * time.Second
	// shortReplicaDelay is the shortest time that a standby should delay replay for a query.
	shortReplicaDelay = 5 * time.Second
)

// replica checks the read replica, if one is configured. All its findings are warnings, because
// caretaker then reads the primary.
func (d *doctor) replica(ctx context.Context, database *repo.Database, found *findings) error {
	key := "databases." + database.Name + ".replica_url"
	pooled := database.CheckReplicaPooler(ctx)
	_, refused := errors.AsType[*dberr.Error](pooled)
	f, err := database.ReplicaFacts(ctx)
	// 1. Check whether the replica answers and its pooler is safe.
	switch {
	case errors.Is(err, repo.ErrNoReplica):
		return nil
	case pooled != nil && !refused:
		found.warning("the replica is not used, because its pooler may lose prepared statements",
			dberr.PoolerAdvice(database.Name+dberr.ReplicaSuffix))
		return nil
	case err != nil:
		found.warning("the replica is not used, because it does not answer: "+oneLine(err.Error()),
			"start the replica, correct "+key+", or remove the key")
		return nil
	}
	// 2. Check the connection, and that it is a standby of this server.
	found.encryption(f.ServerFacts, key)
	if err := database.CheckReplica(ctx); err != nil {
		found.warning("the replica is not used: "+oneLine(err.Error()),
			"set "+key+" to a hot standby of this database's server")
		return nil
	}
	// 3. Check its lag and its limit for queries.
	if f.Late > lateReplica {
		found.warning("the replica lags by "+f.Late.Round(time.Second).String()+
			", so caretaker mostly reads from the primary",
			"find out what delays the replay: check pg_stat_wal_receiver and the log of the replica")
	}
	if f.MaxQueryDelay != nil && *f.MaxQueryDelay < shortReplicaDelay {
		found.warning(fmt.Sprintf("the replica cancels queries that delay its replay by more than %s, "+
			"and caretaker then reads from the primary", f.MaxQueryDelay),
			"on the replica, set hot_standby_feedback = on or a longer max_standby_streaming_delay")
	}
	return nil
}

// schema checks the version of the schema maintenance. An older one fails, a newer one is a
// warning.
func (d *doctor) schema(ctx context.Context, database *repo.Database, found *findings) error {
	err := checkMigrated(ctx, database)
	if errors.Is(err, dberr.ErrNotMigrated) {
		found.failed("the maintenance schema is missing or outdated: "+oneLine(err.Error()),
			"run `caretaker migrate` with this configuration, as a role that can create schemas, "+
				"then run `caretaker doctor` again for the other checks")
		return nil
	}
	if denied, ok := errors.AsType[*dberr.Error](err); ok && denied.SQLState == "42501" {
		role := d.facts[database].Role
		found.failed(fmt.Sprintf("the role %s has no privileges on the maintenance schema", role),
			fmt.Sprintf("apply the output of `caretaker doctor --grants --role %s --database %s` as the "+
				"owner of the tables", role, database.Name))
		return nil
	}
	if err != nil {
		return err
	}
	newer, current, known, err := database.NewerSchema(ctx)
	if newer {
		found.warning(fmt.Sprintf("a newer caretaker has migrated the maintenance schema to "+
			"version %d, but this caretaker supports only version "+
			"%d", current, known), "install the newer caretaker")
	}
	return err
}

// application checks that the database has a schema of the application. On main it also checks the
// queue and whether the tables are those of GitLab.
func (d *doctor) application(ctx context.Context, database *repo.Database, found *findings) error {
	_, err := database.ApplicationSchema(ctx)
	if none, ok := errors.AsType[*dberr.NoSchemaError](err); ok {
		found.failed("the database has no application schema", none.Advice)
		return nil
	}
	if err != nil || database.Name != mainDatabase || database.LooseForeignKeysOnly {
		return err
	}
	_, shapeErr := database.Queue.DeletedRecordsShape(ctx)
	if moved, ok := errors.AsType[*lfkrepo.QueueMovedError](shapeErr); ok {
		found.failed(moved.Changed(), moved.Advice())
		return nil
	}
	is, err := database.LooksLikeGitLab(ctx)
	if err != nil || is {
		return err
	}
	if d.config.service.Use == "" {
		found.failed(noUse, setUse)
	} else {
		found.warning("the database has no GitLab tables, although the configuration has `use: gitlab`",
			"set `use: loose_foreign_keys`")
	}
	return nil
}

// sequences checks the sequences of the queue and of the schema maintenance, with or without
// definitions. Other checks report a missing schema.
func (d *doctor) sequences(ctx context.Context, database *repo.Database, found *findings) error {
	result, err := admin.Admin{Databases: []*repo.Database{database}}.Sequences(ctx)
	_, none := errors.AsType[*dberr.NoSchemaError](err)
	if none || errors.Is(err, dberr.ErrNotMigrated) {
		return nil
	}
	found.lint(result.Findings)
	return err
}

// lint adds findings of caretaker lfk lint.
func (f *findings) lint(all []lfk.Finding) {
	for _, l := range all {
		problem, remedy := l.Code+": "+l.Object, l.Advice
		if at := strings.LastIndex(l.Advice, ": "); at >= 0 {
			problem, remedy = problem+": "+l.Advice[:at], l.Advice[at+2:]
		}
		*f = append(*f, finding{
			Status: l.Severity, Database: l.Database, Problem: problem, Remedy: remedy,
		})
	}
}

// definitions checks the definitions of loose foreign keys, as caretaker lfk lint does.
func (d *doctor) definitions(ctx context.Context, found *findings) error {
	keys, err := lfkAdmin(service.Settings[lfk.Config](&d.config.service), "")
	if err != nil || !d.hasMain() {
		return err
	}
	keys.Databases = d.databases
	result, err := keys.Lint(ctx)
	if keys.Definitions == nil {
		err = nil // Lint finds only adopted foreign keys then.
	}
	found.lint(slices.DeleteFunc(result.Findings, func(f lfk.Finding) bool {
		return f.Code == admin.CodeSequenceBehind
	}))
	return err
}

// references checks for foreign keys to users that no rule covers. Their rows prevent the deletion
// of users.
func (d *doctor) references(ctx context.Context, database *repo.Database, found *findings) error {
	needs, err := database.Schema.Needs(ctx, map[string][]string{"users": {"id"}})
	if err != nil || needs.Catalog.Table("users") == nil {
		return err
	}
	users := needs.Catalog.Table("users").Table
	for _, k := range bulk.Forbidding(needs.Catalog, users, ghost.ListedColumns()...) {
		found.warning(fmt.Sprintf("caretaker cannot delete users that %s.%s refers to, because the foreign key "+
			"%s neither cascades nor sets NULL, and no deletion rule covers the column",
			k.Child.Name, k.ColumnNames(), k.Name),
			"change the foreign key to ON DELETE CASCADE or SET NULL, or clear the column first")
	}
	return nil
}

// certificateTime is the remaining validity below which doctor asks for a new certificate.
const certificateTime = 14 * 24 * time.Hour

// certificate checks the server's certificate and its clients' authorities. If one of several
// authorities has expired, the server refuses only that authority's clients.
func (d *doctor) certificate(_ context.Context, found *findings) error {
	if err := d.config.checkTLS(); err != nil {
		found.failed(err.Error(), "correct the named file, or its path in the configuration")
	}
	// The server reads the files again for each connection.
	const renew = "replace the certificate in %s"
	// Later certificates in the file belong to the authority.
	if own := certificates(d.config.TLS.CertFile); len(own) > 0 {
		d.expiry(found, own[0], "the server's certificate",
			fmt.Sprintf(renew, "tls.cert_file and its key in tls.key_file"))
	}
	authorities := certificates(d.config.TLS.ClientCAFile)
	for _, c := range authorities {
		var of findings
		d.expiry(&of, c, "a certificate authority of the clients", fmt.Sprintf(renew, "tls.client_ca_file"))
		if len(authorities) > 1 && len(of) > 0 {
			of[0].Status = statusWarning
		}
		*found = append(*found, of...)
	}
	return nil
}

// certificates returns the certificates of a PEM file. The configuration check reports errors.
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

// expiry checks the validity period of a certificate.
func (d *doctor) expiry(found *findings, c *x509.Certificate, what, renew string) {
	what += " (" + c.Subject.String() + ")"
	switch now := time.Now(); {
	case c.NotBefore.After(now):
		found.failed(what+" is not valid before "+d.zoned(c.NotBefore), renew+", or correct the clock")
	case c.NotAfter.Before(now):
		found.failed(what+" expired on "+d.zoned(c.NotAfter), renew)
	case c.NotAfter.Before(now.Add(certificateTime)):
		found.warning(what+" expires on "+d.zoned(c.NotAfter), renew)
	}
}
