// Package envfile reads the files from which environment variables can come (fileKeyRef): a small, strict part of what a POSIX shell reads.
//
//	# a comment
//	NAME='value'              # what is between the quotes is taken as it is, line breaks too
//	EMPTY=
//
// Nothing is expanded and there are no escapes, so that no value depends on who reads it.
package envfile

import (
	"fmt"
	"strings"
)

// Lookup finds the first value of a variable. What comes after it is not looked at. Errors name the line, never what is in it.
func Lookup(data, name string) (value string, found bool, err error) {
	r := reader{rest: data}
	for r.next() {
		key, value, err := r.assignment()
		if err != nil {
			return "", false, err
		}
		if key == name {
			return value, true, nil
		}
	}
	return "", false, nil
}

type reader struct {
	rest string
	// line is that of the assignment at which the reader is.
	line, passed int
}

// take takes the text up to a mark, and the mark. Without the mark ok is false.
func (r *reader) take(mark string) (text string, ok bool) {
	text, rest, ok := strings.Cut(r.rest, mark)
	if ok {
		r.passed += strings.Count(text+mark, "\n")
		r.rest = rest
	}
	return text, ok
}

// next goes to the next line that is neither empty nor a comment. It returns false at the end.
func (r *reader) next() bool {
	for {
		r.rest = strings.TrimLeft(r.rest, " \t\r")
		r.line = r.passed + 1
		switch {
		case r.rest == "":
			return false
		case r.rest[0] != '#' && r.rest[0] != '\n':
			return true
		}
		if _, ok := r.take("\n"); !ok {
			return false
		}
	}
}

// assignment reads NAME='value' and the rest of its line.
func (r *reader) assignment() (name, value string, err error) {
	line, _, _ := strings.Cut(r.rest, "\n")
	switch name, _, ok := strings.Cut(line, "="); {
	case !ok:
		return "", "", r.wrong("missing '='")
	case name == "":
		return "", "", r.wrong("empty variable name")
	case strings.ContainsAny(name, " \t"):
		return "", "", r.wrong("whitespace before '='")
	}
	name, _ = r.take("=")
	if after, quoted := strings.CutPrefix(r.rest, "'"); quoted {
		r.rest = after
		if value, quoted = r.take("'"); !quoted {
			return "", "", r.wrong("the closing quote is missing")
		}
	}
	return name, value, r.restOfLine()
}

// restOfLine passes what may follow a value: nothing, or whitespace and a comment; after an empty one, whitespace and what a shell would run.
func (r *reader) restOfLine() error {
	rest, ended := r.take("\n")
	if !ended {
		rest, r.rest = r.rest, ""
	}
	rest = strings.TrimRight(rest, "\r")
	if trimmed := strings.TrimLeft(rest, " \t"); trimmed == "" || (len(trimmed) < len(rest) && (trimmed[0] == '#' || trimmed[0] == '\'')) {
		return nil
	}
	return r.wrong("values must be enclosed in single quotes")
}

func (r *reader) wrong(what string) error {
	return fmt.Errorf("invalid environment variable format at line %d: %s", r.line, what)
}
