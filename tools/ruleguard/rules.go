//go:build ruleguard

// Package rules holds the ruleguard checks for tests. They reject what makes a
// correct change fail on a busy machine.
package rules

import "github.com/quasilyte/go-ruleguard/dsl"

// timeouts: a test waits for devdb.WaitTimeout, or for a time that has to pass.
func timeouts(m dsl.Matcher) {
	const shortest = 120_000_000_000 // devdb.WaitTimeout, in nanoseconds
	m.Import("context")
	m.Import("time")
	m.Match(
		`context.WithTimeout($_, $d)`,
		`context.WithTimeoutCause($_, $d, $_)`,
		`time.After($d)`,
		`time.AfterFunc($d, $_)`,
		`time.NewTimer($d)`,
	).
		Where((m.File().Name.Matches(`_test\.go$`) || m.File().PkgPath.Matches(`/servicetest$`)) && m["d"].Const && m["d"].Value.Int() < shortest).
		Report("a timeout below devdb.WaitTimeout fails on a busy machine: use devdb.WaitTimeout, or say why the time has to pass")
}

// elapsed: no test has an upper bound on the time that something takes.
func elapsed(m dsl.Matcher) {
	m.Import("time")
	m.Match(
		`time.Since($_) > $_`, `time.Since($_) >= $_`, `$_ < time.Since($_)`,
		`if $x := time.Since($_); $x > $_ { $*_ }`, `if $x := time.Since($_); $x >= $_ { $*_ }`,
		`{ $*_; $x := time.Since($_); $*_; if $x > $_ { $*_ }; $*_ }`,
		`{ $*_; $x := time.Since($_); $*_; if $x >= $_ { $*_ }; $*_ }`,
		`{ $*_; $x := $_.Sub($_); $*_; if $x > $_ { $*_ }; $*_ }`,
	).
		Where((m.File().Name.Matches(`_test\.go$`) || m.File().PkgPath.Matches(`/servicetest$`))).
		Report("an upper bound on elapsed time fails on a busy machine: check what was done instead")
}

// ports: a test listens on port 0, or on a port that it was given.
func ports(m dsl.Matcher) {
	m.Match(
		`"127.0.0.1:50051"`, `"localhost:50051"`, `":50051"`,
		`"127.0.0.1:9464"`, `"localhost:9464"`, `":9464"`,
		`"127.0.0.1:8080"`, `"localhost:8080"`, `":8080"`,
	).
		Where((m.File().Name.Matches(`_test\.go$`) || m.File().PkgPath.Matches(`/servicetest$`))).
		Report("a default port may be in use: listen on port 0")
}
