package conf

import (
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/podplane/podplane/internal/fault"
)

// setText fills a field from the words of a flag or a variable. Lists and maps are comma separated: a,b and k=v,k=v.
func setText(v reflect.Value, s string) error {
	if u, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
		if err := u.UnmarshalText([]byte(s)); err != nil {
			return fault.New(fault.Invalid, "%q: %w", s, err)
		}
		return nil
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(s)
	case reflect.Bool:
		b, err := strconv.ParseBool(s)
		if err != nil {
			return fault.New(fault.Invalid, "%q is not true or false", s)
		}
		v.SetBool(b)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64, reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64,
		reflect.Float32, reflect.Float64:
		return setNumber(v, s)
	case reflect.Slice:
		return setSlice(v, s)
	case reflect.Map:
		return setMap(v, s)
	default:
		return fault.New(fault.Internal, "a %s can't be set from text", v.Type())
	}
	return nil
}

func setNumber(v reflect.Value, s string) error {
	var err error
	switch {
	case v.Type() == durationType:
		var d time.Duration
		if d, err = time.ParseDuration(s); err != nil {
			return fault.New(fault.Invalid, "%q is not a duration such as 10s or 1m30s", s)
		}
		v.SetInt(int64(d))
	case v.CanInt():
		var n int64
		if n, err = strconv.ParseInt(s, 10, v.Type().Bits()); err == nil {
			v.SetInt(n)
		}
	case v.CanUint():
		var n uint64
		if n, err = strconv.ParseUint(s, 10, v.Type().Bits()); err == nil {
			v.SetUint(n)
		}
	default:
		var n float64
		if n, err = strconv.ParseFloat(s, v.Type().Bits()); err == nil {
			v.SetFloat(n)
		}
	}
	if err != nil {
		return fault.New(fault.Invalid, "%q is not a number that fits (%s)", s, v.Type())
	}
	return nil
}

func setSlice(v reflect.Value, s string) error {
	out := reflect.MakeSlice(v.Type(), 0, 4)
	for _, part := range splitList(s) {
		e := reflect.New(v.Type().Elem()).Elem()
		if err := setText(e, part); err != nil {
			return err
		}
		out = reflect.Append(out, e)
	}
	v.Set(out)
	return nil
}

func setMap(v reflect.Value, s string) error {
	out := reflect.MakeMap(v.Type())
	for _, part := range splitList(s) {
		k, val, ok := strings.Cut(part, "=")
		if !ok {
			return fault.New(fault.Invalid, "%q is not of the form key=value", part)
		}
		kv, e := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		if err := setText(kv, strings.TrimSpace(k)); err != nil {
			return err
		}
		if err := setText(e, strings.TrimSpace(val)); err != nil {
			return err
		}
		out.SetMapIndex(kv, e)
	}
	v.Set(out)
	return nil
}

func splitList(s string) []string {
	if strings.TrimSpace(s) == "" {
		return nil
	}
	parts := strings.Split(s, ",")
	for i := range parts {
		parts[i] = strings.TrimSpace(parts[i])
	}
	return parts
}

// setAny fills a field from a decoded file.
func setAny(v reflect.Value, value any) error {
	switch x := value.(type) {
	case nil:
		v.SetZero()
		return nil
	case []any:
		return setList(v, x)
	case map[string]any:
		return setTable(v, x)
	case string:
		if v.Kind() == reflect.Slice || v.Kind() == reflect.Map {
			return fault.New(fault.Invalid, "must be a %s", kindWord(v))
		}
		return setText(v, x)
	case bool:
		if v.Kind() != reflect.Bool {
			return fault.New(fault.Invalid, "must be a %s", kindWord(v))
		}
		v.SetBool(x)
		return nil
	case json.Number:
		if v.Type() == durationType || v.Kind() == reflect.String && v.Type() == reflect.TypeFor[string]() || v.Kind() == reflect.Bool {
			return fault.New(fault.Invalid, "must be a %s", kindWord(v))
		}
		return setText(v, x.String())
	}
	return fault.New(fault.Invalid, "must be a %s", kindWord(v))
}

func setList(v reflect.Value, list []any) error {
	if v.Kind() != reflect.Slice {
		return fault.New(fault.Invalid, "must be a %s, not a list", kindWord(v))
	}
	out := reflect.MakeSlice(v.Type(), len(list), len(list))
	for i, item := range list {
		if err := setAny(out.Index(i), item); err != nil {
			return fmt.Errorf("item %d: %w", i, err)
		}
	}
	v.Set(out)
	return nil
}

func setTable(v reflect.Value, table map[string]any) error {
	switch v.Kind() {
	case reflect.Map:
		out := reflect.MakeMap(v.Type())
		for k, item := range table {
			e := reflect.New(v.Type().Elem()).Elem()
			if err := setAny(e, item); err != nil {
				return fmt.Errorf("key %q: %w", k, err)
			}
			out.SetMapIndex(reflect.ValueOf(k).Convert(v.Type().Key()), e)
		}
		v.Set(out)
		return nil
	case reflect.Struct:
		for _, s := range settings(v, "") {
			if item, ok := table[s.path]; ok {
				if err := setAny(s.value, item); err != nil {
					return fmt.Errorf("%s: %w", s.path, err)
				}
				delete(table, s.path)
			}
		}
		for _, k := range sortedKeys(table) {
			return fault.New(fault.Invalid, "unknown key %q", k)
		}
		return nil
	}
	return fault.New(fault.Invalid, "must be a %s, not a table", kindWord(v))
}

func kindWord(v reflect.Value) string {
	switch {
	case v.Type() == durationType:
		return "duration such as 10s"
	case v.Kind() == reflect.Slice:
		return "list"
	case v.Kind() == reflect.Map || v.Kind() == reflect.Struct:
		return "table"
	case v.CanInt() || v.CanUint() || v.CanFloat():
		return "number"
	case v.Kind() == reflect.Bool:
		return "true or false"
	}
	return "string"
}

// text is the inverse of setText.
func text(v reflect.Value) string {
	if m, ok := v.Interface().(encoding.TextMarshaler); ok {
		if b, err := m.MarshalText(); err == nil {
			return string(b)
		}
	}
	switch {
	case v.Type() == durationType:
		return time.Duration(v.Int()).String()
	case v.Kind() == reflect.Slice:
		parts := make([]string, v.Len())
		for i := range parts {
			parts[i] = text(v.Index(i))
		}
		return strings.Join(parts, ",")
	case v.Kind() == reflect.Map:
		parts := make([]string, 0, v.Len())
		for _, k := range v.MapKeys() {
			parts = append(parts, text(k)+"="+text(v.MapIndex(k)))
		}
		slices.Sort(parts)
		return strings.Join(parts, ",")
	}
	return fmt.Sprint(v.Interface())
}
