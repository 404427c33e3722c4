package decode

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	yamlv3 "go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/util/validation/field"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/podplane/podplane/internal/fault"
)

// tree is a YAML document that knows at which line its fields are. A nil tree knows nothing.
type tree struct {
	root *yamlv3.Node
	// offset is how many lines come before the document.
	offset int
}

// fromYAML reads the one object of a YAML stream. Empty documents count for nothing.
func fromYAML(data []byte) ([]byte, *tree, error) {
	var found *tree
	var document []byte
	line := 0
	for r := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data))); ; {
		doc, err := r.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, nil, fault.New(fault.BadRequest, "the body is not YAML: %w", err)
		}
		t := &tree{offset: line, root: new(yamlv3.Node)}
		line += bytes.Count(doc, []byte("\n")) + 1
		if err := yamlv3.Unmarshal(doc, t.root); err != nil {
			return nil, nil, fault.New(fault.BadRequest, "the body is not YAML: %w", shiftLines(err, t.offset))
		}
		if t.empty() {
			continue
		}
		if found != nil {
			return nil, nil, fault.New(fault.BadRequest, "the body has a second object at line %d: only one is allowed", t.offset+t.root.Line)
		}
		found, document = t, doc
	}
	if found == nil {
		return nil, nil, fault.New(fault.BadRequest, "the body has no object")
	}
	if found.root.Content[0].Kind != yamlv3.MappingNode {
		return nil, nil, fault.New(fault.BadRequest, "the body is not an object: line %d", found.offset+found.root.Line)
	}
	asJSON, err := yaml.YAMLToJSON(document)
	if err != nil {
		return nil, nil, fault.New(fault.BadRequest, "the body can't be read as YAML: %w", shiftLines(err, found.offset))
	}
	return asJSON, found, nil
}

func (t *tree) empty() bool {
	return len(t.root.Content) == 0 || t.root.Content[0].Tag == "!!null"
}

// SyntaxError says at which line a text stops being what it should be.
type SyntaxError struct {
	line int
	text string
}

// Error gives the message, which has the line.
func (e *SyntaxError) Error() string { return e.text }

// Line is the line, counted from 1.
func (e *SyntaxError) Line() int { return e.line }

// shiftLines corrects the line numbers of a parser that saw only one document of several.
func shiftLines(err error, offset int) error {
	msg := strings.TrimPrefix(strings.TrimPrefix(err.Error(), "error converting YAML to JSON: "), "yaml: ")
	var line int
	if n, scanErr := fmt.Sscanf(msg, "line %d:", &line); n == 1 && scanErr == nil {
		_, rest, _ := strings.Cut(msg, ":")
		return &SyntaxError{line: line + offset, text: fmt.Sprintf("line %d:%s", line+offset, rest)}
	}
	if offset == 0 {
		return errors.New(msg)
	}
	return &SyntaxError{line: offset + 1, text: fmt.Sprintf("in the document that begins at line %d: %s", offset+1, msg)}
}

// duplicates finds the keys that stand twice in one mapping, with their paths and lines.
func (t *tree) duplicates() field.ErrorList {
	if t == nil {
		return nil
	}
	var list field.ErrorList
	t.walk(t.root, nil, &list, 0)
	return list
}

// maxDepth bounds the recursion into what a client sends; the parsers stop before.
const maxDepth = 1000

func (t *tree) walk(n *yamlv3.Node, path *field.Path, list *field.ErrorList, depth int) {
	if depth > maxDepth || len(*list) >= maxErrors {
		return
	}
	switch n.Kind {
	case yamlv3.DocumentNode:
		for _, c := range n.Content {
			t.walk(c, path, list, depth+1)
		}
	case yamlv3.SequenceNode:
		for i, c := range n.Content {
			t.walk(c, index(path, i), list, depth+1)
		}
	case yamlv3.MappingNode:
		seen := make(map[string]int, len(n.Content)/2)
		for i := 0; i+1 < len(n.Content); i += 2 {
			k := n.Content[i]
			at := path.Child(k.Value)
			if first, twice := seen[k.Value]; twice {
				*list = append(*list, field.Invalid(at, "", fmt.Sprintf("duplicate field: line %d and line %d", first, k.Line+t.offset)))
				continue
			}
			seen[k.Value] = k.Line + t.offset
			t.walk(n.Content[i+1], at, list, depth+1)
		}
	}
}

func index(path *field.Path, i int) *field.Path {
	if path == nil {
		path = field.NewPath("")
	}
	return path.Index(i)
}

// line gives the line of the field at a path, or of the nearest thing around it that is there; 0 when nothing is known.
func (t *tree) line(path string) int {
	if t == nil || t.empty() {
		return 0
	}
	n := t.root.Content[0]
	line := n.Line
	for path != "" && n != nil {
		next, at, rest := step(n, path)
		if at > 0 {
			line = at
		}
		n, path = next, rest
	}
	return line + t.offset
}

// step goes from a node to what the first part of the path names.
func step(n *yamlv3.Node, path string) (next *yamlv3.Node, line int, rest string) {
	if n.Kind == yamlv3.AliasNode {
		n = n.Alias
	}
	if n.Kind == yamlv3.SequenceNode && strings.HasPrefix(path, "[") {
		var i int
		if c, err := fmt.Sscanf(path, "[%d]", &i); c != 1 || err != nil || i < 0 || i >= len(n.Content) {
			return nil, 0, ""
		}
		_, rest, _ = strings.Cut(path, "]")
		return n.Content[i], n.Content[i].Line, strings.TrimPrefix(rest, ".")
	}
	if n.Kind != yamlv3.MappingNode {
		return nil, 0, ""
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k := n.Content[i]
		after, ok := strings.CutPrefix(path, k.Value)
		if bracketed, is := strings.CutPrefix(path, "["+k.Value+"]"); is {
			after, ok = bracketed, true
		}
		if ok && (after == "" || after[0] == '.' || after[0] == '[') {
			return n.Content[i+1], k.Line, strings.TrimPrefix(after, ".")
		}
	}
	return nil, 0, ""
}

// Line gives the line in a YAML or JSON text at which the field of a path is, or the nearest thing around it; 0 when the text can't be read.
func Line(data []byte, path string) int {
	_, t, err := fromYAML(data)
	if err != nil {
		return 0
	}
	return t.line(path)
}
