package main

import (
	"cmp"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/caretaker-go/caretaker/config"
	"github.com/caretaker-go/caretaker/internal/docs"
)

const installedHead = `# Configuration of caretaker. Every key is a comment with its default or an example. To set a key,
# remove its # and nothing else. Put passwords, such as that of databases.main.url, into
# caretaker.env beside this file, which other users cannot read: CARETAKER_DATABASES_MAIN_URL is
# databases.main.url there. caretaker.env overrides this file. caretaker doctor checks both.
# The documentation is in /usr/share/doc/caretaker, and at
# ` + docs.Repository + `/blob/main/docs/README.md
# Written by go generate from the source of the program.

`

// width is how long a line of the installed file may be.
const width = 100

// installed is the file that packages install: each section with its keys commented out.
func installed(keys []config.Key, comments map[string]string) (string, error) {
	var out strings.Builder
	out.WriteString(installedHead)
	var open []string
	for _, k := range keys {
		// The file needs any name.
		path := strings.Split(strings.ReplaceAll(k.Path, "<name>", "another"), ".")
		sections, name := path[:len(path)-1], path[len(path)-1]
		shared := 0
		for shared < min(len(open), len(sections)) && open[shared] == sections[shared] {
			shared++
		}
		if shared == 0 && (len(open) > 0 || len(sections) > 0) || len(sections) > shared {
			out.WriteString("\n")
		}
		for i, section := range sections[shared:] {
			fmt.Fprintf(&out, "%s%s:\n", strings.Repeat("  ", shared+i), section)
		}
		open = sections
		text := comments[k.Owner.String()+"."+k.Field.Name]
		if text == "" {
			return "", fmt.Errorf("%s: the field %s of %s has no comment", k.Path, k.Field.Name, k.Owner)
		}
		indent := strings.Repeat("  ", len(sections))
		out.WriteString(wrapped(indent+"# ", prose(text, k)))
		fmt.Fprintf(&out, "%s#%s: %s\n", indent, name, written(k))
	}
	return out.String(), nil
}

// written is the key's example, else its default, as it stands in a YAML file.
func written(k config.Key) string {
	value := cmp.Or(k.Field.Tag.Get("example"), k.Default)
	kind := k.Field.Type.Kind()
	isText := kind == reflect.String || kind == reflect.Slice
	if isText && (value == "" || strings.ContainsAny(value, " *{}")) {
		return strconv.Quote(value)
	}
	return value
}

// link is a link from a page below docs/reference to another page.
var link = regexp.MustCompile(`\[([^\]]+)\]\(\.\./([^)]+)\)`)

// prose returns a comment as a sentence, with addresses instead of links, and with the allowed values.
func prose(text string, k config.Key) string {
	text = link.ReplaceAllString(text, "$1 ("+docs.Repository+"/blob/main/docs/$2)")
	text = strings.ReplaceAll(text, `\|`, "|")
	word := strings.Trim(strings.Fields(text)[0], "`,")
	if !slices.Contains(strings.Fields(k.Field.Tag.Get("of")), word) {
		first, size := utf8.DecodeRuneInString(text)
		text = string(unicode.ToUpper(first)) + text[size:]
	}
	text = strings.Join(append([]string{text}, allowed(k)...), ". ")
	if strings.HasSuffix(text, "…") {
		return text
	}
	return text + "."
}

// wrapped is a text in lines that begin with a prefix.
func wrapped(prefix, text string) string {
	var out strings.Builder
	line := prefix
	for word := range strings.FieldsSeq(text) {
		if line != prefix && len(line)+len(word) > width {
			out.WriteString(strings.TrimRight(line, " ") + "\n")
			line = prefix
		}
		line += word + " "
	}
	return out.String() + strings.TrimRight(line, " ") + "\n"
}
