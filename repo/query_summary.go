package repo

import (
	"slices"
	"strings"
	"unicode"
)

// The summary of a statement is what the semantic conventions call db.query.summary: what it does to which tables, as
// "DELETE issues". It has no values, and none of the CTEs that are only there to bound the work.

// summarize says what a statement does: its writes, at most three of them; else the tables that it reads, at most three,
// and "…" if there are more. Writes and reads of our own schema count only where there are no others. A statement without
// a table is its first word, with the function if it calls one.
func summarize(sql string) string {
	words := lex(sql)
	ctes := ctesOf(words)
	var writes, reads, ownWrites, ownReads []string
	for i := range words {
		operation, at := operationAt(words, i)
		if operation == "" {
			continue
		}
		table, own := tableAt(words, at)
		switch {
		case table == "" || slices.Contains(ctes, table):
		case operation == "SELECT" && own:
			ownReads = append(ownReads, table)
		case operation == "SELECT":
			reads = append(reads, table)
		case own:
			ownWrites = append(ownWrites, operation+" "+table)
		default:
			writes = append(writes, operation+" "+table)
		}
	}
	for _, found := range [][]string{writes, ownWrites} {
		if found = unique(found); len(found) > 0 {
			return strings.Join(found[:min(mostTables, len(found))], " ")
		}
	}
	for _, found := range [][]string{reads, ownReads} {
		if found = unique(found); len(found) > mostTables {
			return "SELECT " + strings.Join(found[:mostTables], " ") + " …"
		} else if len(found) > 0 {
			return "SELECT " + strings.Join(found, " ")
		}
	}
	switch {
	case len(words) == 0:
		return ""
	case wordIs(words, 0, "WITH"), wordIs(words, 0, "SELECT"):
		return strings.TrimSuffix("SELECT "+called(words), " ")
	}
	return strings.ToUpper(words[0])
}

// mostTables is how many tables a summary names.
const mostTables = 3

// called is the function that a statement begins its last list with, outside of all parentheses.
func called(words []string) (name string) {
	depth := 0
	for i, w := range words {
		switch {
		case w == "(":
			depth++
		case w == ")":
			depth--
		case depth == 0 && wordIs(words, i, "SELECT"):
			if name = ""; wordIs(words, i+2, "(") && named(words[i+1]) {
				name = unquoted(words[i+1])
			}
		}
	}
	return name
}

