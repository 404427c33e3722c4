package compose_test

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestEverySettingIsDocumented compares .env.example with what the files of deploy/ read: every name, with its default.
func TestEverySettingIsDocumented(t *testing.T) {
	files, err := filepath.Glob("../../deploy/compose*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("%v, %v", files, err)
	}
	used := map[string]string{}
	for _, file := range files {
		for name, value := range references(uncommented(t, file)) {
			if before, ok := used[name]; ok && before != value {
				t.Errorf("%s: the default of %s is %q here and %q elsewhere", file, name, value, before)
			}
			used[name] = value
		}
	}
	example := map[string]string{}
	for line := range strings.Lines(uncommented(t, "../../deploy/.env.example")) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			example[name] = value
		}
	}
	for _, name := range slices.Sorted(maps.Keys(used)) {
		switch value, ok := example[name]; {
		case !ok:
			t.Errorf(".env.example lacks %s (%q)", name, used[name])
		case strings.HasPrefix(used[name], "${"):
			if value != "" {
				t.Errorf(".env.example sets %s to %q, which comes from another setting", name, value)
			}
		case value != used[name]:
			t.Errorf(".env.example sets %s to %q, its default is %q", name, value, used[name])
		}
	}
	for name := range example {
		if _, ok := used[name]; !ok {
			t.Errorf(".env.example has %s, which nothing reads", name)
		}
	}
}

// uncommented is a file without what is behind a #.
func uncommented(t *testing.T, file string) string {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for line := range strings.Lines(string(content)) {
		code, _, found := strings.Cut(line, "#")
		b.WriteString(code)
		if found {
			b.WriteString("\n")
		}
	}
	return b.String()
}

// references are the variables that a compose file reads, ${NAME}, ${NAME-default} and ${NAME:-default}, with their defaults, which may
// hold others.
func references(text string) map[string]string {
	found := map[string]string{}
	for {
		_, rest, ok := strings.Cut(text, "${")
		if !ok {
			return found
		}
		depth, end := 1, 0
		for ; end < len(rest) && depth > 0; end++ {
			switch rest[end] {
			case '{':
				depth++
			case '}':
				depth--
			}
		}
		inside := rest[:max(end-1, 0)]
		name, value, _ := strings.Cut(inside, "-")
		found[strings.TrimSuffix(name, ":")] = value
		text = rest[len(name):] // what is inside may refer to others
	}
}

func TestReferences(t *testing.T) {
	got := references(`a ${A} ${B:-b-b} "${C-}" ${D:-${E:-e}}x`)
	if want := map[string]string{"A": "", "B": "b-b", "C": "", "D": "${E:-e}", "E": "e"}; !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
