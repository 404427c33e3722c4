package decode

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"

	"github.com/podplane/podplane/internal/fault"
)

// maxErrors bounds how many findings one answer holds.
const maxErrors = 64

// strictErrors gives unknown and duplicate fields their paths, and says what would be allowed.
func strictErrors(strict []error, t reflect.Type, lines *tree) field.ErrorList {
	var list field.ErrorList
	for _, err := range strict {
		if len(list) >= maxErrors {
			break
		}
		var fe kjson.FieldError
		if !errors.As(err, &fe) {
			list = append(list, field.Invalid(nil, "", err.Error()))
			continue
		}
		path := fe.FieldPath()
		if strings.HasPrefix(err.Error(), "duplicate field") {
			// The text of the library is the only thing that tells its two findings apart.
			list = append(list, field.Invalid(field.NewPath(path), "", "duplicate field"))
			continue
		}
		detail := "unknown field" + suggestion(t, path)
		if l := lines.line(path); l > 0 {
			detail += fmt.Sprintf(" (line %d)", l)
		}
		list = append(list, field.Invalid(field.NewPath(path), "", detail))
	}
	return list
}

// suggestion names the nearest known field, or the known ones when there are few.
func suggestion(t reflect.Type, path string) string {
	parent, name := "", path
	if i := strings.LastIndexByte(path, '.'); i >= 0 {
		parent, name = path[:i], path[i+1:]
	}
	s := typeAt(t, parent)
	if s == nil {
		return ""
	}
	known := fieldsOf(s)
	names := make([]string, 0, len(known))
	best, distance := "", 3
	for n := range known {
		names = append(names, n)
		if d := editDistance(strings.ToLower(n), strings.ToLower(name)); d < distance || (d == distance && d < 3 && n < best) {
			best, distance = n, d
		}
	}
	if best != "" {
		return fmt.Sprintf("; did you mean %q?", best)
	}
	slices.Sort(names)
	if len(names) > 40 {
		return ""
	}
	return "; known here: " + strings.Join(names, ", ")
}

// typeAt finds the struct type at a path of fields and indexes.
func typeAt(t reflect.Type, path string) reflect.Type {
	for _, part := range strings.Split(path, ".") {
		name, _, indexed := strings.Cut(part, "[")
		if name != "" {
			if t = deref(t); t.Kind() != reflect.Struct {
				return nil
			}
			f, ok := fieldsOf(t)[name]
			if !ok {
				return nil
			}
			t = f
		}
		if t = deref(t); indexed {
			if t.Kind() != reflect.Slice {
				return nil
			}
			t = deref(t.Elem())
		}
	}
	if t.Kind() != reflect.Struct {
		return nil
	}
	return t
}

func deref(t reflect.Type) reflect.Type {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t
}

// fieldsOf gives a struct's fields by their JSON names, with those of embedded structs.
func fieldsOf(t reflect.Type) map[string]reflect.Type {
	m := make(map[string]reflect.Type, t.NumField())
	for f := range t.Fields() {
		name, opts, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "" && (f.Anonymous || strings.Contains(opts, "inline")):
			for n, inner := range fieldsOf(deref(f.Type)) {
				m[n] = inner
			}
		case name != "" && name != "-":
			m[name] = f.Type
		}
	}
	return m
}

// whyNot finds the fields whose values have the wrong type, after decoding failed with err.
func whyNot(data []byte, t reflect.Type, kind string, lines *tree, err error) error {
	var raw any
	if json.Unmarshal(data, &raw) != nil {
		return fault.New(fault.BadRequest, "the body can't be read: %w", err)
	}
	w := why{lines: lines}
	w.value(raw, t, nil, 0)
	if len(w.list) == 0 {
		return fault.New(fault.BadRequest, "the body can't be read as a %s: %w", kind, err)
	}
	return fault.Invalidate(fault.Object{Resource: kind}, w.list)
}

type why struct {
	lines *tree
	list  field.ErrorList
}

var unmarshaler = reflect.TypeFor[json.Unmarshaler]()

func (w *why) value(v any, t reflect.Type, path *field.Path, depth int) {
	if v == nil || depth > maxDepth || len(w.list) >= maxErrors {
		return
	}
	t = deref(t)
	if reflect.PointerTo(t).Implements(unmarshaler) {
		w.custom(v, t, path)
		return
	}
	switch t.Kind() {
	case reflect.Struct:
		w.structure(v, t, path, depth)
	case reflect.Map:
		m, ok := v.(map[string]any)
		if !ok {
			w.add(path, "must be an object")
		}
		for k, x := range m {
			w.value(x, t.Elem(), path.Key(k), depth+1)
		}
	case reflect.Slice:
		w.slice(v, t, path, depth)
	case reflect.String:
		if _, ok := v.(string); !ok {
			w.add(path, "must be a string (quote it)")
		}
	case reflect.Bool:
		if _, ok := v.(bool); !ok {
			w.add(path, "must be true or false")
		}
	default:
		if _, ok := v.(float64); !ok {
			w.add(path, "must be a number")
		} else {
			w.custom(v, t, path)
		}
	}
}

func (w *why) structure(v any, t reflect.Type, path *field.Path, depth int) {
	m, ok := v.(map[string]any)
	if !ok {
		w.add(path, "must be an object")
		return
	}
	known := fieldsOf(t)
	for _, k := range sortedKeys(m) {
		if f, ok := known[k]; ok {
			w.value(m[k], f, path.Child(k), depth+1)
		}
	}
}

func (w *why) slice(v any, t reflect.Type, path *field.Path, depth int) {
	if t.Elem().Kind() == reflect.Uint8 {
		w.custom(v, t, path)
		return
	}
	l, ok := v.([]any)
	if !ok {
		w.add(path, "must be a list")
	}
	for i, x := range l {
		w.value(x, t.Elem(), index(path, i), depth+1)
	}
}

// custom asks the type itself.
func (w *why) custom(v any, t reflect.Type, path *field.Path) {
	raw, err := json.Marshal(v)
	if err != nil {
		return
	}
	if json.Unmarshal(raw, reflect.New(t).Interface()) != nil {
		w.add(path, expected(t))
	}
}

// expected says what a type with its own notation takes.
func expected(t reflect.Type) string {
	switch t.Name() {
	case "Quantity":
		return `must be a quantity, such as "500m", "2", "64Mi" or "1Gi"`
	case "Time", "MicroTime":
		return `must be an RFC 3339 time, such as "2026-01-02T15:04:05Z"`
	case "IntOrString":
		return "must be a number or a string"
	}
	switch t.Kind() {
	case reflect.Slice:
		return "must be base64"
	case reflect.Int32, reflect.Int64, reflect.Int:
		return "must be an integer of at most " + fmt.Sprint(t.Bits()) + " bits"
	}
	return "has the wrong form for a " + t.Name()
}

func (w *why) add(path *field.Path, detail string) {
	if path == nil {
		path = field.NewPath("")
	}
	if l := w.lines.line(path.String()); l > 0 {
		detail += fmt.Sprintf(" (line %d)", l)
	}
	w.list = append(w.list, field.TypeInvalid(path, "", detail))
}

func sortedKeys(m map[string]any) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// editDistance is Levenshtein's, for short words.
func editDistance(a, b string) int {
	if len(a) > 64 || len(b) > 64 {
		return 64
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		diagonal := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			diagonal, row[j] = row[j], min(row[j]+1, row[j-1]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}
