package conf

import (
	"encoding"
	"reflect"
	"strings"
	"time"
	"unicode"
)

// setting is one field that can be set.
type setting struct {
	path   string // in the file, as in cri.endpoint
	usage  string
	secret bool
	value  reflect.Value
}

func (s setting) flag() string { return kebab(strings.ReplaceAll(s.path, ".", "-")) }

func (s setting) env() string { return strings.ToUpper(strings.ReplaceAll(s.flag(), "-", "_")) }

// settings lists the leaves of a struct in the order of their declaration.
func settings(v reflect.Value, prefix string) []setting {
	var out []setting
	for i := range v.NumField() {
		f := v.Type().Field(i)
		key, ok := keyOf(f)
		if !ok {
			continue
		}
		fv := v.Field(i)
		switch {
		case f.Anonymous && isSection(fv):
			out = append(out, settings(fv, prefix)...)
		case isSection(fv):
			out = append(out, settings(fv, prefix+key+".")...)
		default:
			out = append(out, setting{path: prefix + key, usage: f.Tag.Get("usage"), secret: f.Tag.Get("secret") == "true", value: fv})
		}
	}
	return out
}

func keyOf(f reflect.StructField) (string, bool) {
	if !f.IsExported() {
		return "", false
	}
	key, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	switch key {
	case "-":
		return "", false
	case "":
		r := []rune(f.Name)
		r[0] = unicode.ToLower(r[0])
		return string(r), true
	}
	return key, true
}

var (
	durationType = reflect.TypeFor[time.Duration]()
	textType     = reflect.TypeFor[encoding.TextUnmarshaler]()
)

// isSection says whether a field is a group of settings and not a setting.
func isSection(v reflect.Value) bool {
	return v.Kind() == reflect.Struct && !v.Addr().Type().Implements(textType)
}

// kebab turns natsURL into nats-url and HTTPListen into http-listen.
func kebab(s string) string {
	r := []rune(s)
	var b strings.Builder
	for i, c := range r {
		upper := unicode.IsUpper(c)
		if upper && i > 0 && r[i-1] != '-' && (!unicode.IsUpper(r[i-1]) || (i+1 < len(r) && unicode.IsLower(r[i+1]))) {
			b.WriteByte('-')
		}
		b.WriteRune(unicode.ToLower(c))
	}
	return b.String()
}
