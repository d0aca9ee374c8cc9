package loosefk

import (
	"fmt"
	"iter"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// maxNameBytes is how long a name in PostgreSQL can be. A longer one would be cut off, and mean another table.
const maxNameBytes = 63

// wrongName says what keeps a name from being one of PostgreSQL's; "" when nothing does.
func wrongName(name string) string {
	switch {
	case name == "":
		return "must not be empty"
	case len(name) > maxNameBytes:
		return fmt.Sprintf("has %d bytes: PostgreSQL has no names of more than %d", len(name), maxNameBytes)
	case strings.ContainsRune(name, 0) || !utf8.ValidString(name):
		return "has characters that no name in PostgreSQL can have"
	}
	return ""
}

// pairs are the keys and values of a mapping.
func pairs(mapping *yaml.Node) iter.Seq2[*yaml.Node, *yaml.Node] {
	return func(yield func(key, value *yaml.Node) bool) {
		for i := 0; i+1 < len(mapping.Content); i += 2 {
			if !yield(mapping.Content[i], mapping.Content[i+1]) {
				return
			}
		}
	}
}

// followed is the node itself, or the one that an alias stands for.
func followed(node *yaml.Node) *yaml.Node {
	if node.Kind == yaml.AliasNode {
		return node.Alias
	}
	return node
}

func isNull(node *yaml.Node) bool { return node.Kind == yaml.ScalarNode && node.ShortTag() == "!!null" }

// kind describes what a node is, for messages.
func kind(node *yaml.Node) string {
	switch {
	case node.Kind == yaml.MappingNode:
		return "a mapping"
	case node.Kind == yaml.SequenceNode && len(node.Content) == 0:
		return "an empty list"
	case node.Kind == yaml.SequenceNode:
		return "a list"
	case isNull(node):
		return "null"
	}
	article := map[string]string{"!!str": "the string ", "!!int": "the integer ", "!!bool": "the boolean ", "!!float": "the number "}
	return fmt.Sprintf("%s%q", article[node.ShortTag()], shortened(node.Value))
}

func shortened(text string) string {
	const most = 80
	if utf8.RuneCountInString(text) <= most {
		return text
	}
	return string([]rune(text)[:most]) + "…"
}
