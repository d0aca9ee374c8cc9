package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/scheduler"
)

// lab is a PostgreSQL of our own, and what was asked for.
type lab struct {
	options
	cluster  *devdb.Cluster
	progress io.Writer
}

// openLab starts the server. Nothing but what is measured shall be running in it, so checkpoints
// come when we ask for them and autovacuum never.
func openLab(ctx context.Context, o options, progress io.Writer) (*lab, error) {
	settings := map[string]string{
		"shared_buffers": "1GB", "max_wal_size": "8GB", "checkpoint_timeout": "1h", "autovacuum": "off",
	}
	if o.durable {
		settings["fsync"], settings["synchronous_commit"], settings["full_page_writes"] = "on", "on", "on"
	}
	cluster, err := devdb.Start(ctx, devdb.Config{Ephemeral: true, Log: progress, Settings: settings})
	if err != nil {
		return nil, err
	}
	return &lab{options: o, cluster: cluster, progress: progress}, nil
}

func (l *lab) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	return l.cluster.Stop(ctx)
}

func (l *lab) say(format string, args ...any) { fmt.Fprintf(l.progress, format+"\n", args...) }

// build makes a database with an empty queue, migrated for caretaker, and fills it. Each measurement gets a copy.
// It is the smallest of the reference schemas: the tables to clean are the scenario's own.
func (l *lab) build(ctx context.Context, name string, statements ...string) error {
	return l.buildFrom(ctx, "sec", name, statements...)
}

// buildMain is the same with the reference schema of main. Triggers and foreign keys do not watch while it is filled.
func (l *lab) buildMain(ctx context.Context, name string, statements ...string) error {
	statements = append([]string{`SET session_replication_role = replica`}, statements...)
	return l.buildFrom(ctx, "main", name, append(statements, `RESET session_replication_role`)...)
}

func (l *lab) buildFrom(ctx context.Context, schema, name string, statements ...string) error {
	if err := l.cluster.CreateDatabase(ctx, name); err != nil {
		return err
	}
	if err := devdb.LoadSchema(ctx, l.cluster.URL(name), schema); err != nil {
		return err
	}
	if err := migrate(ctx, l.cluster.URL(name)); err != nil {
		return err
	}
	d, err := l.connect(ctx, name)
	if err != nil {
		return err
	}
	err = d.exec(ctx, append(statements, `VACUUM (FREEZE, ANALYZE)`)...)
	return errors.Join(err, d.conn.Close(ctx))
}

func migrate(ctx context.Context, url string) error {
	main, err := repo.Open(ctx, "main", url)
	if err != nil {
		return err
	}
	defer main.Close()
	_, err = scheduler.Migrate(ctx, main)
	return err
}

// database is a copy that one side works on.
type database struct {
	lab       *lab
	name, url string
	conn      *pgx.Conn
	closers   []func() error
}

func (l *lab) connect(ctx context.Context, name string) (*database, error) {
	return l.connectTo(ctx, name, l.cluster.URL(name))
}

func (l *lab) connectTo(ctx context.Context, name, url string) (*database, error) {
	conn, err := pgx.Connect(ctx, url)
	return &database{lab: l, name: name, url: url, conn: conn}, err
}

// fresh copies a database. The caller drops it.
func (l *lab) fresh(ctx context.Context, template string) (*database, error) {
	return l.copy(ctx, template, "work")
}

// copy is the same by a name.
func (l *lab) copy(ctx context.Context, template, name string) (*database, error) {
	if err := l.administer(ctx, `DROP DATABASE IF EXISTS `+name+` WITH (FORCE)`, `CREATE DATABASE `+name+` TEMPLATE `+template); err != nil {
		return nil, err
	}
	return l.connect(ctx, name)
}

// drop closes what was opened on the database, and removes it.
func (d *database) drop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	var err error
	for _, closer := range slices.Backward(d.closers) {
		err = errors.Join(err, closer())
	}
	return errors.Join(err, d.conn.Close(ctx), d.lab.administer(ctx, `DROP DATABASE `+d.name+` WITH (FORCE)`))
}

func (l *lab) administer(ctx context.Context, statements ...string) error {
	d, err := l.connect(ctx, "postgres")
	if err != nil {
		return err
	}
	return errors.Join(d.exec(ctx, statements...), d.conn.Close(ctx))
}

// settle brings the database to the state in which each side finds it. It is vacuumed, with
// statistics, in memory if possible, and with nothing left to write back.
func (d *database) settle(ctx context.Context) error {
	if err := d.exec(ctx, `VACUUM (ANALYZE)`); err != nil {
		return err
	}
	var prewarm bool
	if err := d.one(ctx, &prewarm, `SELECT EXISTS (SELECT FROM pg_available_extensions WHERE name = 'pg_prewarm')`); err != nil {
		return err
	}
	if prewarm {
		err := d.exec(ctx, `CREATE EXTENSION IF NOT EXISTS pg_prewarm`,
			`SELECT pg_prewarm(oid) FROM pg_class WHERE relkind IN ('r', 'i') AND relpersistence = 'p' AND relfilenode <> 0`)
		if err != nil {
			return err
		}
	}
	return d.exec(ctx, `CHECKPOINT`)
}

func (d *database) exec(ctx context.Context, statements ...string) error {
	for _, statement := range statements {
		if _, err := d.conn.Exec(ctx, statement); err != nil {
			return fmt.Errorf("%.60q: %w", statement, err)
		}
	}
	return nil
}

// one reads a single value.
func (d *database) one(ctx context.Context, into any, sql string) error {
	if err := d.conn.QueryRow(ctx, sql).Scan(into); err != nil {
		return fmt.Errorf("%.60q: %w", sql, err)
	}
	return nil
}