// unique keeps the order.
func unique(all []string) (out []string) {
	for _, s := range all {
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

// lex cuts SQL into words: names, with their quotes, and single punctuation marks. Comments and literals are left out.
func lex(sql string) (words []string) {
	for sql != "" {
		n := 1
		switch first := rune(sql[0]); {
		case strings.HasPrefix(sql, "--"):
			n = endOf(sql, 2, "\n")
		case strings.HasPrefix(sql, "/*"):
			n = endOf(sql, 2, "*/")
		case first == '\'':
			n = endOf(sql, 1, "'")
		case (first == 'E' || first == 'e') && strings.HasPrefix(sql[1:], "'"):
			n = endOfEscaped(sql)
		case dollarQuote(sql) != "":
			mark := dollarQuote(sql)
			n = endOf(sql, len(mark), mark)
		case first == '"':
			for n = endOf(sql, 1, `"`); strings.HasPrefix(sql[n:], `"`); {
				n = endOf(sql, n+1, `"`)
			}
			words = append(words, sql[:n])
		case inName(first):
			if n = strings.IndexFunc(sql, func(r rune) bool { return !inName(r) }); n < 0 {
				n = len(sql)
			}
			words = append(words, sql[:n])
		case strings.ContainsRune("().,", first):
			words = append(words, sql[:1])
		}
		sql = sql[n:]
	}
	return words
}

// endOf is where what begins at sql ends.
func endOf(sql string, from int, mark string) int {
	if i := strings.Index(sql[from:], mark); i >= 0 {
		return from + i + len(mark)
	}
	return len(sql)
}

// endOfEscaped is where a literal ends that begins with E and a quote: a backslash takes what follows with it.
func endOfEscaped(sql string) int {
	for i := 2; i < len(sql); i++ {
		switch sql[i] {
		case '\\':
			i++
		case '\'':
			return i + 1
		}
	}
	return len(sql)
}

// dollarQuote is the mark, $$ or $tag$, if SQL begins with one. $1 is a parameter.
func dollarQuote(sql string) string {
	if sql[0] != '$' {
		return ""
	}
	n := strings.IndexFunc(sql[1:], func(r rune) bool { return r == '$' || !inName(r) })
	if n < 0 || sql[1+n] != '$' || n > 0 && unicode.IsDigit(rune(sql[1])) {
		return ""
	}
	return sql[:n+2]
}

// inName says whether a letter is part of a name or number; those beyond ASCII are.
func inName(r rune) bool {
	return r == '_' || r == '$' || r >= 0x80 || unicode.IsLetter(r) || unicode.IsDigit(r)
}

func wordIs(words []string, i int, keyword string) bool {
	return i >= 0 && i < len(words) && strings.EqualFold(words[i], keyword)
}

// operationAt is the operation that a word begins, and where its table stands.
func operationAt(words []string, i int) (operation string, table int) {
	switch strings.ToUpper(words[i]) {
	case "INSERT", "MERGE":
		if wordIs(words, i+1, "INTO") {
			return strings.ToUpper(words[i]), i + 2
		}
	case "DELETE":
		if wordIs(words, i+1, "FROM") {
			return "DELETE", i + 2
		}
	case "UPDATE":
		// Not FOR UPDATE, FOR NO KEY UPDATE, ON CONFLICT DO UPDATE.
		if !wordIs(words, i-1, "FOR") && !wordIs(words, i-1, "KEY") && !wordIs(words, i-1, "DO") {
			return "UPDATE", i + 1
		}
	case "TRUNCATE", "LOCK":
		at := i + 1
		if wordIs(words, at, "TABLE") {
			at++
		}
		return strings.ToUpper(words[i]), at
	case "FROM", "JOIN":
		// Not DELETE FROM, IS DISTINCT FROM, substring(… FROM …).
		if !wordIs(words, i-1, "DELETE") && !wordIs(words, i-1, "DISTINCT") {
			return "SELECT", i + 1
		}
	}
	return "", 0
}

// tableAt is the table that stands at a place: without its schema, unless that is ours. A function is none.
func tableAt(words []string, at int) (table string, own bool) {
	if wordIs(words, at, "ONLY") {
		at++
	}
	if at >= len(words) || !named(words[at]) || wordIs(words, at, "LATERAL") || wordIs(words, at, "SELECT") {
		return "", false
	}
	table, schema := unquoted(words[at]), ""
	for at+2 < len(words) && words[at+1] == "." && named(words[at+2]) {
		at += 2
		schema, table = table, unquoted(words[at])
	}
	own = schema == "maintenance"
	if own {
		table = schema + "." + table
	}
	if at+1 < len(words) && words[at+1] == "(" && !wordIs(words, at-1, "INTO") && !inserted(words, at) {
		return "", false
	}
	return table, own
}

// inserted says whether the name that ends at a place is that of an INSERT, which parentheses may follow.
func inserted(words []string, at int) bool {
	for at > 1 && words[at-1] == "." {
		at -= 2
	}
	return wordIs(words, at-1, "INTO")
}

func named(word string) bool {
	first := rune(word[0])
	return first == '"' || first != '$' && inName(first) && !unicode.IsDigit(first)
}

func unquoted(word string) string {
	if inner, quoted := strings.CutPrefix(word, `"`); quoted {
		return strings.ReplaceAll(strings.TrimSuffix(inner, `"`), `""`, `"`)
	}
	return word
}

// ctesOf are the names of a statement's common table expressions: a name, perhaps columns, AS, perhaps MATERIALIZED, (.
func ctesOf(words []string) (names []string) {
	for i := range words {
		if !wordIs(words, i, "AS") {
			continue
		}
		open := i + 1
		for wordIs(words, open, "NOT") || wordIs(words, open, "MATERIALIZED") {
			open++
		}
		if !wordIs(words, open, "(") {
			continue
		}
		at := i - 1
		if wordIs(words, at, ")") {
			for at > 0 && !wordIs(words, at, "(") {
				at--
			}
			at--
		}
		if at >= 0 && named(words[at]) {
			names = append(names, unquoted(words[at]))
		}
	}
	return names
}
