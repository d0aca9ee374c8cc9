//go:build ruleguard

// Package rules holds the ruleguard checks for tests. They reject what makes a
// correct change fail on a busy machine.
package rules

import "github.com/quasilyte/go-ruleguard/dsl"

// timeouts: a test waits for devdb.WaitTimeout, or for a time that has to pass.
func timeouts(m dsl.Matcher) {
	const shortest = 240_000_000_000 // devdb.WaitTimeout, in nanoseconds
	m.Import("context")
	m.Import("net/http")
	m.Import("time")
	m.Match(
		`context.WithTimeout($_, $d)`,
		`context.WithTimeoutCause($_, $d, $_)`,
		`time.After($d)`,
		`time.AfterFunc($d, $_)`,
		`time.NewTimer($d)`,
		`$_.SetDeadline(time.Now().Add($d))`,
		`$_.SetReadDeadline(time.Now().Add($d))`,
		`context.WithDeadline($_, time.Now().Add($d))`,
		`http.Client{$*_, Timeout: $d, $*_}`,
		`$_.Timeout = $d`,
	).
		Where((m.File().Name.Matches(`_test\.go$`) || m.File().PkgPath.Matches(`/servicetest$`)) && m["d"].Const && m["d"].Value.Int() < shortest).
		Report("a timeout below devdb.WaitTimeout fails on a busy machine: use devdb.WaitTimeout, or say why the time has to pass")
}

// elapsed: no test has an upper bound on the time that something takes.
func elapsed(m dsl.Matcher) {
	m.Import("time")
	m.Match(
		`assert.That($_, time.Since($_) < $_, $*_)`, `assert.That($_, time.Since($_) <= $_, $*_)`,
		`time.Since($_) > $_`, `time.Since($_) >= $_`, `$_ < time.Since($_)`,
		`$x.Sub($y) > $d`, `$x.Sub($y) < $d`,
		`if $x := time.Since($_); $x > $_ { $*_ }`, `if $x := time.Since($_); $x >= $_ { $*_ }`,
		`{ $*_; $x := time.Since($_); $*_; if $x > $_ { $*_ }; $*_ }`,
		`{ $*_; $x := time.Since($_); $*_; if $x >= $_ { $*_ }; $*_ }`,
		`{ $*_; $x := $_.Sub($_); $*_; if $x > $_ { $*_ }; $*_ }`,
	).
		Where((m.File().Name.Matches(`_test\.go$`) || m.File().PkgPath.Matches(`/servicetest$`))).
		Report("an upper bound on elapsed time fails on a busy machine: check what was done instead")
}

// ports: a test listens on port 0, or on a port that it was given. The defaults are the subject of
// config's tests and of messages that show an address.
func ports(m dsl.Matcher) {
	m.Match(
		// The pairs of a list, and its last.
		`$x, $_`, `$_, $x`, `$_($*_, $x)`, `$_{$*_, $x}`,
		`$_: $x`, `$x: $_`, `$_ = $x`, `$_ := $x`, `var $_ = $x`, `const $_ = $x`, `$x + $_`, `$_ + $x`,
	).
		Where(m["x"].Node.Is(`BasicLit`) && m["x"].Text.Matches("(^[\"`]|[[:alnum:]./=*\\]-]):(50051|9464|8080)([^0-9]|$)") &&
			(m.File().Name.Matches(`_test\.go$`) || m.File().PkgPath.Matches(`/servicetest$`)) &&
			!m.File().PkgPath.Matches(`/config(_test)?$`) && !m["x"].Text.Matches(`is not an address of the form`)).
		Report("a default port may be in use: listen on port 0")
}
