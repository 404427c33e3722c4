package envfile_test

import (
	"strings"
	"testing"

	"github.com/podplane/podplane/services/syncd/internal/envfile"
)

func TestLookup(t *testing.T) {
	for _, c := range []struct{ file, name, want string }{
		{"A='x'", "A", "x"},
		{"A='x'\nB='y'\n", "B", "y"},
		{"  A='x'  # why\r\n\n# B='no'\nB='y'", "B", "y"},
		{"A='two\nlines = # '\nB='$(A) $A \\n \"q\"'\n", "A", "two\nlines = # "},
		{"A='two\nlines = # '\nB='$(A) $A \\n \"q\"'\n", "B", `$(A) $A \n "q"`},
		{"A=''\n", "A", ""},
		{"A=\nB='y'\n", "A", ""},
		{"A= 'x'\n", "A", ""},
		{"A='1'\nA='2'\n", "A", "1"},
		{"A='x'\nthis is wrong\n", "A", "x"}, // nobody looks there
		{"a.b-c='x'\n", "a.b-c", "x"},
		{"", "A", "none"},
		{"# A='x'", "A", "none"},
		{"AB='x'\n", "A", "none"},
		{"A='x'#y\n", "A", "!line 1: values must be"},
		{"\n\nA=x\n", "A", "!line 3: values must be"},
		{"A=\"x\"\n", "A", "!line 1: values must be"},
		{"A ='x'\n", "A", "!line 1: whitespace before"},
		{"='x'\n", "A", "!line 1: empty variable name"},
		{"B='1\n2'\nword\n", "A", "!line 3: missing '='"},
		{"B='1'\nA='x\n\n", "A", "!line 2: the closing quote"},
	} {
		value, found, err := envfile.Lookup(c.file, c.name)
		if says, bad := strings.CutPrefix(c.want, "!"); bad {
			if err == nil || !strings.Contains(err.Error(), says) {
				t.Errorf("%q: %q, %v; want an error with %q", c.file, value, err, says)
			}
			continue
		}
		if err != nil || found != (c.want != "none") || (found && value != c.want) {
			t.Errorf("%q: %q, %t, %v; want %q", c.file, value, found, err, c.want)
		}
	}
}

// What was written in quotes is read as it was written; errors do not repeat what may be secret.
func FuzzLookup(f *testing.F) {
	f.Add("secret", "A='x'\n")
	f.Add("two\nlines", "# c\nB='\n'\n")
	f.Add("", "B=\n")
	f.Fuzz(func(t *testing.T, value, before string) {
		if _, _, err := envfile.Lookup(before, "A"); err != nil {
			if len(before) > 20 && strings.Contains(err.Error(), before) {
				t.Fatalf("the error tells all: %v", err)
			}
			return
		}
		if _, there, _ := envfile.Lookup(before, "A"); there || strings.Contains(value, "'") {
			return
		}
		got, found, err := envfile.Lookup(before+"\nA='"+value+"' # x\n", "A")
		if err != nil || !found || got != value {
			t.Fatalf("%q after %q: %q, %t, %v", value, before, got, found, err)
		}
	})
}
